// tokenizer.model on arbitrary bytes: an error with a message, or a tokenizer.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "daemon/data/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const std::string text = "In the beginning  caf\u00e9 \u4e2d\u6587 12\n<s> x";
    shd_tokenizer_files files = {};
    files.path = "fuzz";
    files.model = reinterpret_cast<const char *>(data);
    files.model_size = size;
    shd_tokenizer *tok = nullptr;
    shd_error err = {};
    const int rc = shd_tokenizer_create(&files, &tok, &err);
    if (rc != 0) {
        if (rc != SHD_EDATA || err.message[0] == '\0') {
            abort();
        }
        return 0;
    }
    shd_encoder *encoder = shd_encoder_create(tok);
    shd_ids ids = SHD_IDS_INIT;
    if (shd_encoder_run(encoder, text.data(), text.size(), 0, &ids, &err) == 0) {
        char *out = nullptr;
        size_t n = 0;
        if (shd_tokenizer_decode(tok, ids.items, ids.n, 0, &out, &n, &err) != 0) {
            abort();
        }
        free(out);
    }
    shd_ids_fini(&ids);
    shd_encoder_free(encoder);
    shd_tokenizer_free(tok);
    return 0;
}

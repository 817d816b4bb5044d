// tokenizer.json and tokenizer_config.json on arbitrary bytes: an error with a message, or a
// tokenizer whose ids are below its vocabulary and the same for a text in pieces.
// Input: tokenizer.json, byte 0xff, tokenizer_config.json, byte 0xff, a text; what is missing is
// empty (no configuration, a text of the target's own).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "daemon/data/tokenizer.h"

namespace
{

void Require(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

std::string TakePart(std::string *rest)
{
    const size_t end = std::min(rest->find('\xff'), rest->size());
    const std::string part = rest->substr(0, end);
    rest->erase(0, end + 1);
    return part;
}

void Decode(shd_tokenizer *tok, const shd_ids &ids)
{
    char *text = nullptr;
    size_t n = 0;
    shd_error err = {};
    Require(shd_tokenizer_decode(tok, ids.items, ids.n, 0, &text, &n, &err) == 0, "ids are tokens");
    free(text);
    shd_text_stream *stream = shd_text_stream_create(tok, 1);
    for (size_t i = 0; i < ids.n; i++) {
        shd_text_stream_push(stream, ids.items[i], &n);
    }
    shd_text_stream_end(stream, &n);
    shd_text_stream_free(stream);
}

void Use(shd_tokenizer *tok, const std::string &text)
{
    shd_encoder *encoder = shd_encoder_create(tok);
    shd_ids whole = SHD_IDS_INIT, pieces = SHD_IDS_INIT;
    shd_error err = {};
    const int rc =
        shd_encoder_run(encoder, text.data(), text.size(), SHD_ENCODE_SPECIAL, &whole, &err);
    Require(rc == 0 || (rc == SHD_EDATA && err.message[0] != '\0'), "encoded, or SHD_EDATA");
    if (rc == 0) {
        for (size_t i = 0; i < whole.n; i++) {
            Require(whole.items[i] >= 0 &&
                        static_cast<uint32_t>(whole.items[i]) < shd_tokenizer_vocab(tok),
                    "ids are below the vocabulary");
        }
        Decode(tok, whole);
        whole.n = 0;
        Require(shd_encoder_run(encoder, text.data(), text.size(), 0, &whole, &err) == 0, "again");
        int piece_rc = 0;
        for (size_t at = 0, n = 5000, taken = 0; at < text.size() && piece_rc == 0; at += taken) {
            const bool last = at + n >= text.size();
            piece_rc = shd_encoder_piece(encoder, text.data() + at, last ? text.size() - at : n,
                                         last, &pieces, &taken, &err);
            n = taken > 0 ? 5000 : 2 * n;
        }
        Require(piece_rc == SHD_EDATA ||
                    (whole.n == pieces.n &&
                     std::equal(whole.items, whole.items + whole.n, pieces.items)),
                "pieces give the ids of the whole");
    }
    shd_ids_fini(&whole);
    shd_ids_fini(&pieces);
    shd_encoder_free(encoder);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    std::string rest(reinterpret_cast<const char *>(data), size);
    const std::string json = TakePart(&rest), config = TakePart(&rest);
    if (rest.empty()) {
        for (int i = 0; i < 150; i++) {
            rest +=
                "Line 12 of a text, it's caf\u00e9  <s> a word.\nA b abc\tx\r\n \u4e2d\u6587!!\n";
        }
    }
    shd_tokenizer_files files = {};
    files.path = "fuzz";
    files.json = json.data();
    files.json_size = json.size();
    files.config = config.empty() ? nullptr : config.data();
    files.config_size = config.size();
    shd_tokenizer *tok = nullptr;
    shd_error err = {};
    const int rc = shd_tokenizer_create(&files, &tok, &err);
    if (rc == 0) {
        Use(tok, rest);
        shd_tokenizer_free(tok);
    } else {
        Require((rc == SHD_EDATA || rc == SHD_EUNSUPPORTED) && err.message[0] != '\0',
                "an error says what");
    }
    return 0;
}

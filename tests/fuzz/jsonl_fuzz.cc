// JSONL and text on arbitrary bytes: an error with a message, or a token file whose documents can
// be read, packed and unpacked. Input: one byte of settings (text in bit 0, bytes of a read in bits
// 1-3), then the file.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "daemon/data/documents.h"
#include "daemon/data/windows.h"

namespace
{

void Require(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

struct Input {
    const uint8_t *data;
    size_t left, step;
};

int Read(void *arg, char *buffer, size_t n, size_t *got, shd_error *)
{
    Input *in = static_cast<Input *>(arg);
    *got = std::min({n, in->left, in->step});
    memcpy(buffer, in->data, *got);
    in->data += *got;
    in->left -= *got;
    return 0;
}

// Shuffled for training, or the whole with a stride.
void ReadWindows(const shd_source *source, int packing, int whole)
{
    shd_windows_options options = {};
    options.seq_len = 7;
    options.packing = packing;
    options.shuffle = !whole;
    options.seed = 3;
    options.whole = whole;
    options.stride = 3;
    shd_windows *windows = nullptr;
    shd_error err = {};
    if (shd_windows_create(source, &options, &windows, &err) != 0) {
        Require(err.code == SHD_EDATA, "too little data");
        return;
    }
    int32_t ids[7], targets[7];
    for (uint64_t i = 0; i < std::min<uint64_t>(shd_windows_count(windows), 50); i++) {
        Require(shd_windows_read(windows, i, 256, ids, targets, &err) == 0, "windows can be read");
        for (int k = 0; k < 7; k++) {
            Require(ids[k] >= 0 && ids[k] < 256 && (targets[k] == -100 || targets[k] >= 0), "ids");
        }
    }
    shd_windows_free(windows);
}

void Use(int fd, const shd_token_header &header)
{
    shd_source *source = nullptr;
    shd_error err = {};
    Require(shd_source_open(fd, "fuzz", SHD_DATA_TOKENS, &source, &err) == 0,
            "what was written opens");
    Require(shd_source_tokens(source) == header.tokens, "all tokens are there");
    for (int packing : {0, 1}) {
        ReadWindows(source, packing, 0);
        ReadWindows(source, packing, 1);
    }
    shd_source_free(source);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t kSteps[] = {1, 2, 3, 7, 64, 1000, 5000, 1 << 20};
    if (size == 0) {
        return 0;
    }
    const int fd = memfd_create("fuzz", MFD_CLOEXEC), dir = open("/tmp", O_RDONLY | O_DIRECTORY);
    const uint64_t key[2] = {1, 2};
    shd_tokenizer *tok = shd_tokenizer_bytes();
    shd_token_writer *writer = nullptr;
    shd_token_header header;
    shd_error err = {};
    Require(shd_token_writer_create(fd, dir, 256, key, &writer, &err) == 0, "a writer");
    Input in = {data + 1, size - 1, kSteps[data[0] >> 1 & 7]};
    int rc = shd_documents_write(Read, &in, data[0] & 1 ? SHD_DATA_TEXT : SHD_DATA_JSONL, tok,
                                 nullptr, writer, &err);
    rc = rc == 0 ? shd_token_writer_finish(writer, &header, &err) : rc;
    if (rc == 0) {
        Use(fd, header);
    } else {
        Require(rc == SHD_EDATA && err.message[0] != '\0', "an error says what");
    }
    shd_token_writer_free(writer);
    shd_tokenizer_free(tok);
    close(fd);
    close(dir);
    return 0;
}

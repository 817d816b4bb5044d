// Token sources on arbitrary files: an error with a message, or tokens that are all below the
// vocabulary and the same however they are read.
// Input: one byte of settings (format in bits 0-1, ".bin" in bit 2, vocabulary in bits 3-4), then
// the file.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "daemon/data/sampler.h"
#include "daemon/data/source.h"

namespace
{

void Require(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

void Use(const shd_source *src, uint32_t vocab)
{
    const uint64_t tokens = shd_source_tokens(src);
    shd_error err = {};

    Require(tokens > 0, "an open source has tokens");
    std::vector<int32_t> all(tokens);
    const int rc = shd_source_read(src, 0, tokens, vocab, all.data(), &err);
    Require(rc == 0 || (rc == SHD_EDATA && err.message[0] != '\0'), "read or SHD_EDATA");
    Require(rc == shd_source_check(src, vocab, &err), "read and check agree");
    if (rc != 0) {
        return;
    }
    for (int32_t token : all) {
        Require(token >= 0 && static_cast<uint32_t>(token) < vocab, "tokens are ids");
    }
    shd_sampler sampler;
    const uint32_t seq_len = 1 + static_cast<uint32_t>(all[0] % 40);
    if (shd_sampler_init(&sampler, 0, tokens, seq_len, 1, 1, &err) != 0) {
        Require(tokens <= seq_len, "only short files are refused");
        return;
    }
    std::vector<int32_t> window(seq_len + 1);
    for (uint64_t cursor = 0; cursor < std::min<uint64_t>(2 * sampler.windows, 20); cursor++) {
        const uint64_t at = shd_sampler_offset(&sampler, cursor);
        Require(shd_source_read(src, at, seq_len + 1, vocab, window.data(), &err) == 0,
                "windows lie inside");
        Require(std::equal(window.begin(), window.end(), all.begin() + static_cast<long>(at)),
                "a window is a part of the whole");
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t kVocabs[] = {1, 256, 50257, UINT32_MAX};
    if (size == 0) {
        return 0;
    }
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    Require(fd >= 0 && write(fd, data + 1, size - 1) == static_cast<ssize_t>(size - 1), "memfd");
    shd_source *src = nullptr;
    shd_error err = {};
    const int rc = shd_source_open(fd, data[0] & 4 ? "fuzz.bin" : "fuzz.txt",
                                   static_cast<shd_data_format>(data[0] & 3), &src, &err);
    close(fd);
    if (rc == 0) {
        Use(src, kVocabs[data[0] >> 3 & 3]);
        shd_source_free(src);
    } else {
        Require(rc == SHD_EDATA && err.message[0] != '\0', "an error says what");
    }
    return 0;
}

// Token files on arbitrary bytes: an error with a message, or tokens, masks and documents that can
// be read without harm.
// Input: one byte of settings (bit 0: make the header's checksum right), then the file.
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "daemon/data/token_file.h"
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

void ReadWindows(const shd_source *source, int packing)
{
    shd_windows_options options = {};
    options.part = SHD_WINDOWS_HEAD;
    options.tail = 0.25;
    options.seq_len = 5;
    options.packing = packing;
    options.shuffle = 1;
    options.seed = 3;
    shd_windows *windows = nullptr;
    shd_error err = {};
    int32_t ids[5], targets[5];
    if (shd_windows_create(source, &options, &windows, &err) != 0) {
        Require(err.code == SHD_EDATA && err.message[0] != '\0', "an error says what");
        return;
    }
    for (uint64_t i = 0; i < std::min<uint64_t>(shd_windows_count(windows), 50); i++) {
        const int rc = shd_windows_read(windows, i, 1000, ids, targets, &err);
        Require(rc == 0 || rc == SHD_EDATA, "a window, or SHD_EDATA");
    }
    shd_windows_free(windows);
}

void Use(const shd_source *source)
{
    const uint64_t tokens = shd_source_tokens(source), documents = shd_source_documents(source);
    shd_error err = {};
    Require(tokens > 0 && documents > 0 && documents <= tokens, "an open file has tokens");
    std::vector<int32_t> ids(tokens);
    std::vector<unsigned char> ignored(tokens);
    std::vector<uint64_t> begins(documents);
    int rc = shd_source_read(source, 0, tokens, 70000, ids.data(), &err);
    Require(rc == 0 || rc == SHD_EDATA, "tokens, or SHD_EDATA");
    Require(shd_source_read_mask(source, 0, tokens, ignored.data(), &err) == 0, "a mask");
    rc = shd_source_read_documents(source, 0, documents, begins.data(), &err);
    Require(rc == 0 || rc == SHD_EDATA, "documents, or SHD_EDATA");
    ReadWindows(source, 0);
    ReadWindows(source, 1);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    std::string file(reinterpret_cast<const char *>(data) + 1, size - 1);
    if ((data[0] & 1) != 0 && file.size() >= SHD_TOKEN_HEADER_BYTES) {
        const uint64_t sum = XXH3_64bits(file.data(), SHD_TOKEN_HEADER_BYTES - 8);
        memcpy(&file[SHD_TOKEN_HEADER_BYTES - 8], &sum, sizeof(sum));
    }
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    Require(fd >= 0 && write(fd, file.data(), file.size()) == static_cast<ssize_t>(file.size()),
            "memfd");
    shd_source *source = nullptr;
    shd_error err = {};
    const int rc = shd_source_open(fd, "fuzz", SHD_DATA_TOKENS, &source, &err);
    close(fd);
    if (rc == 0) {
        Use(source);
        shd_source_free(source);
    } else {
        Require(rc == SHD_EDATA && err.message[0] != '\0', "an error says what");
    }
    return 0;
}

// Indices of sharded checkpoints, arbitrary ones, beside two shards that are right: an error with a
// message, or a table of exactly the tensors that the shards hold.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "daemon/store/hf_files.h"

namespace
{

void Require(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

std::string Shard(const std::string &header, size_t bytes)
{
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    return file + header + std::string(bytes, 'x');
}

int Open(void *arg, const char *name, int *fd, shd_error *err)
{
    static const std::string shards[] = {
        Shard(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
              R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
              3),
        Shard(R"({"c":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1)};
    const std::string word = name;
    const std::string *bytes = word == SHD_HF_INDEX ? static_cast<const std::string *>(arg)
                               : word == "s1"       ? &shards[0]
                               : word == "s2"       ? &shards[1]
                                                    : nullptr;
    Require(word.find('/') == std::string::npos, "a name of the directory");
    if (bytes == nullptr) {
        return shd_fail(err, SHD_ENOTFOUND, "%s is not there", name);
    }
    *fd = memfd_create("fuzz", MFD_CLOEXEC);
    Require(write(*fd, bytes->data(), bytes->size()) == static_cast<ssize_t>(bytes->size()),
            "memfd");
    return 0;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    std::string index(reinterpret_cast<const char *>(data), size);
    shd_hf_files *files = nullptr;
    shd_error err = {};
    const int rc = shd_hf_files_open("fuzz", Open, &index, &files, &err);
    if (rc != 0) {
        Require(rc == SHD_EDATA && err.message[0] != '\0', "an error says what");
        return 0;
    }
    const uint32_t n = shd_hf_files_n(files);
    Require(n >= 1 && n <= 3, "the tensors of the shards");
    for (uint32_t i = 0; i < n; i++) {
        const shd_hf_tensor *t = shd_hf_files_at(files, i);
        char bytes[2];
        Require(shd_hf_files_find(files, t->tensor->name) == t, "found by its name");
        Require(shd_hf_files_read(files, t, 0, t->tensor->bytes, bytes, &err) == 0 &&
                    bytes[0] == 'x',
                "reads");
    }
    shd_hf_files_free(files);
    return 0;
}

// safetensors on arbitrary files: an error with a message, or tensors that lie in the file end to
// end, each as long as its shape says, and that read back byte for byte.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "daemon/store/safetensors.h"

namespace
{

void Require(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

void Use(const shd_safetensors *file, const uint8_t *data, size_t size)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < shd_safetensors_n(file); i++) {
        const shd_st_tensor *t = shd_safetensors_at(file, i);
        Require(i == 0 || t->offset == end, "tensors lie end to end");
        end = t->offset + t->bytes;
        Require(t->offset >= 8 && end <= size, "tensors lie in the file");
        uint64_t bytes = shd_st_dtype_size(t->dtype);
        for (int d = 0; d < t->ndim; d++) {
            bytes *= static_cast<uint64_t>(t->shape[d]);
        }
        Require(bytes == t->bytes, "as long as the shape says");
        Require(shd_safetensors_find(file, t->name) == t, "found by its name");
        std::vector<uint8_t> read(t->bytes + 1);
        shd_error err = {};
        Require(shd_safetensors_read(file, t, 0, t->bytes, read.data(), &err) == 0, "reads");
        Require(memcmp(read.data(), data + t->offset, t->bytes) == 0, "what the file holds");
        Require(shd_safetensors_read(file, t, 1, t->bytes, read.data(), &err) == SHD_EINVAL,
                "not past its end");
    }
    Require(end == 0 || end == size, "nothing after the last tensor");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    Require(fd >= 0 && write(fd, data, size) == static_cast<ssize_t>(size), "memfd");
    shd_safetensors *file = nullptr;
    shd_error err = {};
    const int rc = shd_safetensors_open(fd, "fuzz", &file, &err);
    if (rc == 0) {
        Use(file, data, size);
        shd_safetensors_free(file);
    } else {
        Require(rc == SHD_EDATA && err.message[0] != '\0', "an error says what");
    }
    return 0;
}

/* Laying out and writing safetensors files; see safetensors.h. Floor F3. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/mem.h"
#include "daemon/store/safetensors.h"

#define LENGTH_BYTES 8u

/* jansson fails only for want of memory and for text that is not UTF-8, which no name is. */
static void must(int failed)
{
    if (failed) {
        abort();
    }
}

static json_t *describe(const shd_st_tensor *t, uint64_t begin)
{
    json_t *shape = json_array();
    for (int d = 0; d < t->ndim; d++) {
        must(json_array_append_new(shape, json_integer(t->shape[d])));
    }
    json_t *entry =
        json_pack("{s:s, s:o, s:[I, I]}", "dtype", shd_st_dtype_name(t->dtype), "shape", shape,
                  "data_offsets", (json_int_t)begin, (json_int_t)(begin + t->bytes));
    must(entry == NULL);
    return entry;
}

uint64_t shd_safetensors_layout(shd_st_tensor *tensors, uint32_t n, void **head,
                                uint64_t *head_bytes)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t end = 0;
    must(header == NULL);
    for (uint32_t i = 0; i < n; i++) {
        shd_st_tensor *t = &tensors[i];
        t->bytes = shd_st_dtype_size(t->dtype);
        for (int d = 0; d < t->ndim; d++) {
            t->bytes *= (uint64_t)t->shape[d];
        }
        must(json_object_set_new(header, t->name, describe(t, end)));
        t->offset = end;
        end += t->bytes;
    }
    const size_t length = json_dumpb(header, NULL, 0, JSON_COMPACT);
    const size_t padded = (length + 7) / 8 * 8;
    unsigned char *out = shd_malloc(LENGTH_BYTES + padded);
    must(length == 0 ||
         json_dumpb(header, (char *)out + LENGTH_BYTES, length, JSON_COMPACT) != length);
    json_decref(header);
    memset(out + LENGTH_BYTES + length, ' ', padded - length);
    for (unsigned i = 0; i < LENGTH_BYTES; i++) {
        out[i] = (unsigned char)((uint64_t)padded >> 8 * i);
    }
    *head = out;
    *head_bytes = LENGTH_BYTES + padded;
    for (uint32_t i = 0; i < n; i++) {
        tensors[i].offset += *head_bytes;
    }
    return *head_bytes + end;
}

int shd_safetensors_write(int fd, const char *path, const void *data, uint64_t n, uint64_t offset,
                          shd_error *err)
{
    for (const char *p = data; n > 0;) {
        const ssize_t put = pwrite(fd, p, n, (off_t)offset);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return shd_fail(err, SHD_EIO, "cannot write '%s': %s", path,
                            put < 0 ? strerror(errno) : "nothing was taken");
        }
        p += put;
        offset += (uint64_t)put;
        n -= (uint64_t)put;
    }
    return 0;
}

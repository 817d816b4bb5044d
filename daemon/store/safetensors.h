/* The safetensors format: eight bytes with the length of a JSON header (little endian), the header
 * (name -> dtype, shape, data_offsets; "__metadata__" -> strings), then the tensors end to end.
 * Floor F3. Reading: any thread after opening. Writing: one thread per writer. */
#ifndef SHD_DAEMON_STORE_SAFETENSORS_H
#define SHD_DAEMON_STORE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_ST_MAX_DIMS 8
#define SHD_ST_MAX_HEADER UINT64_C(100000000) /* bytes; the format's own limit */

/* Types of the format. Only the first three hold numbers that this product reads. */
typedef enum shd_st_dtype {
    SHD_ST_F32 = 0,
    SHD_ST_BF16,
    SHD_ST_F16,
    SHD_ST_F64,
    SHD_ST_F8_E5M2,
    SHD_ST_F8_E4M3,
    SHD_ST_F8_E8M0,
    SHD_ST_I64,
    SHD_ST_I32,
    SHD_ST_I16,
    SHD_ST_I8,
    SHD_ST_U64,
    SHD_ST_U32,
    SHD_ST_U16,
    SHD_ST_U8,
    SHD_ST_BOOL,
    SHD_ST_C64,
    SHD_ST_DTYPE_COUNT
} shd_st_dtype;

/* "F32", "BF16", ... Static storage. */
const char *shd_st_dtype_name(shd_st_dtype dtype);
size_t shd_st_dtype_size(shd_st_dtype dtype); /* bytes of an element */

typedef struct shd_st_tensor {
    char *name; /* owned by what owns the tensor */
    shd_st_dtype dtype;
    int ndim; /* 0: a scalar */
    int64_t shape[SHD_ST_MAX_DIMS];
    uint64_t offset; /* of its first byte in the file */
    uint64_t bytes;
} shd_st_tensor;

/* "[12, 64]", at most size - 1 characters, into out, which is returned. */
const char *shd_st_shape_text(int ndim, const int64_t *shape, char *out, size_t size);

/* ---- reading ---- */

typedef struct shd_safetensors shd_safetensors;

/* Reads and checks the header of `fd` (taken over, on failure too). SHD_EDATA names the file and
 * what is wrong: too short, header longer than the file or the format allows, JSON that does not
 * parse, an unknown field, a name given twice, a dtype that is not of the format, a shape that does
 * not match its bytes, tensors that overlap or leave gaps, a file that ends before or goes on after
 * them. */
int shd_safetensors_open(int fd, const char *path, shd_safetensors **out, shd_error *err);
void shd_safetensors_free(shd_safetensors *file); /* NULL is fine */

/* Closes the file; what its header said stays. */
void shd_safetensors_close(shd_safetensors *file);

const char *shd_safetensors_path(const shd_safetensors *file);
uint32_t shd_safetensors_n(const shd_safetensors *file);
/* In the order of their bytes. */
const shd_st_tensor *shd_safetensors_at(const shd_safetensors *file, uint32_t i);
/* NULL: no such tensor. */
const shd_st_tensor *shd_safetensors_find(const shd_safetensors *file, const char *name);

/* Reads bytes [first, first + n) of a tensor's own. SHD_EDATA when the file has changed since it
 * was opened; SHD_EIO. */
int shd_safetensors_read(const shd_safetensors *file, const shd_st_tensor *tensor, uint64_t first,
                         uint64_t n, void *out, shd_error *err);

/* ---- writing ---- */

/* Lays out a file of these tensors, in this order: fills offset and bytes of each, and gives the
 * bytes that stand before the first (length and header, with {"format": "pt"} as metadata, padded
 * with blanks to a multiple of 8): *head (freed by the caller), *head_bytes. Returns the size of
 * the whole file. */
uint64_t shd_safetensors_layout(shd_st_tensor *tensors, uint32_t n, void **head,
                                uint64_t *head_bytes);

/* Writes exactly n bytes at `offset`. SHD_EIO says what the system said (no space left, ...). Any
 * thread. */
int shd_safetensors_write(int fd, const char *path, const void *data, uint64_t n, uint64_t offset,
                          shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

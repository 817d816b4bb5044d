/* Element types of tensors. Floor F1; pure. */
#ifndef SHD_KERNELS_DTYPE_H
#define SHD_KERNELS_DTYPE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum shd_dtype {
    SHD_F32 = 0,
    SHD_I32 = 1,
    SHD_F64 = 2,
    SHD_BF16 = 3,
    SHD_F16 = 4
} shd_dtype;

static inline size_t shd_dtype_size(shd_dtype dtype)
{
    return dtype == SHD_F64 ? 8 : dtype == SHD_BF16 || dtype == SHD_F16 ? 2 : 4;
}

/* "fp32", "int32", "fp64", "bf16", "fp16". Static storage. */
static inline const char *shd_dtype_name(shd_dtype dtype)
{
    return dtype == SHD_F32    ? "fp32"
           : dtype == SHD_I32  ? "int32"
           : dtype == SHD_F64  ? "fp64"
           : dtype == SHD_BF16 ? "bf16"
                               : "fp16";
}

#ifdef __cplusplus
}
#endif
#endif

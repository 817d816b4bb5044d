/* Element types of tensors. Floor F1; pure. */
#ifndef SHD_KERNELS_DTYPE_H
#define SHD_KERNELS_DTYPE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* SHD_BF16: bfloat16, the upper half of an fp32. SHD_F16: IEEE 754 binary16. */
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
    switch (dtype) {
    case SHD_F32:
        return "fp32";
    case SHD_I32:
        return "int32";
    case SHD_F64:
        return "fp64";
    case SHD_BF16:
        return "bf16";
    case SHD_F16:
        return "fp16";
    }
    return "?";
}

#ifdef __cplusplus
}
#endif
#endif

/* Element types of tensors. Floor F1; pure. */
#ifndef SHD_KERNELS_DTYPE_H
#define SHD_KERNELS_DTYPE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum shd_dtype { SHD_F32 = 0, SHD_I32 = 1, SHD_F64 = 2 } shd_dtype;

static inline size_t shd_dtype_size(shd_dtype dtype)
{
    return dtype == SHD_F64 ? 8 : 4;
}

/* "fp32", "int32", "fp64". Static storage. */
static inline const char *shd_dtype_name(shd_dtype dtype)
{
    return dtype == SHD_F32 ? "fp32" : dtype == SHD_I32 ? "int32" : "fp64";
}

#ifdef __cplusplus
}
#endif
#endif

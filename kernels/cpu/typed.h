/* Loads and stores of flat memory whose dtype (fp32, bf16, fp16) is an argument; the caller makes
 * it a constant with SHD_BY_DTYPE, so that no loop asks. Floor F1; pure. Included only by files
 * that are compiled per instruction set. */
#ifndef SHD_KERNELS_CPU_TYPED_H
#define SHD_KERNELS_CPU_TYPED_H

#include "kernels/cpu/half.h"
#include "kernels/dtype.h"

#define TYPED_INLINE static inline __attribute__((always_inline))

TYPED_INLINE vf typed_load(shd_dtype dtype, const void *p, int64_t i)
{
    return dtype == SHD_F32    ? v_load((const float *)p + i)
           : dtype == SHD_BF16 ? bf16_up(half_bits((const uint16_t *)p + i))
                               : fp16_up(half_bits((const uint16_t *)p + i));
}

TYPED_INLINE vf typed_load_n(shd_dtype dtype, const void *p, int64_t i, int64_t n)
{
    return dtype == SHD_F32    ? v_load_n((const float *)p + i, n)
           : dtype == SHD_BF16 ? bf16_up(half_bits_n((const uint16_t *)p + i, n))
                               : fp16_up(half_bits_n((const uint16_t *)p + i, n));
}

TYPED_INLINE void typed_store(shd_dtype dtype, void *p, int64_t i, vf x)
{
    if (dtype == SHD_F32) {
        v_store((float *)p + i, x);
        return;
    }
    const vu16 h = dtype == SHD_BF16 ? bf16_down(x) : fp16_down(x);
    memcpy((uint16_t *)p + i, &h, sizeof(h));
}

TYPED_INLINE void typed_store_n(shd_dtype dtype, void *p, int64_t i, vf x, int64_t n)
{
    if (dtype == SHD_F32) {
        v_store_n((float *)p + i, x, n);
        return;
    }
    half_put_n((uint16_t *)p + i, dtype == SHD_BF16 ? bf16_down(x) : fp16_down(x), n);
}

/* What storing and loading makes of x. */
TYPED_INLINE vf typed_round(shd_dtype dtype, vf x)
{
    return dtype == SHD_F32 ? x : dtype == SHD_BF16 ? bf16_up(bf16_down(x)) : fp16_up(fp16_down(x));
}

/* CALL(dtype) with dtype a constant. */
#define SHD_BY_DTYPE(dtype, CALL)                                                                  \
    switch (dtype) {                                                                               \
    case SHD_BF16:                                                                                 \
        CALL(SHD_BF16);                                                                            \
        break;                                                                                     \
    case SHD_F16:                                                                                  \
        CALL(SHD_F16);                                                                             \
        break;                                                                                     \
    default:                                                                                       \
        CALL(SHD_F32);                                                                             \
    }

/* CALL(to, from) with both dtypes constants. */
#define SHD_BY_DTYPES(to, from, CALL)                                                              \
    switch (from) {                                                                                \
    case SHD_BF16:                                                                                 \
        SHD_BY_DTYPE_FROM(to, SHD_BF16, CALL)                                                      \
        break;                                                                                     \
    case SHD_F16:                                                                                  \
        SHD_BY_DTYPE_FROM(to, SHD_F16, CALL)                                                       \
        break;                                                                                     \
    default:                                                                                       \
        SHD_BY_DTYPE_FROM(to, SHD_F32, CALL)                                                       \
    }
#define SHD_BY_DTYPE_FROM(to, FROM, CALL)                                                          \
    switch (to) {                                                                                  \
    case SHD_BF16:                                                                                 \
        CALL(SHD_BF16, FROM);                                                                      \
        break;                                                                                     \
    case SHD_F16:                                                                                  \
        CALL(SHD_F16, FROM);                                                                       \
        break;                                                                                     \
    default:                                                                                       \
        CALL(SHD_F32, FROM);                                                                       \
    }

#endif

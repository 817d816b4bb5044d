/* The element type of the compute table that a file is compiled for, and its way into and out of
 * vectors of fp32. For fp32 itself these are plain loads and stores. Floor F1; pure. Included only
 * by files that are compiled per instruction set and dtype. */
#ifndef SHD_KERNELS_CPU_ELT_H
#define SHD_KERNELS_CPU_ELT_H

#include "kernels/cpu/half.h"
#include "kernels/cpu/simd.h"

#if defined(SHD_ELT_F32)

#define ELT_DTYPE SHD_F32
typedef float elt;
static inline vf e_load(const elt *p)
{
    return v_load(p);
}
static inline vf e_load_n(const elt *p, int64_t n)
{
    return v_load_n(p, n);
}
static inline void e_store(elt *p, vf x)
{
    v_store(p, x);
}
static inline void e_store_n(elt *p, vf x, int64_t n)
{
    v_store_n(p, x, n);
}
static inline float e_get(const elt *p)
{
    return *p;
}
static inline void e_put(elt *p, float x)
{
    *p = x;
}
/* What storing and loading makes of x. */
static inline vf e_round(vf x)
{
    return x;
}

#else

#if defined(SHD_ELT_BF16)
#define ELT_DTYPE SHD_BF16
#define ELT_UP bf16_up
#define ELT_DOWN bf16_down
#elif defined(SHD_ELT_F16)
#define ELT_DTYPE SHD_F16
#define ELT_UP fp16_up
#define ELT_DOWN fp16_down
#else
#error "one of SHD_ELT_F32, SHD_ELT_BF16, SHD_ELT_F16 must be defined (kernels/cpu/BUILD)"
#endif

typedef uint16_t elt;
static inline vf e_load(const elt *p)
{
    return ELT_UP(half_bits(p));
}
static inline vf e_load_n(const elt *p, int64_t n)
{
    return ELT_UP(half_bits_n(p, n));
}
static inline void e_store(elt *p, vf x)
{
    const vu16 h = ELT_DOWN(x);
    memcpy(p, &h, sizeof(h));
}
static inline void e_store_n(elt *p, vf x, int64_t n)
{
    half_put_n(p, ELT_DOWN(x), n);
}
static inline float e_get(const elt *p)
{
    return ELT_UP(half_bits_n(p, 1))[0];
}
static inline void e_put(elt *p, float x)
{
    *p = ELT_DOWN(v_set1(x))[0];
}
static inline vf e_round(vf x)
{
    return ELT_UP(ELT_DOWN(x));
}

#endif

#endif

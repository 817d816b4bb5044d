/* bf16 and fp16 to and from vectors of fp32: every value exactly up, to the nearest (ties to even)
 * down, beyond the range to infinity, NaN to a quiet NaN. The same bits in every instruction set.
 * Floor F1; pure. Included only by files that are compiled per instruction set. */
#ifndef SHD_KERNELS_CPU_HALF_H
#define SHD_KERNELS_CPU_HALF_H

#include "kernels/cpu/simd.h"

typedef uint16_t vu16 __attribute__((vector_size(VL * 2)));
typedef uint32_t vu32 __attribute__((vector_size(VL * 4)));

static inline vu16 half_bits(const uint16_t *p)
{
    vu16 h;
    memcpy(&h, p, sizeof(h));
    return h;
}

#if VL == 16
static inline vu16 half_bits_n(const uint16_t *p, int64_t n)
{
    return (vu16)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1u), p);
}
static inline void half_put_n(uint16_t *p, vu16 h, int64_t n)
{
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1u), (__m256i)h);
}
#else
static inline vu16 half_bits_n(const uint16_t *p, int64_t n)
{
    uint16_t lanes[VL] = {0};
    memcpy(lanes, p, (size_t)n * sizeof(*p));
    return half_bits(lanes);
}
static inline void half_put_n(uint16_t *p, vu16 h, int64_t n)
{
    memcpy(p, &h, (size_t)n * sizeof(*p));
}
#endif

static inline vu32 select_u32(vu32 mask, vu32 yes, vu32 no)
{
    return (mask & yes) | (~mask & no);
}

/* Halves to the lower bits of 32-bit lanes, and lanes below 2^16 to halves. */
#if VL == 16
static inline vu32 widen_bits(vu16 h)
{
    return (vu32)_mm512_cvtepu16_epi32((__m256i)h);
}
static inline vu16 narrow_bits(vu32 w)
{
    return (vu16)_mm512_cvtepi32_epi16((__m512i)w);
}
#elif VL == 8
static inline vu32 widen_bits(vu16 h)
{
    return (vu32)_mm256_cvtepu16_epi32((__m128i)h);
}
static inline vu16 narrow_bits(vu32 w)
{
    const __m256i x = (__m256i)w;
    return (vu16)_mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}
#else
static inline vu32 widen_bits(vu16 h)
{
    return __builtin_convertvector(h, vu32);
}
static inline vu16 narrow_bits(vu32 w)
{
    return __builtin_convertvector(w, vu16);
}
#endif

static inline vf bf16_up(vu16 h)
{
    return (vf)(widen_bits(h) << 16);
}

static inline vu16 bf16_down(vf x)
{
    const vu32 u = (vu32)x;
    const vu32 rounded = u + 0x7fffu + ((u >> 16) & 1u);
#if VL == 16
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const vu32 h =
        (vu32)_mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)u, _mm512_set1_epi32(0x400000));
#else
    const vu32 h = select_u32((vu32)(x != x), u | 0x400000u, rounded);
#endif
    return narrow_bits(h >> 16);
}

#if VL == 16
static inline vf fp16_up(vu16 h)
{
    return _mm512_cvtph_ps((__m256i)h);
}
static inline vu16 fp16_down(vf x)
{
    return (vu16)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif VL == 8
static inline vf fp16_up(vu16 h)
{
    return _mm256_cvtph_ps((__m128i)h);
}
static inline vu16 fp16_down(vf x)
{
    return (vu16)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}
#else
static inline vf fp16_up(vu16 h)
{
    const vu32 w = widen_bits(h);
    const vu32 sign = (w & 0x8000u) << 16, magnitude = (w & 0x7fffu) << 13;
    /* 2^112 moves the exponent and makes subnormals normal, exactly. */
    const vu32 finite = (vu32)((vf)magnitude * v_set1(0x1p112f));
    const vu32 special = (vu32)(magnitude >= 0x0f800000u), nan = (vu32)(magnitude > 0x0f800000u);
    const vu32 other = magnitude | 0x7f800000u | (nan & 0x400000u);
    return (vf)(select_u32(special, other, finite) | sign);
}
static inline vu16 fp16_down(vf x)
{
    const vu32 u = (vu32)x, sign = u & 0x80000000u, magnitude = u ^ sign;
    const vu32 normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    /* Adding ½ leaves the rounded count of 2^-24 in the lowest bits. */
    const vu32 small = (vu32)((vf)magnitude + v_set1(0.5f)) - 0x3f000000u;
    const vu32 nan = (vu32)(magnitude > 0x7f800000u), is_small = (vu32)(magnitude < 0x38800000u);
    const vu32 is_large = (vu32)(magnitude >= 0x47800000u) & ~nan;
    vu32 h = select_u32(is_small, small, normal);
    h = select_u32(is_large, (vu32){0} + 0x7c00u, h);
    h = select_u32(nan, 0x7e00u | ((magnitude >> 13) & 0x3ffu), h);
    return narrow_bits(h | (sign >> 16));
}
#endif

#endif

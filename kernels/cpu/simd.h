/* One vector type per instruction set and the arithmetic on it. An element's result depends on its
 * value alone: remainders go through the same vector code with the missing lanes filled.
 * Floor F1; pure. Included only by files that are compiled per instruction set. */
#ifndef SHD_KERNELS_CPU_SIMD_H
#define SHD_KERNELS_CPU_SIMD_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) && defined(__AVX512DQ__)

#define VL 16
typedef __m512 vf;
typedef __m512i vi;
typedef __m512d vd;
static inline vf v_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
static inline vf v_load_n(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
}
static inline void v_store_n(float *p, vf x, int64_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), x);
}
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
static inline vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
static inline vf v_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
static inline vi v_round_int(vf x)
{
    return _mm512_cvtps_epi32(x);
}
static inline vf v_from_int(vi x)
{
    return _mm512_cvtepi32_ps(x);
}
static inline vf v_pow2(vi n)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
/* a < b ? x : y */
static inline vf v_if_less(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
static inline vd v_low_f64(vf x)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(x));
}
static inline vd v_high_f64(vf x)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
}
/* Streaming store; p is aligned to the vector. */
static inline void v_stream(float *p, vf x)
{
    _mm512_stream_ps(p, x);
}

#elif defined(__AVX2__) && defined(__FMA__)

#define VL 8
typedef __m256 vf;
typedef __m256i vi;
typedef __m256d vd;
static inline vf v_set1(float x)
{
    return _mm256_set1_ps(x);
}
static inline vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}
static inline vi v_first_n(int64_t n)
{
    const vi lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}
static inline vf v_load_n(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, v_first_n(n));
}
static inline void v_store_n(float *p, vf x, int64_t n)
{
    _mm256_maskstore_ps(p, v_first_n(n), x);
}
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
static inline vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
static inline vf v_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}
static inline vi v_round_int(vf x)
{
    return _mm256_cvtps_epi32(x);
}
static inline vf v_from_int(vi x)
{
    return _mm256_cvtepi32_ps(x);
}
static inline vf v_pow2(vi n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
static inline vf v_if_less(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
static inline vd v_low_f64(vf x)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
}
static inline vd v_high_f64(vf x)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}
static inline void v_stream(float *p, vf x)
{
    _mm256_stream_ps(p, x);
}

#else

#define VL 4
typedef __m128 vf;
typedef __m128i vi;
typedef __m128d vd;
static inline vf v_set1(float x)
{
    return _mm_set1_ps(x);
}
static inline vf v_load(const float *p)
{
    return _mm_loadu_ps(p);
}
static inline void v_store(float *p, vf x)
{
    _mm_storeu_ps(p, x);
}
static inline vf v_load_n(const float *p, int64_t n)
{
    float lanes[VL] = {0.0f, 0.0f, 0.0f, 0.0f};
    memcpy(lanes, p, (size_t)n * sizeof(float));
    return _mm_loadu_ps(lanes);
}
static inline void v_store_n(float *p, vf x, int64_t n)
{
    float lanes[VL];
    _mm_storeu_ps(lanes, x);
    memcpy(p, lanes, (size_t)n * sizeof(float));
}
/* No fused form here: two roundings, in every lane alike. */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm_add_ps(_mm_mul_ps(a, b), c);
}
static inline vf v_max(vf a, vf b)
{
    return _mm_max_ps(a, b);
}
static inline vf v_min(vf a, vf b)
{
    return _mm_min_ps(a, b);
}
static inline vf v_sqrt(vf a)
{
    return _mm_sqrt_ps(a);
}
static inline vi v_round_int(vf x)
{
    return _mm_cvtps_epi32(x);
}
static inline vf v_from_int(vi x)
{
    return _mm_cvtepi32_ps(x);
}
static inline vf v_pow2(vi n)
{
    return _mm_castsi128_ps(_mm_slli_epi32(_mm_add_epi32(n, _mm_set1_epi32(127)), 23));
}
static inline vf v_if_less(vf a, vf b, vf x, vf y)
{
    const __m128 less = _mm_cmplt_ps(a, b);
    return _mm_or_ps(_mm_and_ps(less, x), _mm_andnot_ps(less, y));
}
static inline vd v_low_f64(vf x)
{
    return _mm_cvtps_pd(x);
}
static inline vd v_high_f64(vf x)
{
    return _mm_cvtps_pd(_mm_movehl_ps(x, x));
}
static inline void v_stream(float *p, vf x)
{
    _mm_stream_ps(p, x);
}

#endif

/* Sum of the lanes: halves are added until one lane is left, in every instruction set alike. */
static inline float v_sum_128(__m128 x)
{
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

static inline float v_largest_128(__m128 x)
{
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

#if VL == 4
static inline float v_sum(vf x)
{
    return v_sum_128(x);
}
static inline float v_largest(vf x)
{
    return v_largest_128(x);
}
#else
static inline float v_sum_256(__m256 x)
{
    return v_sum_128(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

static inline float v_largest_256(__m256 x)
{
    return v_largest_128(_mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
#if VL == 8
static inline float v_sum(vf x)
{
    return v_sum_256(x);
}
static inline float v_largest(vf x)
{
    return v_largest_256(x);
}
#else
static inline float v_sum(vf x)
{
    return v_sum_256(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}

static inline float v_largest(vf x)
{
    return v_largest_256(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}
#endif
#endif

/* e^x, relative error below 2 units in the last place for x in [-87.3, 88]; 0 below, e^88 above;
 * NaN stays NaN. Cody-Waite reduction to |r| <= ln2/2, then the Taylor-like minimax polynomial of
 * degree 6 for e^r. */
static inline vf v_exp(vf x)
{
    const vf low = v_set1(-87.3365f);
    /* v_max and v_min give their second operand when one is NaN. */
    const vf c = v_max(low, v_min(v_set1(88.0f), x));
    const vi n = v_round_int(c * v_set1(1.44269504f));
    const vf nf = v_from_int(n);
    vf r = v_fma(nf, v_set1(-0.693359375f), c);
    r = v_fma(nf, v_set1(2.12194440e-4f), r);
    vf p = v_set1(1.9875691500e-4f);
    p = v_fma(p, r, v_set1(1.3981999507e-3f));
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_fma(p * r, r, r) + v_set1(1.0f);
    return v_if_less(x, low, v_set1(0.0f), p * v_pow2(n));
}

/* 1 / (1 + e^-x), a few units in the last place. */
static inline vf v_sigmoid(vf x)
{
    return v_set1(1.0f) / (v_set1(1.0f) + v_exp(v_set1(0.0f) - x));
}

#endif

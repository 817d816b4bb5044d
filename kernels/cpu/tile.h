/* Small matrix products whose factors lie in cache: what attention is made of. The library's
 * products are tuned for large matrices; on heads of 64 numbers and some hundred keys they reach
 * about half the speed of these tiles, cannot leave out the half of a diagonal block that is
 * masked, and pack the same keys again for every block of queries.
 * Floor F1; pure. Included only by files that are compiled per instruction set. */
#ifndef SHD_KERNELS_CPU_TILE_H
#define SHD_KERNELS_CPU_TILE_H

#include "kernels/cpu/simd.h"

/* Rows × vectors of a tile of results: as many as the registers hold. */
#if VL == 16
#define TILE_ROWS 8
#else
#define TILE_ROWS 4
#endif
#define TILE_VECTORS 2

static inline int64_t tile_pad(int64_t n)
{
    return (n + VL - 1) / VL * VL;
}

/* c[i, :] = alpha · Σ_{k0 <= k < k1} a[i·ai + k·ak] · b[k, :] (+ c[i, :]) for `rows` rows and
 * `vectors` vectors, both constants of the caller. */
static inline __attribute__((always_inline)) void
tile_fixed(int rows, int vectors, float alpha, const float *a, int64_t ai, int64_t ak,
           const float *b, int64_t ldb, int64_t k0, int64_t k1, float *c, int64_t ldc, int add)
{
    vf sum[TILE_ROWS][TILE_VECTORS];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vectors; j++) {
            sum[i][j] = v_set1(0.0f);
        }
    }
    for (int64_t k = k0; k < k1; k++) {
        vf column[TILE_VECTORS];
        for (int j = 0; j < vectors; j++) {
            column[j] = v_load(b + k * ldb + j * VL);
        }
        for (int i = 0; i < rows; i++) {
            const vf x = v_set1(a[i * ai + k * ak]);
            for (int j = 0; j < vectors; j++) {
                sum[i][j] = v_fma(x, column[j], sum[i][j]);
            }
        }
    }
    const vf scale = v_set1(alpha);
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vectors; j++) {
            vf x = sum[i][j] * scale;
            if (add) {
                x += v_load(c + i * ldc + j * VL);
            }
            v_store(c + i * ldc + j * VL, x);
        }
    }
}

/* The same for any number of rows up to TILE_ROWS and any number of columns, rounded up to whole
 * vectors: b and c must have room for these. */
static inline void tile_product(int64_t rows, int64_t columns, float alpha, const float *a,
                                int64_t ai, int64_t ak, const float *b, int64_t ldb, int64_t k0,
                                int64_t k1, float *c, int64_t ldc, int add)
{
    for (int64_t j = 0; j < columns; j += TILE_VECTORS * VL) {
        const int one = columns - j <= VL;
        if (rows == TILE_ROWS) {
            if (one) {
                tile_fixed(TILE_ROWS, 1, alpha, a, ai, ak, b + j, ldb, k0, k1, c + j, ldc, add);
            } else {
                tile_fixed(TILE_ROWS, TILE_VECTORS, alpha, a, ai, ak, b + j, ldb, k0, k1, c + j,
                           ldc, add);
            }
            continue;
        }
        for (int64_t i = 0; i < rows; i++) {
            if (one) {
                tile_fixed(1, 1, alpha, a + i * ai, ai, ak, b + j, ldb, k0, k1, c + i * ldc + j,
                           ldc, add);
            } else {
                tile_fixed(1, TILE_VECTORS, alpha, a + i * ai, ai, ak, b + j, ldb, k0, k1,
                           c + i * ldc + j, ldc, add);
            }
        }
    }
}

/* One row of n floats; the rest up to a whole vector becomes 0. */
static inline void tile_copy_row(float *to, const float *from, int64_t n)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        v_store(to + i, v_load(from + i));
    }
    if (i < n) {
        v_store(to + i, v_load_n(from + i, n - i));
    }
}

/* to[n, ldt] = from[m, ldf] transposed; columns m up to a whole vector become 0. */
static inline void tile_transpose(float *to, int64_t ldt, const float *from, int64_t ldf, int64_t m,
                                  int64_t n)
{
    for (int64_t i = 0; i < tile_pad(m); i += 4) {
        int64_t j = 0;
        if (i + 4 <= m) {
            const float *f = from + i * ldf;
            for (; j + 4 <= n; j += 4) {
                __m128 r0 = _mm_loadu_ps(f + j), r1 = _mm_loadu_ps(f + ldf + j);
                __m128 r2 = _mm_loadu_ps(f + 2 * ldf + j), r3 = _mm_loadu_ps(f + 3 * ldf + j);
                _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
                _mm_storeu_ps(to + j * ldt + i, r0);
                _mm_storeu_ps(to + (j + 1) * ldt + i, r1);
                _mm_storeu_ps(to + (j + 2) * ldt + i, r2);
                _mm_storeu_ps(to + (j + 3) * ldt + i, r3);
            }
        }
        for (; j < n; j++) {
            for (int64_t r = i; r < i + 4; r++) {
                to[j * ldt + r] = r < m ? from[r * ldf + j] : 0.0f;
            }
        }
    }
}

#endif

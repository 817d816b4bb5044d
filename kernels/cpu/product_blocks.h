/* What the pieces of products in half precision share: a block of results stays fp32 over the whole
 * length of the sums and is rounded once, with bias, residual and old contents already in it.
 * Floor F1; pure. Included only by product_half.c and product_bf16.c. */
#ifndef SHD_KERNELS_CPU_PRODUCT_BLOCKS_H
#define SHD_KERNELS_CPU_PRODUCT_BLOCKS_H

#include "kernels/cpu/product.h"

#include <string.h>

/* Sides of a block: large enough that making it ready is little beside multiplying, small enough
 * that three blocks stay in cache. */
#define BLOCK 512

static inline int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* Scratch in floats of one thread for products over any two of the three lengths: a block of each.
 * The same in every instruction set, so that plans are. */
static inline int64_t block_floats(int64_t R, int64_t N, int64_t K)
{
    const int64_t r = at_most(R, BLOCK), n = at_most(N, BLOCK), k = at_most(K, BLOCK);
    return (r * n + n * k + k * r + 63) / 64 * 64;
}

static inline void narrow(elt *to, const float *from, int64_t n)
{
    int64_t j = 0;
    for (; j + VL <= n; j += VL) {
        e_store(to + j, v_load(from + j));
    }
    if (j < n) {
        e_store_n(to + j, v_load_n(from + j, n - j), n - j);
    }
}

/* Whether anything is in the results before the product. */
static inline int starts(const shd_product *p)
{
    return p->acc || p->bias != NULL || p->residual != NULL;
}

/* to[j] = what is in the results before the product: bias, residual, old contents. */
static inline void start_row(const shd_product *p, float *to, int64_t row, int64_t n0, int64_t n)
{
    const int64_t at = row * p->N + n0;
    for (int64_t j = 0; j < n; j += VL) {
        const int64_t k = at_most(n - j, VL);
        vf x = v_set1(0.0f);
        if (p->acc && p->c_f32) {
            x = v_load_n((const float *)p->c + at + j, k);
        } else if (p->acc) {
            x = e_load_n((const elt *)p->c + at + j, k);
        }
        if (p->residual != NULL) {
            x += e_load_n(p->residual + at + j, k);
        }
        if (p->bias != NULL) {
            x += e_load_n(p->bias + n0 + j, k);
        }
        v_store_n(to + j, x, k);
    }
}

typedef void (*block_fn)(const shd_product *p, int64_t m0, int64_t n0, int64_t m, int64_t n,
                         float *scratch);

/* Runs the blocks of a piece, one after another, with the worker's scratch. */
static inline void each_block(const shd_product *p, int64_t m0, int64_t n0, int64_t m, int64_t n,
                              int worker, block_fn run)
{
    float *scratch = p->ws + worker * p->ws_thread;
    for (int64_t i = 0; i < m; i += BLOCK) {
        for (int64_t j = 0; j < n; j += BLOCK) {
            run(p, m0 + i, n0 + j, at_most(m - i, BLOCK), at_most(n - j, BLOCK), scratch);
        }
    }
}

/* A block of m × n results that is complete. */
static inline void finish_block(const shd_product *p, const float *from, int64_t m0, int64_t n0,
                                int64_t m, int64_t n)
{
    for (int64_t i = 0; i < m; i++) {
        const int64_t at = (m0 + i) * p->N + n0;
        if (p->c_f32) {
            memcpy((float *)p->c + at, from + i * n, (size_t)n * sizeof(float));
        } else {
            narrow((elt *)p->c + at, from + i * n, n);
        }
    }
}

#endif

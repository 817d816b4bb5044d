/* One matrix product of a linear layer, cut on a grid of output pieces. Floor F1; private to the
 * linear ops, which are compiled per instruction set and dtype. */
#ifndef SHD_KERNELS_CPU_PRODUCT_H
#define SHD_KERNELS_CPU_PRODUCT_H

#include "kernels/cpu/elt.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/isa.h"

/* C[M,N] = op(A) · op(B) + bias + residual (+ C). */
typedef struct shd_product {
    int trans_a, trans_b;
    int64_t M, N, K;
    const void *a; /* elt, or float when a_f32 */
    const elt *b;
    void *c; /* elt, or float when c_f32; NULL: no product */
    int64_t lda, ldb;
    int a_f32, c_f32;
    const elt *bias, *residual; /* [N], [M,N]; both may be NULL */
    int acc;
    shd_gemm_grid grid;
    /* Column sums of `sums_of` [rows, width], done by pieces after those of the product. */
    elt *sums;
    const elt *sums_of;
    int64_t sums_rows, sums_width;
    float *ws;
    int64_t ws_thread; /* floats of one thread */
} shd_product;

/* Rows [m0, m0 + m) and columns [n0, n0 + n) of C. */
void SHD_FN(product_piece)(const shd_product *p, int64_t m0, int64_t n0, int64_t m, int64_t n,
                           int worker);

/* Scratch in floats of one thread for products over any two of the three lengths. */
int64_t SHD_FN(product_floats)(int64_t R, int64_t N, int64_t K);

#endif

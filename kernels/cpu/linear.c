/* Linear layers: BLAS on a grid of output pieces; bias and residual are laid into a piece before
 * its product is added, while the piece is in cache. */
#include "daemon/base/pool.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops_decl.h"

#include <string.h>

/* C[M,N] = op(A) · op(B) (+ C), cut on `grid`. */
typedef struct product {
    int trans_a, trans_b;
    int64_t M, N, K;
    const float *a, *b;
    int64_t lda, ldb;
    float *c;
    const float *bias, *residual; /* [N], [M,N]; both may be NULL */
    int acc;
    shd_gemm_grid grid;
    /* Column sums of `sums_of` [rows, width], done by pieces after those of the product. */
    float *sums;
    const float *sums_of;
    int64_t sums_rows, sums_width;
} product;

/* Columns of one piece of the column sums: a few cache lines of every row. */
#define SUM_COLUMNS 128

static void column_sums(const product *p, int64_t piece)
{
    const int64_t c0 = piece * SUM_COLUMNS;
    const int64_t left = p->sums_width - c0;
    const int64_t width = left < SUM_COLUMNS ? left : SUM_COLUMNS;
    float sums[SUM_COLUMNS] = {0.0f};
    for (int64_t r = 0; r < p->sums_rows; r++) {
        const float *row = p->sums_of + r * p->sums_width + c0;
        if (width == SUM_COLUMNS) {
            for (int64_t j = 0; j < SUM_COLUMNS; j++) {
                sums[j] += row[j];
            }
        } else {
            for (int64_t j = 0; j < width; j++) {
                sums[j] += row[j];
            }
        }
    }
    for (int64_t j = 0; j < width; j++) {
        p->sums[c0 + j] = p->acc ? p->sums[c0 + j] + sums[j] : sums[j];
    }
}

static int prepare(const product *p, int64_t m0, int64_t n0, int64_t m, int64_t n)
{
    if (p->bias == NULL && p->residual == NULL) {
        return p->acc;
    }
    for (int64_t i = 0; i < m; i++) {
        float *c = p->c + (m0 + i) * p->N + n0;
        const float *r = p->residual != NULL ? p->residual + (m0 + i) * p->N + n0 : NULL;
        if (r == NULL) {
            memcpy(c, p->bias + n0, (size_t)n * sizeof(float));
        } else if (p->bias != NULL) {
            for (int64_t j = 0; j < n; j++) {
                c[j] = r[j] + p->bias[n0 + j];
            }
        } else if (r != c) {
            memcpy(c, r, (size_t)n * sizeof(float));
        }
    }
    return 1;
}

static void run_piece(void *arg, int64_t piece, int worker)
{
    const product *p = arg;
    const shd_gemm_grid *g = &p->grid;
    (void)worker;
    if (piece >= g->rows * g->cols) {
        column_sums(p, piece - g->rows * g->cols);
        return;
    }
    const int64_t m0 = piece / g->cols * g->row_step, n0 = piece % g->cols * g->col_step;
    const int64_t m = p->M - m0 < g->row_step ? p->M - m0 : g->row_step;
    const int64_t n = p->N - n0 < g->col_step ? p->N - n0 : g->col_step;
    const int add = prepare(p, m0, n0, m, n);
    const float *a = p->trans_a ? p->a + m0 : p->a + m0 * p->lda;
    const float *b = p->trans_b ? p->b + n0 * p->ldb : p->b + n0;
    shd_cpu_gemm(p->trans_a, p->trans_b, m, n, p->K, 1.0f, a, p->lda, b, p->ldb, add ? 1.0f : 0.0f,
                 p->c + m0 * p->N + n0, p->N);
}

static void run_product(const shd_opctx *ctx, product *p)
{
    p->grid = shd_cpu_gemm_grid(p->trans_b, p->M, p->N, p->K);
    int64_t pieces = p->grid.rows * p->grid.cols;
    if (p->sums != NULL) {
        pieces += (p->sums_width + SUM_COLUMNS - 1) / SUM_COLUMNS;
    }
    shd_pool_run(ctx->pool, pieces, run_piece, p);
}

void SHD_FN(linear_forward)(const shd_opctx *ctx, float *out, const float *x, const float *w,
                            const float *bias, const float *residual, int64_t R, int64_t N,
                            int64_t K, int w_kn)
{
    product p = {
        .trans_b = !w_kn,
        .M = R,
        .N = N,
        .K = K,
        .a = x,
        .lda = K,
        .b = w,
        .ldb = w_kn ? N : K,
        .c = out,
        .bias = bias,
        .residual = residual,
    };
    run_product(ctx, &p);
}

void SHD_FN(linear_backward_input)(const shd_opctx *ctx, float *dx, const float *dout,
                                   const float *w, int64_t R, int64_t N, int64_t K, int w_kn,
                                   int acc)
{
    product p = {
        .trans_b = w_kn,
        .M = R,
        .N = K,
        .K = N,
        .a = dout,
        .lda = N,
        .b = w,
        .ldb = w_kn ? N : K,
        .c = dx,
        .acc = acc,
    };
    run_product(ctx, &p);
}

void SHD_FN(linear_backward_weight)(const shd_opctx *ctx, float *dw, float *dbias,
                                    const float *dout, const float *x, int64_t R, int64_t N,
                                    int64_t K, int w_kn, int acc, void *ws)
{
    (void)ws;
    product p = {
        .trans_a = 1,
        .M = w_kn ? K : N,
        .N = w_kn ? N : K,
        .K = R,
        .a = w_kn ? x : dout,
        .lda = w_kn ? K : N,
        .b = w_kn ? dout : x,
        .ldb = w_kn ? N : K,
        .c = dw,
        .acc = acc,
        .sums = dbias,
        .sums_of = dout,
        .sums_rows = R,
        .sums_width = N,
    };
    run_product(ctx, &p);
}

size_t SHD_FN(linear_backward_weight_ws)(const shd_opctx *ctx, int64_t R, int64_t N, int64_t K)
{
    (void)ctx, (void)R, (void)N, (void)K;
    return 0;
}

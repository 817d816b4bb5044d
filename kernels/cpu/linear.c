/* Linear layers: products on a grid of output pieces (product_f32.c, product_half.c). */
#include "daemon/base/pool.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/product.h"

/* Columns of one piece of the column sums: a few cache lines of every row. */
#define SUM_COLUMNS 128

static void column_sums(const shd_product *p, int64_t piece)
{
    const int64_t c0 = piece * SUM_COLUMNS;
    const int64_t left = p->sums_width - c0;
    const int64_t width = left < SUM_COLUMNS ? left : SUM_COLUMNS;
    const int64_t full = width / VL, tail = width - full * VL;
    vf sums[SUM_COLUMNS / VL];
    for (int64_t j = 0; j < SUM_COLUMNS / VL; j++) {
        sums[j] = v_set1(0.0f);
    }
    for (int64_t r = 0; r < p->sums_rows; r++) {
        const elt *row = p->sums_of + r * p->sums_width + c0;
        for (int64_t j = 0; j < full; j++) {
            sums[j] += e_load(row + j * VL);
        }
        if (tail != 0) {
            sums[full] += e_load_n(row + full * VL, tail);
        }
    }
    elt *out = p->sums + c0;
    for (int64_t j = 0; j * VL < width; j++) {
        const int64_t n = j < full ? VL : tail;
        if (p->acc) {
            sums[j] += e_load_n(out + j * VL, n);
        }
        e_store_n(out + j * VL, sums[j], n);
    }
}

static void run_piece(void *arg, int64_t piece, int worker)
{
    const shd_product *p = arg;
    const shd_gemm_grid *g = &p->grid;
    if (piece >= g->rows * g->cols) {
        column_sums(p, piece - g->rows * g->cols);
        return;
    }
    const int64_t m0 = piece / g->cols * g->row_step, n0 = piece % g->cols * g->col_step;
    const int64_t m = p->M - m0 < g->row_step ? p->M - m0 : g->row_step;
    const int64_t n = p->N - n0 < g->col_step ? p->N - n0 : g->col_step;
    SHD_FN(product_piece)(p, m0, n0, m, n, worker);
}

static void run_product(const shd_opctx *ctx, shd_product *p, void *ws)
{
    if (p->c != NULL) {
        p->grid = shd_cpu_gemm_grid(p->trans_b, p->M, p->N, p->K);
    }
    int64_t pieces = p->grid.rows * p->grid.cols;
    if (p->sums != NULL) {
        pieces += (p->sums_width + SUM_COLUMNS - 1) / SUM_COLUMNS;
    }
    p->ws = ws;
    p->ws_thread = SHD_FN(product_floats)(p->M, p->N, p->K);
    if (pieces > 0) {
        shd_pool_run(ctx->pool, pieces, run_piece, p);
    }
}

void SHD_FN(linear_forward)(const shd_opctx *ctx, void *out, const void *x, const void *w,
                            const void *bias, const void *residual, int64_t R, int64_t N, int64_t K,
                            int w_kn, void *ws)
{
    shd_product p = {
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
    run_product(ctx, &p, ws);
}

void SHD_FN(linear_backward_input)(const shd_opctx *ctx, void *dx, const void *dout, const void *w,
                                   int64_t R, int64_t N, int64_t K, int w_kn, int acc, void *ws)
{
    shd_product p = {
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
    run_product(ctx, &p, ws);
}

void SHD_FN(linear_backward_weight)(const shd_opctx *ctx, void *dw, void *dbias, const void *dout,
                                    const void *x, int64_t R, int64_t N, int64_t K, int w_kn,
                                    int acc, void *ws)
{
    shd_product p = {
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
    run_product(ctx, &p, ws);
}

size_t SHD_FN(linear_ws)(const shd_opctx *ctx, int64_t R, int64_t N, int64_t K)
{
    return (size_t)(SHD_FN(product_floats)(R, N, K) * shd_pool_nthreads(ctx->pool)) * sizeof(float);
}

void SHD_FN(head_forward)(const shd_opctx *ctx, float *logits, const void *x, const void *w,
                          int64_t R, int64_t V, int64_t K, void *ws)
{
    shd_product p = {
        .trans_b = 1,
        .M = R,
        .N = V,
        .K = K,
        .a = x,
        .lda = K,
        .b = w,
        .ldb = K,
        .c = logits,
        .c_f32 = 1,
    };
    run_product(ctx, &p, ws);
}

void SHD_FN(head_backward)(const shd_opctx *ctx, void *dx, float *dw, const float *dlogits,
                           const void *x, const void *w, int64_t R, int64_t V, int64_t K,
                           int acc_dw, void *ws)
{
    shd_product weight = {
        .trans_a = 1,
        .M = V,
        .N = K,
        .K = R,
        .a = dlogits,
        .a_f32 = 1,
        .lda = V,
        .b = x,
        .ldb = K,
        .c = dw,
        .c_f32 = 1,
        .acc = acc_dw,
    };
    shd_product input = {
        .M = R,
        .N = K,
        .K = V,
        .a = dlogits,
        .a_f32 = 1,
        .lda = V,
        .b = w,
        .ldb = K,
        .c = dx,
    };
    run_product(ctx, &weight, ws);
    run_product(ctx, &input, ws);
}

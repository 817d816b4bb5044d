#include "kernels/cpu/gemm.h"

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

/* The library would share one product among OpenMP threads; ours are the rank's, so each of them
 * tells OpenMP once that it stands alone. */
static _Thread_local int alone;

void shd_cpu_gemm(int trans_a, int trans_b, int64_t M, int64_t N, int64_t K, float alpha,
                  const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                  int64_t ldc)
{
    if (!alone) {
        omp_set_num_threads(1);
        alone = 1;
    }
    const dnnl_status_t rc = dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', M, N, K, alpha, a,
                                        lda, b, ldb, beta, c, ldc);
    if (rc != dnnl_success) {
        fprintf(stderr, "dnnl_sgemm %lld x %lld x %lld failed: status %d\n", (long long)M,
                (long long)N, (long long)K, (int)rc);
        abort();
    }
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

shd_gemm_grid shd_cpu_gemm_grid(int trans_b, int64_t M, int64_t N, int64_t K)
{
    shd_gemm_grid best = {1, 1, M, N};
    const double area = (double)M * (double)N;
    /* Below this a second thread costs more than it brings. */
    if (area * (double)K < 5e5) {
        return best;
    }
    const int64_t wanted = area < 8.0 * 32768.0 ? 4 : 8;
    /* Narrower pieces starve the library's kernel, and the panels of a transposed B are expensive
     * to pack, so that each piece must have many rows to use them on. */
    const int64_t row_pieces = most(1, M / (trans_b ? 512 : 128));
    const int64_t col_pieces = most(1, N / 96);
    double best_cost = 0.0;
    for (int64_t rows = 1; rows <= row_pieces && rows <= wanted; rows *= 2) {
        int64_t cols = 1;
        while (cols * 2 <= col_pieces && rows * cols * 2 <= wanted) {
            cols *= 2;
        }
        /* Elements packed in all: A once for each column of pieces, B once for each row. */
        const double cost = (double)cols * (double)M + (double)rows * (double)N * (trans_b ? 3 : 1);
        const int64_t pieces = rows * cols, so_far = best.rows * best.cols;
        if (best_cost == 0.0 || pieces > so_far || (pieces == so_far && cost < best_cost)) {
            best = (shd_gemm_grid){.rows = rows, .cols = cols};
            best_cost = cost;
        }
    }
    /* Whole register tiles of the library's widest kernel. */
    best.row_step = round_up((M + best.rows - 1) / best.rows, 8);
    best.col_step = round_up((N + best.cols - 1) / best.cols, 48);
    best.rows = (M + best.row_step - 1) / best.row_step;
    best.cols = (N + best.col_step - 1) / best.col_step;
    return best;
}

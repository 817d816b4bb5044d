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

shd_gemm_grid shd_cpu_gemm_grid(int64_t M, int64_t N, int64_t K)
{
    shd_gemm_grid g = {1, 1, M, N};
    /* Below this a second thread costs more than it brings. */
    if ((double)M * (double)N * (double)K < 1e6) {
        return g;
    }
    /* Halve the longer side until there are eight pieces or they become too small. */
    while (g.rows * g.cols < 8) {
        const int64_t rows = (M + g.rows - 1) / g.rows, cols = (N + g.cols - 1) / g.cols;
        if (cols >= rows && cols >= 128) {
            g.cols *= 2;
        } else if (rows >= 96) {
            g.rows *= 2;
        } else {
            break;
        }
    }
    g.row_step = round_up((M + g.rows - 1) / g.rows, 16);
    g.col_step = round_up((N + g.cols - 1) / g.cols, 48);
    g.rows = (M + g.row_step - 1) / g.row_step;
    g.cols = (N + g.col_step - 1) / g.col_step;
    return g;
}

/* Matrix products by BLAS (oneDNN's sgemm, run serially in the calling thread) and the grid on
 * which an op cuts a product. Floor F1; any thread. */
#ifndef SHD_KERNELS_CPU_GEMM_H
#define SHD_KERNELS_CPU_GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* C[M,N] = alpha * op(A)[M,K] · op(B)[K,N] + beta * C, row-major; op transposes when the flag is
 * set. beta == 0 does not read C. K == 0 leaves beta * C. */
void shd_cpu_gemm(int trans_a, int trans_b, int64_t M, int64_t N, int64_t K, float alpha,
                  const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                  int64_t ldc);

/* A grid over an M×N result: depends on the shape alone, so that every number of threads computes
 * the same pieces. */
typedef struct shd_gemm_grid {
    int64_t rows, cols; /* pieces along M and N */
    int64_t row_step, col_step;
} shd_gemm_grid;

/* `trans_b`: the product reads its second factor transposed. */
shd_gemm_grid shd_cpu_gemm_grid(int trans_b, int64_t M, int64_t N, int64_t K);

#ifdef __cplusplus
}
#endif
#endif

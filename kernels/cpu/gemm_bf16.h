/* Products of bf16 matrices summed in fp32, by the processor's own bf16 instructions (oneDNN's
 * matmul, run serially in the calling thread). Floor F1; any thread. */
#ifndef SHD_KERNELS_CPU_GEMM_BF16_H
#define SHD_KERNELS_CPU_GEMM_BF16_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* C[M,N] = op(A)[M,K] · op(B)[K,N] (+ C when `add`), row-major; op transposes when the flag is set.
 * M, N, K > 0. Without `add` C is not read. Operands that are subnormal in bf16 count as 0. The
 * bits depend on the operands' values, the lengths, row distances and flags alone. What the library
 * prepares for a shape is kept by each thread, for a bounded number of shapes, until the thread
 * ends. */
void shd_cpu_gemm_bf16(int trans_a, int trans_b, int64_t M, int64_t N, int64_t K, const uint16_t *a,
                       int64_t lda, const uint16_t *b, int64_t ldb, int add, float *c, int64_t ldc);

/* Which instructions the library multiplies bf16 with on this processor. */
typedef enum shd_bf16_kind {
    SHD_BF16_WIDENED = 0, /* none: fp32 ones */
    SHD_BF16_AVX512 = 1,
    SHD_BF16_AMX = 2
} shd_bf16_kind;

shd_bf16_kind shd_cpu_bf16_kind(void);

#ifdef __cplusplus
}
#endif
#endif

/* A piece of a product in bf16 on processors that multiply it themselves: the operands are read
 * where they lie and summed in fp32. Gradients of logits, which come in fp32, are rounded to bf16
 * on their way in, as PyTorch's mixed precision does. Memory is that of product_half.c. */
#include "kernels/cpu/gemm_bf16.h"
#include "kernels/cpu/product_blocks.h"

/* fp32 operands that are rounded at once, as a multiple of a block: what the scratch of three fp32
 * blocks holds beside one of results is more than twice a block of bf16. */
#define K_BLOCK (2 * BLOCK)

/* C (+)= A·B over the whole length, for A in bf16. */
static void multiply(const shd_product *p, int64_t m0, int64_t n0, int64_t m, int64_t n, int add,
                     float *c, int64_t ldc)
{
    const elt *a = (const elt *)p->a + (p->trans_a ? m0 : m0 * p->lda);
    const elt *b = p->b + (p->trans_b ? n0 * p->ldb : n0);
    shd_cpu_gemm_bf16(p->trans_a, p->trans_b, m, n, p->K, a, p->lda, b, p->ldb, add, c, ldc);
}

/* The same for A in fp32, rounded block by block into scratch. */
static void multiply_f32(const shd_product *p, int64_t m0, int64_t n0, int64_t m, int64_t n,
                         int add, elt *room, float *c, int64_t ldc)
{
    for (int64_t k0 = 0; k0 < p->K; k0 += K_BLOCK) {
        const int64_t k = at_most(p->K - k0, K_BLOCK);
        const int64_t rows = p->trans_a ? k : m, width = p->trans_a ? m : k;
        const float *a = (const float *)p->a + (p->trans_a ? k0 * p->lda + m0 : m0 * p->lda + k0);
        for (int64_t i = 0; i < rows; i++) {
            narrow(room + i * width, a + i * p->lda, width);
        }
        const elt *b = p->b + (p->trans_b ? n0 * p->ldb + k0 : k0 * p->ldb + n0);
        shd_cpu_gemm_bf16(p->trans_a, p->trans_b, m, n, k, room, width, b, p->ldb, add || k0 > 0, c,
                          ldc);
    }
}

static void run_block(const shd_product *p, int64_t m0, int64_t n0, int64_t m, int64_t n,
                      float *scratch)
{
    const int start = starts(p);
    const int in_place = p->c_f32 && p->bias == NULL && p->residual == NULL;
    float *c = in_place ? (float *)p->c + m0 * p->N + n0 : scratch;
    const int64_t ldc = in_place ? p->N : n;
    for (int64_t i = 0; start && !in_place && i < m; i++) {
        start_row(p, c + i * n, m0 + i, n0, n);
    }
    if (p->a_f32) {
        multiply_f32(p, m0, n0, m, n, start, (elt *)(scratch + m * n), c, ldc);
    } else {
        multiply(p, m0, n0, m, n, start, c, ldc);
    }
    if (!in_place) {
        finish_block(p, c, m0, n0, m, n);
    }
}

void SHD_FN(product_piece)(const shd_product *p, int64_t m0, int64_t n0, int64_t m, int64_t n,
                           int worker)
{
    each_block(p, m0, n0, m, n, worker, run_block);
}

int64_t SHD_FN(product_floats)(int64_t R, int64_t N, int64_t K)
{
    return block_floats(R, N, K);
}

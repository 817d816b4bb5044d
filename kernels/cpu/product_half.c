/* A piece of a product in bf16 or fp16 on processors that do not multiply them themselves: blocks
 * of the operands are widened into scratch, exactly, and multiplied by the fp32 BLAS. */
#include "kernels/cpu/product_blocks.h"

static void widen(float *to, const elt *from, int64_t n)
{
    int64_t j = 0;
    for (; j + VL <= n; j += VL) {
        v_store(to + j, e_load(from + j));
    }
    if (j < n) {
        v_store_n(to + j, e_load_n(from + j, n - j), n - j);
    }
}

/* A block of rows × n elements that lies at `from` with row stride ld, as fp32. */
static const float *block_of(float *to, const elt *from, int64_t rows, int64_t n, int64_t ld)
{
    for (int64_t i = 0; i < rows; i++) {
        widen(to + i * n, from + i * ld, n);
    }
    return to;
}

static void run_block(const shd_product *p, int64_t m0, int64_t n0, int64_t m, int64_t n,
                      float *scratch)
{
    const int64_t k_block = at_most(p->K, BLOCK);
    float *a = scratch, *b = a + m * k_block, *c = b + k_block * n;
    const int start = starts(p);
    for (int64_t i = 0; start && i < m; i++) {
        start_row(p, c + i * n, m0 + i, n0, n);
    }
    for (int64_t k0 = 0; k0 < p->K; k0 += k_block) {
        const int64_t k = at_most(p->K - k0, k_block);
        const int64_t a_at = p->trans_a ? k0 * p->lda + m0 : m0 * p->lda + k0;
        const int64_t a_rows = p->trans_a ? k : m, a_width = p->trans_a ? m : k;
        const float *wide_a = p->a_f32
                                  ? (const float *)p->a + a_at
                                  : block_of(a, (const elt *)p->a + a_at, a_rows, a_width, p->lda);
        const int64_t b_at = p->trans_b ? n0 * p->ldb + k0 : k0 * p->ldb + n0;
        const int64_t b_rows = p->trans_b ? n : k, b_width = p->trans_b ? k : n;
        const float *wide_b = block_of(b, p->b + b_at, b_rows, b_width, p->ldb);
        shd_cpu_gemm(p->trans_a, p->trans_b, m, n, k, 1.0f, wide_a, p->a_f32 ? p->lda : a_width,
                     wide_b, b_width, start || k0 > 0 ? 1.0f : 0.0f, c, n);
    }
    finish_block(p, c, m0, n0, m, n);
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

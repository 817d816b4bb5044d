/* A piece of a product in fp32: BLAS on the operands where they lie; bias and residual are laid
 * into the piece before the product is added, while the piece is in cache. */
#include "kernels/cpu/product.h"

#include <string.h>

static int prepare(const shd_product *p, int64_t m0, int64_t n0, int64_t m, int64_t n)
{
    if (p->bias == NULL && p->residual == NULL) {
        return p->acc;
    }
    for (int64_t i = 0; i < m; i++) {
        float *c = (float *)p->c + (m0 + i) * p->N + n0;
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

void SHD_FN(product_piece)(const shd_product *p, int64_t m0, int64_t n0, int64_t m, int64_t n,
                           int worker)
{
    (void)worker;
    const int add = prepare(p, m0, n0, m, n);
    const float *a = (const float *)p->a + (p->trans_a ? m0 : m0 * p->lda);
    const float *b = p->b + (p->trans_b ? n0 * p->ldb : n0);
    shd_cpu_gemm(p->trans_a, p->trans_b, m, n, p->K, 1.0f, a, p->lda, b, p->ldb, add ? 1.0f : 0.0f,
                 (float *)p->c + m0 * p->N + n0, p->N);
}

int64_t SHD_FN(product_floats)(int64_t R, int64_t N, int64_t K)
{
    (void)R, (void)N, (void)K;
    return 0;
}

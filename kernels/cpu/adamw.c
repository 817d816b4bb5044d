/* AdamW: one pass over parameter, gradient and both moments. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

#include <math.h>

#define GRAIN 16384

typedef struct step {
    float *p, *m, *v;
    const float *g;
    float grad_scale, decay, beta1, beta2, one_minus_beta1, one_minus_beta2;
    float step_size; /* lr / bc1 */
    float inverse_sqrt_bc2, eps;
} step;

static inline void update(const step *s, vf *p, vf g, vf *m, vf *v)
{
    g = g * v_set1(s->grad_scale);
    *m = v_fma(*m, v_set1(s->beta1), g * v_set1(s->one_minus_beta1));
    *v = v_fma(*v, v_set1(s->beta2), g * g * v_set1(s->one_minus_beta2));
    const vf denominator = v_fma(v_sqrt(*v), v_set1(s->inverse_sqrt_bc2), v_set1(s->eps));
    *p = *p * v_set1(s->decay) - *m / denominator * v_set1(s->step_size);
}

static void update_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const step s = *(const step *)arg;
    int64_t i = begin;
    (void)worker;
    for (; i + VL <= end; i += VL) {
        vf p = v_load(s.p + i), m = v_load(s.m + i), v = v_load(s.v + i);
        update(&s, &p, v_load(s.g + i), &m, &v);
        v_store(s.p + i, p);
        v_store(s.m + i, m);
        v_store(s.v + i, v);
    }
    if (i < end) {
        const int64_t n = end - i;
        vf p = v_load_n(s.p + i, n), m = v_load_n(s.m + i, n), v = v_load_n(s.v + i, n);
        update(&s, &p, v_load_n(s.g + i, n), &m, &v);
        v_store_n(s.p + i, p, n);
        v_store_n(s.m + i, m, n);
        v_store_n(s.v + i, v, n);
    }
}

void SHD_FN(adamw)(const shd_opctx *ctx, float *p, const float *g, float *m, float *v, int64_t n,
                   const shd_adamw_args *args)
{
    step s = {
        .p = p,
        .m = m,
        .v = v,
        .g = g,
        .grad_scale = args->grad_scale,
        .decay = (float)(1.0 - (double)args->lr * (double)args->weight_decay),
        .beta1 = args->beta1,
        .beta2 = args->beta2,
        .one_minus_beta1 = (float)(1.0 - (double)args->beta1),
        .one_minus_beta2 = (float)(1.0 - (double)args->beta2),
        .step_size = (float)((double)args->lr / (double)args->bias_correction1),
        .inverse_sqrt_bc2 = (float)(1.0 / sqrt((double)args->bias_correction2)),
        .eps = args->eps,
    };
    shd_cpu_parallel(ctx, n, GRAIN, update_range, &s);
}

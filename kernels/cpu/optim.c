/* Optimizers: one pass over parameter, gradient and states. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

#include <math.h>

#define GRAIN 16384

typedef enum rule { ADAMW, ADAM, SGD, SGD_MOMENTUM, LION } rule;

typedef struct step {
    float *p, *state[2];
    const float *g;
    float grad_scale, lr;
    float decay; /* the parameter is multiplied by this: decoupled weight decay */
    float l2;    /* times the parameter, added to the gradient: coupled weight decay */
    float beta1, beta2, one_minus_beta1, one_minus_beta2;
    float step_size; /* lr / bc1 */
    float inverse_sqrt_bc2, eps;
    int nesterov;
} step;

#define ALWAYS_INLINE inline __attribute__((always_inline))

static ALWAYS_INLINE void adam(const step *s, vf *p, vf g, vf *m, vf *v)
{
    *m = v_fma(*m, v_set1(s->beta1), g * v_set1(s->one_minus_beta1));
    *v = v_fma(*v, v_set1(s->beta2), g * g * v_set1(s->one_minus_beta2));
    const vf denominator = v_fma(v_sqrt(*v), v_set1(s->inverse_sqrt_bc2), v_set1(s->eps));
    *p = *p * v_set1(s->decay) - *m / denominator * v_set1(s->step_size);
}

static ALWAYS_INLINE void lion(const step *s, vf *p, vf g, vf *m)
{
    const vf zero = v_set1(0.0f), lr = v_set1(s->lr);
    const vf c = v_fma(*m, v_set1(s->beta1), g * v_set1(s->one_minus_beta1));
    const vf move = v_if_less(zero, c, lr, v_if_less(c, zero, zero - lr, zero));
    *p = *p * v_set1(s->decay) - move;
    *m = v_fma(*m, v_set1(s->beta2), g * v_set1(s->one_minus_beta2));
}

static ALWAYS_INLINE void update(const step *s, rule kind, vf *p, vf g, vf *a, vf *b)
{
    g = g * v_set1(s->grad_scale);
    if (kind == ADAM || kind == SGD || kind == SGD_MOMENTUM) {
        g = v_fma(*p, v_set1(s->l2), g);
    }
    switch (kind) {
    case ADAMW:
    case ADAM:
        adam(s, p, g, a, b);
        break;
    case SGD_MOMENTUM:
        *a = v_fma(*a, v_set1(s->beta1), g);
        g = s->nesterov ? v_fma(*a, v_set1(s->beta1), g) : *a;
        *p = *p - g * v_set1(s->lr);
        break;
    case SGD:
        *p = *p - g * v_set1(s->lr);
        break;
    case LION:
        lion(s, p, g, a);
        break;
    }
}

static ALWAYS_INLINE void update_range(const step *s, rule kind, int64_t begin, int64_t end)
{
    const int one = kind != SGD, two = kind == ADAMW || kind == ADAM;
    int64_t i = begin;
    for (; i + VL <= end; i += VL) {
        vf p = v_load(s->p + i), a = {0}, b = {0};
        a = one ? v_load(s->state[0] + i) : a;
        b = two ? v_load(s->state[1] + i) : b;
        update(s, kind, &p, v_load(s->g + i), &a, &b);
        v_store(s->p + i, p);
        if (one) {
            v_store(s->state[0] + i, a);
        }
        if (two) {
            v_store(s->state[1] + i, b);
        }
    }
    if (i < end) {
        const int64_t n = end - i;
        vf p = v_load_n(s->p + i, n), a = {0}, b = {0};
        a = one ? v_load_n(s->state[0] + i, n) : a;
        b = two ? v_load_n(s->state[1] + i, n) : b;
        update(s, kind, &p, v_load_n(s->g + i, n), &a, &b);
        v_store_n(s->p + i, p, n);
        if (one) {
            v_store_n(s->state[0] + i, a, n);
        }
        if (two) {
            v_store_n(s->state[1] + i, b, n);
        }
    }
}

#define RANGE(name, rule)                                                                          \
    static void name(void *arg, int64_t begin, int64_t end, int worker)                            \
    {                                                                                              \
        const step s = *(const step *)arg;                                                         \
        (void)worker;                                                                              \
        update_range(&s, rule, begin, end);                                                        \
    }

RANGE(adamw_range, ADAMW)
RANGE(adam_range, ADAM)
RANGE(sgd_range, SGD)
RANGE(sgd_momentum_range, SGD_MOMENTUM)
RANGE(lion_range, LION)

static float decay_of(double lr, double weight_decay)
{
    return (float)(1.0 - lr * weight_decay);
}

static step adam_step(float *p, const float *g, float *m, float *v, const shd_adam_args *args)
{
    return (step){
        .p = p,
        .state = {m, v},
        .g = g,
        .grad_scale = (float)args->grad_scale,
        .beta1 = (float)args->beta1,
        .beta2 = (float)args->beta2,
        .one_minus_beta1 = (float)(1.0 - args->beta1),
        .one_minus_beta2 = (float)(1.0 - args->beta2),
        .step_size = (float)(args->lr / args->bias_correction1),
        .inverse_sqrt_bc2 = (float)(1.0 / sqrt(args->bias_correction2)),
        .eps = (float)args->eps,
    };
}

void SHD_FLAT_FN(adamw)(const shd_opctx *ctx, float *p, const float *g, float *m, float *v, int64_t n,
                   const shd_adam_args *args)
{
    step s = adam_step(p, g, m, v, args);
    s.decay = decay_of(args->lr, args->weight_decay);
    shd_cpu_parallel(ctx, n, GRAIN, adamw_range, &s);
}

void SHD_FLAT_FN(adam)(const shd_opctx *ctx, float *p, const float *g, float *m, float *v, int64_t n,
                  const shd_adam_args *args)
{
    step s = adam_step(p, g, m, v, args);
    s.decay = 1.0f;
    s.l2 = (float)args->weight_decay;
    shd_cpu_parallel(ctx, n, GRAIN, adam_range, &s);
}

void SHD_FLAT_FN(sgd)(const shd_opctx *ctx, float *p, const float *g, float *buf, int64_t n,
                 const shd_sgd_args *args)
{
    step s = {
        .p = p,
        .state = {buf},
        .g = g,
        .grad_scale = (float)args->grad_scale,
        .lr = (float)args->lr,
        .l2 = (float)args->weight_decay,
        .beta1 = (float)args->momentum,
        .nesterov = args->nesterov,
    };
    shd_cpu_parallel(ctx, n, GRAIN, buf != NULL ? sgd_momentum_range : sgd_range, &s);
}

void SHD_FLAT_FN(lion)(const shd_opctx *ctx, float *p, const float *g, float *m, int64_t n,
                  const shd_lion_args *args)
{
    step s = {
        .p = p,
        .state = {m},
        .g = g,
        .grad_scale = (float)args->grad_scale,
        .lr = (float)args->lr,
        .decay = decay_of(args->lr, args->weight_decay),
        .beta1 = (float)args->beta1,
        .beta2 = (float)args->beta2,
        .one_minus_beta1 = (float)(1.0 - args->beta1),
        .one_minus_beta2 = (float)(1.0 - args->beta2),
    };
    shd_cpu_parallel(ctx, n, GRAIN, lion_range, &s);
}

/* GELU, tanh form. With u = √(2/π)(x + 0.044715x³), ½(1 + tanh u) is the logistic function of 2u,
 * which needs one exponential and loses nothing to cancellation for negative x. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

#define GRAIN 16384

#define TWICE_SQRT_2_OVER_PI 1.5957691216f
#define CUBIC 0.044715f

static inline vf gelu(vf x)
{
    const vf u2 =
        x * v_fma(x * x, v_set1(TWICE_SQRT_2_OVER_PI * CUBIC), v_set1(TWICE_SQRT_2_OVER_PI));
    return x * v_sigmoid(u2);
}

/* gelu'(x) = s + x s (1 - s) (2u)', s the logistic function of 2u; with e = e^-2u, s = 1 / (1 + e)
 * and 1 - s = e s, which stays exact where s is nearly 1. */
static inline vf gelu_derivative(vf x)
{
    const vf xx = x * x;
    const vf u2 = x * v_fma(xx, v_set1(TWICE_SQRT_2_OVER_PI * CUBIC), v_set1(TWICE_SQRT_2_OVER_PI));
    const vf du2 =
        v_fma(xx, v_set1(3.0f * TWICE_SQRT_2_OVER_PI * CUBIC), v_set1(TWICE_SQRT_2_OVER_PI));
    const vf e = v_exp(v_set1(0.0f) - u2);
    const vf s = v_set1(1.0f) / (v_set1(1.0f) + e);
    return v_fma(x * s * (e * s), du2, s);
}

typedef struct gelu_args {
    float *out;
    const float *dout, *x;
    int acc;
} gelu_args;

static void forward_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const gelu_args *t = arg;
    int64_t i = begin;
    (void)worker;
    for (; i + VL <= end; i += VL) {
        v_store(t->out + i, gelu(v_load(t->x + i)));
    }
    if (i < end) {
        v_store_n(t->out + i, gelu(v_load_n(t->x + i, end - i)), end - i);
    }
}

void SHD_FN(gelu_forward)(const shd_opctx *ctx, float *out, const float *x, int64_t n)
{
    gelu_args t = {out, NULL, x, 0};
    shd_cpu_parallel(ctx, n, GRAIN, forward_range, &t);
}

static void backward_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const gelu_args *t = arg;
    int64_t i = begin;
    (void)worker;
    for (; i + VL <= end; i += VL) {
        vf dx = v_load(t->dout + i) * gelu_derivative(v_load(t->x + i));
        if (t->acc) {
            dx += v_load(t->out + i);
        }
        v_store(t->out + i, dx);
    }
    if (i < end) {
        vf dx = v_load_n(t->dout + i, end - i) * gelu_derivative(v_load_n(t->x + i, end - i));
        if (t->acc) {
            dx += v_load_n(t->out + i, end - i);
        }
        v_store_n(t->out + i, dx, end - i);
    }
}

void SHD_FN(gelu_backward)(const shd_opctx *ctx, float *dx, const float *dout, const float *x,
                           int64_t n, int acc)
{
    gelu_args t = {dx, dout, x, acc};
    shd_cpu_parallel(ctx, n, GRAIN, backward_range, &t);
}

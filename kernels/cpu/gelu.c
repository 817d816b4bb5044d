/* GELU. Tanh form: with u = √(2/π)(x + 0.044715x³), ½(1 + tanh u) is the logistic function of 2u,
 * which needs one exponential and loses nothing to cancellation for negative x. Erf form: x Φ(x), Φ
 * from the tail ½erfc(|x|/√2). */
#include "kernels/cpu/elt.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"

#define GRAIN 16384

#define TWICE_SQRT_2_OVER_PI 1.5957691216f
#define CUBIC 0.044715f

static inline vf tanh_form(vf x)
{
    const vf u2 =
        x * v_fma(x * x, v_set1(TWICE_SQRT_2_OVER_PI * CUBIC), v_set1(TWICE_SQRT_2_OVER_PI));
    return x * v_sigmoid(u2);
}

/* gelu'(x) = s + x s (1 - s) (2u)', s the logistic function of 2u; with e = e^-2u, s = 1 / (1 + e)
 * and 1 - s = e s, which stays exact where s is nearly 1. */
static inline vf tanh_derivative(vf x)
{
    const vf xx = x * x;
    const vf u2 = x * v_fma(xx, v_set1(TWICE_SQRT_2_OVER_PI * CUBIC), v_set1(TWICE_SQRT_2_OVER_PI));
    const vf du2 =
        v_fma(xx, v_set1(3.0f * TWICE_SQRT_2_OVER_PI * CUBIC), v_set1(TWICE_SQRT_2_OVER_PI));
    const vf e = v_exp(v_set1(0.0f) - u2);
    const vf s = v_set1(1.0f) / (v_set1(1.0f) + e);
    return v_fma(x * s * (e * s), du2, s);
}

/* Φ(x), the normal distribution function, by the Chebyshev fit of erfc in Numerical Recipes (§6.2;
 * relative error below 1.2e-7). */
static inline vf normal_cdf(vf x)
{
    const vf zero = v_set1(0.0f);
    const vf z = v_max(x, zero - x) * v_set1(0.70710678f);
    const vf t = v_set1(1.0f) / v_fma(z, v_set1(0.5f), v_set1(1.0f));
    vf p = v_set1(0.17087277f);
    p = v_fma(p, t, v_set1(-0.82215223f));
    p = v_fma(p, t, v_set1(1.48851587f));
    p = v_fma(p, t, v_set1(-1.13520398f));
    p = v_fma(p, t, v_set1(0.27886807f));
    p = v_fma(p, t, v_set1(-0.18628806f));
    p = v_fma(p, t, v_set1(0.09678418f));
    p = v_fma(p, t, v_set1(0.37409196f));
    p = v_fma(p, t, v_set1(1.00002368f));
    p = v_fma(p, t, v_set1(-1.26551223f));
    const vf tail = v_set1(0.5f) * t * v_exp(v_fma(zero - z, z, p));
    return v_if_less(x, zero, tail, v_set1(1.0f) - tail);
}

static inline vf erf_form(vf x)
{
    return x * normal_cdf(x);
}

/* Φ(x) + x φ(x), φ(x) = e^(-x²/2) / √(2π). */
static inline vf erf_derivative(vf x)
{
    const vf density = v_set1(0.39894228f) * v_exp(v_set1(-0.5f) * x * x);
    return v_fma(x, density, normal_cdf(x));
}

typedef struct gelu_args {
    elt *out;
    const elt *dout, *x;
    int acc;
} gelu_args;

static void tanh_forward(void *arg, int64_t begin, int64_t end, int worker)
{
    const gelu_args *t = arg;
    int64_t i = begin;
    (void)worker;
    for (; i + VL <= end; i += VL) {
        e_store(t->out + i, tanh_form(e_load(t->x + i)));
    }
    if (i < end) {
        e_store_n(t->out + i, tanh_form(e_load_n(t->x + i, end - i)), end - i);
    }
}

static void tanh_backward(void *arg, int64_t begin, int64_t end, int worker)
{
    const gelu_args *t = arg;
    int64_t i = begin;
    (void)worker;
    for (; i + VL <= end; i += VL) {
        vf dx = e_load(t->dout + i) * tanh_derivative(e_load(t->x + i));
        if (t->acc) {
            dx += e_load(t->out + i);
        }
        e_store(t->out + i, dx);
    }
    if (i < end) {
        const int64_t n = end - i;
        vf dx = e_load_n(t->dout + i, n) * tanh_derivative(e_load_n(t->x + i, n));
        if (t->acc) {
            dx += e_load_n(t->out + i, n);
        }
        e_store_n(t->out + i, dx, n);
    }
}

static void erf_forward(void *arg, int64_t begin, int64_t end, int worker)
{
    const gelu_args *t = arg;
    int64_t i = begin;
    (void)worker;
    for (; i + VL <= end; i += VL) {
        e_store(t->out + i, erf_form(e_load(t->x + i)));
    }
    if (i < end) {
        e_store_n(t->out + i, erf_form(e_load_n(t->x + i, end - i)), end - i);
    }
}

static void erf_backward(void *arg, int64_t begin, int64_t end, int worker)
{
    const gelu_args *t = arg;
    int64_t i = begin;
    (void)worker;
    for (; i + VL <= end; i += VL) {
        vf dx = e_load(t->dout + i) * erf_derivative(e_load(t->x + i));
        if (t->acc) {
            dx += e_load(t->out + i);
        }
        e_store(t->out + i, dx);
    }
    if (i < end) {
        const int64_t n = end - i;
        vf dx = e_load_n(t->dout + i, n) * erf_derivative(e_load_n(t->x + i, n));
        if (t->acc) {
            dx += e_load_n(t->out + i, n);
        }
        e_store_n(t->out + i, dx, n);
    }
}

void SHD_FN(gelu_forward)(const shd_opctx *ctx, void *out, const void *x, int64_t n,
                          shd_gelu_form form)
{
    gelu_args t = {out, NULL, x, 0};
    shd_cpu_parallel(ctx, n, GRAIN, form == SHD_GELU_ERF ? erf_forward : tanh_forward, &t);
}

void SHD_FN(gelu_backward)(const shd_opctx *ctx, void *dx, const void *dout, const void *x,
                           int64_t n, shd_gelu_form form, int acc)
{
    gelu_args t = {dx, dout, x, acc};
    shd_cpu_parallel(ctx, n, GRAIN, form == SHD_GELU_ERF ? erf_backward : tanh_backward, &t);
}

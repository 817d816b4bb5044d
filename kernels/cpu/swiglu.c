/* SwiGLU: silu(gate) · up. With s the logistic function of g, silu'(g) = s (1 + g (1 - s)). */
#include "kernels/cpu/elt.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"

#define GRAIN 16384

typedef struct swiglu_args {
    elt *out, *dgate, *dup;
    const elt *dout, *gate, *up;
    int acc_gate, acc_up;
} swiglu_args;

static void forward_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const swiglu_args *t = arg;
    int64_t i = begin;
    (void)worker;
    for (; i + VL <= end; i += VL) {
        const vf g = e_load(t->gate + i);
        e_store(t->out + i, g * v_sigmoid(g) * e_load(t->up + i));
    }
    if (i < end) {
        const vf g = e_load_n(t->gate + i, end - i);
        e_store_n(t->out + i, g * v_sigmoid(g) * e_load_n(t->up + i, end - i), end - i);
    }
}

void SHD_FN(swiglu_forward)(const shd_opctx *ctx, void *out, const void *gate, const void *up,
                            int64_t n)
{
    swiglu_args t = {.out = out, .gate = gate, .up = up};
    shd_cpu_parallel(ctx, n, GRAIN, forward_range, &t);
}

static inline void gradients(vf dout, vf g, vf up, vf *dgate, vf *dup)
{
    const vf one = v_set1(1.0f);
    const vf e = v_exp(v_set1(0.0f) - g); /* s = 1 / (1 + e), 1 - s = e s */
    const vf s = one / (one + e);
    *dup = dout * (g * s);
    *dgate = dout * up * (s * v_fma(g, e * s, one));
}

static inline void put(elt *to, vf x, int acc)
{
    e_store(to, acc ? (vf)(e_load(to) + x) : x);
}

static inline void put_n(elt *to, vf x, int acc, int64_t n)
{
    e_store_n(to, acc ? (vf)(e_load_n(to, n) + x) : x, n);
}

static void backward_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const swiglu_args *t = arg;
    int64_t i = begin;
    (void)worker;
    vf dgate, dup;
    for (; i + VL <= end; i += VL) {
        gradients(e_load(t->dout + i), e_load(t->gate + i), e_load(t->up + i), &dgate, &dup);
        if (t->dgate != NULL) {
            put(t->dgate + i, dgate, t->acc_gate);
        }
        if (t->dup != NULL) {
            put(t->dup + i, dup, t->acc_up);
        }
    }
    if (i < end) {
        const int64_t n = end - i;
        gradients(e_load_n(t->dout + i, n), e_load_n(t->gate + i, n), e_load_n(t->up + i, n),
                  &dgate, &dup);
        if (t->dgate != NULL) {
            put_n(t->dgate + i, dgate, t->acc_gate, n);
        }
        if (t->dup != NULL) {
            put_n(t->dup + i, dup, t->acc_up, n);
        }
    }
}

void SHD_FN(swiglu_backward)(const shd_opctx *ctx, void *dgate, void *dup, const void *dout,
                             const void *gate, const void *up, int64_t n, int acc_gate, int acc_up)
{
    swiglu_args t = {.dgate = dgate,
                     .dup = dup,
                     .dout = dout,
                     .gate = gate,
                     .up = up,
                     .acc_gate = acc_gate,
                     .acc_up = acc_up};
    shd_cpu_parallel(ctx, n, GRAIN, backward_range, &t);
}

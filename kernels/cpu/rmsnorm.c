/* RMS norm. Backward with x̂ = x rstd and g = dout·w: dx = rstd (g - x̂ mean(g x̂)),
 * dw = Σ dout x̂ over rows. */
#include "kernels/cpu/elt.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"

#include <math.h>

#define GRAIN_ELEMENTS 16384

typedef struct norm_args {
    elt *out;
    float *rstd;
    const elt *x, *w;
    int64_t C;
    float eps;
} norm_args;

static float mean_square(const elt *x, int64_t C)
{
    vf sum[4];
    int64_t i = 0;
    for (int j = 0; j < 4; j++) {
        sum[j] = v_set1(0.0f);
    }
    for (; i + 4 * VL <= C; i += 4 * VL) {
        for (int j = 0; j < 4; j++) {
            const vf v = e_load(x + i + j * VL);
            sum[j] = v_fma(v, v, sum[j]);
        }
    }
    for (; i < C; i += VL) {
        const vf v = C - i < VL ? e_load_n(x + i, C - i) : e_load(x + i);
        sum[0] = v_fma(v, v, sum[0]);
    }
    return v_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)C;
}

static void forward_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const norm_args *t = arg;
    const int64_t C = t->C, full = C / VL * VL, tail = C - full;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const elt *x = t->x + r * C;
        elt *out = t->out + r * C;
        const float rstd = 1.0f / sqrtf(mean_square(x, C) + t->eps);
        const vf s = v_set1(rstd);
        for (int64_t i = 0; i < full; i += VL) {
            e_store(out + i, e_load(t->w + i) * e_round(e_load(x + i) * s));
        }
        if (tail != 0) {
            const vf y = e_load_n(t->w + full, tail) * e_round(e_load_n(x + full, tail) * s);
            e_store_n(out + full, y, tail);
        }
        if (t->rstd != NULL) {
            t->rstd[r] = rstd;
        }
    }
}

void SHD_FN(rmsnorm_forward)(const shd_opctx *ctx, void *out, float *rstd, const void *x,
                             const void *w, int64_t R, int64_t C, float eps)
{
    norm_args t = {out, rstd, x, w, C, eps};
    shd_cpu_parallel(ctx, R, C < GRAIN_ELEMENTS ? GRAIN_ELEMENTS / C : 1, forward_rows, &t);
}

/* ---- backward ---- */

/* Rows whose dw are summed together before the sums are added up in order. */
static int64_t chunk_rows(int64_t R)
{
    const int64_t rows = (R + 31) / 32;
    return rows > 8 ? rows : 8;
}

static int64_t chunk_count(int64_t R)
{
    return (R + chunk_rows(R) - 1) / chunk_rows(R);
}

size_t SHD_FN(rmsnorm_backward_ws)(const shd_opctx *ctx, int64_t R, int64_t C)
{
    (void)ctx;
    /* At most 32 chunks; near there more rows can make fewer, but never ask for less. */
    const int64_t chunks = R < 256 ? chunk_count(R) : 32;
    return (size_t)(chunks * C) * sizeof(float);
}

typedef struct back_args {
    elt *dx; /* NULL: not wanted */
    const elt *dout, *x, *w;
    const float *rstd;
    int64_t R, C;
    int acc_dx;
    float *partial; /* [chunks, C]; NULL: dw is not wanted */
} back_args;

static void backward_row(const back_args *t, int64_t r, float *dw)
{
    const int64_t C = t->C, full = C / VL * VL, tail = C - full;
    const elt *x = t->x + r * C, *dout = t->dout + r * C;
    const vf s = v_set1(t->rstd[r]);
    vf sum = v_set1(0.0f);
    for (int64_t i = 0; i < full; i += VL) {
        const vf d = e_load(dout + i), xhat = e_load(x + i) * s;
        sum = v_fma(d * e_load(t->w + i), xhat, sum);
        if (dw != NULL) {
            v_store(dw + i, v_fma(d, xhat, v_load(dw + i)));
        }
    }
    if (tail != 0) { /* missing lanes are 0 and add nothing */
        const vf d = e_load_n(dout + full, tail), xhat = e_load_n(x + full, tail) * s;
        sum = v_fma(d * e_load_n(t->w + full, tail), xhat, sum);
        if (dw != NULL) {
            v_store_n(dw + full, v_fma(d, xhat, v_load_n(dw + full, tail)), tail);
        }
    }
    if (t->dx == NULL) {
        return;
    }
    elt *dx = t->dx + r * C;
    const vf mean = v_set1(v_sum(sum) / (float)C);
    for (int64_t i = 0; i < full; i += VL) {
        vf d = (e_load(dout + i) * e_load(t->w + i) - e_load(x + i) * s * mean) * s;
        if (t->acc_dx) {
            d += e_load(dx + i);
        }
        e_store(dx + i, d);
    }
    if (tail != 0) {
        vf d = (e_load_n(dout + full, tail) * e_load_n(t->w + full, tail) -
                e_load_n(x + full, tail) * s * mean) *
               s;
        if (t->acc_dx) {
            d += e_load_n(dx + full, tail);
        }
        e_store_n(dx + full, d, tail);
    }
}

static void backward_chunks(void *arg, int64_t begin, int64_t end, int worker)
{
    const back_args *t = arg;
    const int64_t rows = chunk_rows(t->R);
    (void)worker;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        float *dw = t->partial != NULL ? t->partial + chunk * t->C : NULL;
        if (dw != NULL) {
            memset(dw, 0, (size_t)t->C * sizeof(float));
        }
        const int64_t last = (chunk + 1) * rows < t->R ? (chunk + 1) * rows : t->R;
        for (int64_t r = chunk * rows; r < last; r++) {
            backward_row(t, r, dw);
        }
    }
}

void SHD_FN(rmsnorm_backward)(const shd_opctx *ctx, void *dx, void *dw, const void *dout,
                              const void *x, const void *w, const float *rstd, int64_t R, int64_t C,
                              int acc_dx, int acc_dw, void *ws)
{
    float *partial = dw != NULL ? ws : NULL;
    back_args t = {dx, dout, x, w, rstd, R, C, acc_dx, partial};
    shd_cpu_parallel(ctx, chunk_count(R), 1, backward_chunks, &t);
    if (partial == NULL) {
        return;
    }
    for (int64_t i = 0; i < C; i += VL) {
        const int64_t n = C - i < VL ? C - i : VL;
        elt *out = (elt *)dw + i;
        vf sum = v_set1(0.0f);
        if (acc_dw) {
            sum = e_load_n(out, n);
        }
        for (int64_t chunk = 0; chunk < chunk_count(R); chunk++) {
            sum += v_load_n(partial + chunk * C + i, n);
        }
        e_store_n(out, sum, n);
    }
}

/* Layer norm. Backward with x̂ = (x - mean) rstd and g = dout·w:
 * dx = rstd (g - mean(g) - x̂ mean(g x̂)), dw = Σ dout x̂, db = Σ dout over rows. */
#include "kernels/cpu/elt.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"

#include <math.h>

#define GRAIN_ELEMENTS 16384

typedef struct norm_args {
    elt *out;
    float *mean, *rstd;
    const elt *x, *w, *b;
    int64_t C;
    float eps;
} norm_args;

static int64_t tail_of(int64_t C)
{
    return C - C / VL * VL;
}

static float row_mean(const elt *x, int64_t C)
{
    const int64_t full = C / VL * VL;
    vf s0 = v_set1(0.0f), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * VL <= full; i += 2 * VL) {
        s0 += e_load(x + i);
        s1 += e_load(x + i + VL);
    }
    if (i < full) {
        s0 += e_load(x + i);
    }
    if (tail_of(C) != 0) {
        s1 += e_load_n(x + full, tail_of(C));
    }
    return v_sum(s0 + s1) / (float)C;
}

static float row_variance(const elt *x, int64_t C, float mean)
{
    const int64_t full = C / VL * VL;
    const vf m = v_set1(mean);
    vf s0 = v_set1(0.0f), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * VL <= full; i += 2 * VL) {
        const vf d0 = e_load(x + i) - m, d1 = e_load(x + i + VL) - m;
        s0 = v_fma(d0, d0, s0);
        s1 = v_fma(d1, d1, s1);
    }
    if (i < full) {
        const vf d = e_load(x + i) - m;
        s0 = v_fma(d, d, s0);
    }
    float tail = 0.0f;
    for (i = full; i < C; i++) {
        const float d = e_get(x + i) - mean;
        tail += d * d;
    }
    return (v_sum(s0 + s1) + tail) / (float)C;
}

static void forward_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const norm_args *t = arg;
    const int64_t C = t->C, full = C / VL * VL, tail = tail_of(C);
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const elt *x = t->x + r * C;
        elt *out = t->out + r * C;
        const float mean = row_mean(x, C);
        const float rstd = 1.0f / sqrtf(row_variance(x, C, mean) + t->eps);
        const vf m = v_set1(mean), s = v_set1(rstd);
        for (int64_t i = 0; i < full; i += VL) {
            e_store(out + i, v_fma((e_load(x + i) - m) * s, e_load(t->w + i), e_load(t->b + i)));
        }
        if (tail != 0) {
            const vf y = v_fma((e_load_n(x + full, tail) - m) * s, e_load_n(t->w + full, tail),
                               e_load_n(t->b + full, tail));
            e_store_n(out + full, y, tail);
        }
        if (t->mean != NULL) {
            t->mean[r] = mean;
            t->rstd[r] = rstd;
        }
    }
}

static int64_t row_grain(int64_t C)
{
    return C < GRAIN_ELEMENTS ? GRAIN_ELEMENTS / C : 1;
}

void SHD_FN(layernorm_forward)(const shd_opctx *ctx, void *out, float *mean, float *rstd,
                               const void *x, const void *w, const void *b, int64_t R, int64_t C,
                               float eps)
{
    norm_args t = {out, mean, rstd, x, w, b, C, eps};
    shd_cpu_parallel(ctx, R, row_grain(C), forward_rows, &t);
}

/* ---- backward ---- */

/* Rows whose dw and db are summed together before the sums are added up in order. */
static int64_t chunk_rows(int64_t R)
{
    const int64_t rows = (R + 31) / 32;
    return rows > 8 ? rows : 8;
}

static int64_t chunk_count(int64_t R)
{
    return (R + chunk_rows(R) - 1) / chunk_rows(R);
}

size_t SHD_FN(layernorm_backward_ws)(const shd_opctx *ctx, int64_t R, int64_t C)
{
    (void)ctx;
    /* At most 32 chunks; near there more rows can make fewer, but never ask for less. */
    const int64_t chunks = R < 256 ? chunk_count(R) : 32;
    return (size_t)(chunks * 2 * C) * sizeof(float);
}

typedef struct back_args {
    elt *dx; /* NULL: not wanted */
    const elt *dout, *x, *w;
    const float *mean, *rstd;
    int64_t R, C;
    int acc_dx;
    float *partial; /* [chunks, 2, C]; NULL: dw and db are not wanted */
} back_args;

typedef struct row_sums {
    vf g, gx; /* Σ g, Σ g x̂ by lane */
} row_sums;

static inline void add_to_sums(row_sums *s, vf g, vf xhat)
{
    s->g += g;
    s->gx = v_fma(g, xhat, s->gx);
}

static void backward_row(const back_args *t, int64_t r, float *dw, float *db)
{
    const int64_t C = t->C, full = C / VL * VL, tail = tail_of(C);
    const elt *x = t->x + r * C, *dout = t->dout + r * C;
    const vf m = v_set1(t->mean[r]), s = v_set1(t->rstd[r]);
    row_sums sums = {v_set1(0.0f), v_set1(0.0f)};
    for (int64_t i = 0; i < full; i += VL) {
        const vf d = e_load(dout + i), xhat = (e_load(x + i) - m) * s;
        add_to_sums(&sums, d * e_load(t->w + i), xhat);
        if (dw != NULL) {
            v_store(dw + i, v_fma(d, xhat, v_load(dw + i)));
            v_store(db + i, v_load(db + i) + d);
        }
    }
    if (tail != 0) { /* missing lanes of dout are 0 and add nothing */
        const vf d = e_load_n(dout + full, tail), xhat = (e_load_n(x + full, tail) - m) * s;
        add_to_sums(&sums, d * e_load_n(t->w + full, tail), xhat);
        if (dw != NULL) {
            v_store_n(dw + full, v_fma(d, xhat, v_load_n(dw + full, tail)), tail);
            v_store_n(db + full, v_load_n(db + full, tail) + d, tail);
        }
    }
    if (t->dx == NULL) {
        return;
    }
    elt *dx = t->dx + r * C;
    const vf mean_g = v_set1(v_sum(sums.g) / (float)C), mean_gx = v_set1(v_sum(sums.gx) / (float)C);
    for (int64_t i = 0; i < full; i += VL) {
        const vf xhat = (e_load(x + i) - m) * s;
        vf d = (e_load(dout + i) * e_load(t->w + i) - mean_g - xhat * mean_gx) * s;
        if (t->acc_dx) {
            d += e_load(dx + i);
        }
        e_store(dx + i, d);
    }
    if (tail != 0) {
        const vf xhat = (e_load_n(x + full, tail) - m) * s;
        vf d =
            (e_load_n(dout + full, tail) * e_load_n(t->w + full, tail) - mean_g - xhat * mean_gx) *
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
        float *dw = NULL, *db = NULL;
        if (t->partial != NULL) {
            dw = t->partial + chunk * 2 * t->C;
            db = dw + t->C;
            memset(dw, 0, (size_t)(2 * t->C) * sizeof(float));
        }
        const int64_t last = (chunk + 1) * rows < t->R ? (chunk + 1) * rows : t->R;
        for (int64_t r = chunk * rows; r < last; r++) {
            backward_row(t, r, dw, db);
        }
    }
}

/* Adds up one of dw, db over the chunks, in order, in the first chunk's place. */
static void combine(elt *out, float *restrict partial, int64_t chunks, int64_t C, int acc)
{
    if (out == NULL) {
        return;
    }
    for (int64_t i = 0; i < C; i++) {
        partial[i] += acc ? e_get(out + i) : 0.0f;
    }
    for (int64_t chunk = 1; chunk < chunks; chunk++) {
        for (int64_t i = 0; i < C; i++) {
            partial[i] += partial[chunk * 2 * C + i];
        }
    }
    for (int64_t i = 0; i < C; i++) {
        e_put(out + i, partial[i]);
    }
}

void SHD_FN(layernorm_backward)(const shd_opctx *ctx, void *dx, void *dw, void *db,
                                const void *dout, const void *x, const void *w, const float *mean,
                                const float *rstd, int64_t R, int64_t C, int acc_dx, int acc_dw,
                                void *ws)
{
    float *partial = dw != NULL || db != NULL ? ws : NULL;
    back_args t = {dx, dout, x, w, mean, rstd, R, C, acc_dx, partial};
    shd_cpu_parallel(ctx, chunk_count(R), 1, backward_chunks, &t);
    if (partial != NULL) {
        combine(dw, partial, chunk_count(R), C, acc_dw);
        combine(db, partial + C, chunk_count(R), C, acc_dw);
    }
}

/* Layer norm. Backward with x̂ = (x - mean) rstd and g = dout·w:
 * dx = rstd (g - mean(g) - x̂ mean(g x̂)), dw = Σ dout x̂, db = Σ dout over rows. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

#include <math.h>

#define GRAIN_ELEMENTS 16384

typedef struct norm_args {
    float *out, *mean, *rstd;
    const float *x, *w, *b;
    int64_t C;
    float eps;
} norm_args;

static int64_t tail_of(int64_t C)
{
    return C - C / VL * VL;
}

static float row_mean(const float *x, int64_t C)
{
    const int64_t full = C / VL * VL;
    vf s0 = v_set1(0.0f), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * VL <= full; i += 2 * VL) {
        s0 += v_load(x + i);
        s1 += v_load(x + i + VL);
    }
    if (i < full) {
        s0 += v_load(x + i);
    }
    if (tail_of(C) != 0) {
        s1 += v_load_n(x + full, tail_of(C));
    }
    return v_sum(s0 + s1) / (float)C;
}

static float row_variance(const float *x, int64_t C, float mean)
{
    const int64_t full = C / VL * VL;
    const vf m = v_set1(mean);
    vf s0 = v_set1(0.0f), s1 = s0;
    int64_t i = 0;
    for (; i + 2 * VL <= full; i += 2 * VL) {
        const vf d0 = v_load(x + i) - m, d1 = v_load(x + i + VL) - m;
        s0 = v_fma(d0, d0, s0);
        s1 = v_fma(d1, d1, s1);
    }
    if (i < full) {
        const vf d = v_load(x + i) - m;
        s0 = v_fma(d, d, s0);
    }
    float tail = 0.0f;
    for (i = full; i < C; i++) {
        const float d = x[i] - mean;
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
        const float *x = t->x + r * C;
        float *out = t->out + r * C;
        const float mean = row_mean(x, C);
        const float rstd = 1.0f / sqrtf(row_variance(x, C, mean) + t->eps);
        const vf m = v_set1(mean), s = v_set1(rstd);
        for (int64_t i = 0; i < full; i += VL) {
            v_store(out + i, v_fma((v_load(x + i) - m) * s, v_load(t->w + i), v_load(t->b + i)));
        }
        if (tail != 0) {
            const vf y = v_fma((v_load_n(x + full, tail) - m) * s, v_load_n(t->w + full, tail),
                               v_load_n(t->b + full, tail));
            v_store_n(out + full, y, tail);
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

void SHD_FN(layernorm_forward)(const shd_opctx *ctx, float *out, float *mean, float *rstd,
                               const float *x, const float *w, const float *b, int64_t R, int64_t C,
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
    float *dx, *dw, *db;
    const float *dout, *x, *w, *mean, *rstd;
    int64_t R, C;
    int acc_dx, acc_dw;
    float *partial; /* [chunks, 2, C] */
} back_args;

typedef struct row_sums {
    vf g, gx; /* Σ g, Σ g x̂ by lane */
} row_sums;

/* One vector of a row in the first pass: adds to dw, db and the two sums of the row. */
static inline void first_pass(row_sums *s, vf dout, vf xhat, vf w, vf *dw, vf *db)
{
    const vf g = dout * w;
    s->g += g;
    s->gx = v_fma(g, xhat, s->gx);
    *dw = v_fma(dout, xhat, *dw);
    *db += dout;
}

static void backward_row(const back_args *t, int64_t r, float *dw, float *db)
{
    const int64_t C = t->C, full = C / VL * VL, tail = tail_of(C);
    const float *x = t->x + r * C, *dout = t->dout + r * C;
    float *dx = t->dx + r * C;
    const vf m = v_set1(t->mean[r]), s = v_set1(t->rstd[r]);
    row_sums sums = {v_set1(0.0f), v_set1(0.0f)};
    for (int64_t i = 0; i < full; i += VL) {
        vf a = v_load(dw + i), b = v_load(db + i);
        first_pass(&sums, v_load(dout + i), (v_load(x + i) - m) * s, v_load(t->w + i), &a, &b);
        v_store(dw + i, a);
        v_store(db + i, b);
    }
    if (tail != 0) { /* missing lanes of dout are 0 and add nothing */
        vf a = v_load_n(dw + full, tail), b = v_load_n(db + full, tail);
        first_pass(&sums, v_load_n(dout + full, tail), (v_load_n(x + full, tail) - m) * s,
                   v_load_n(t->w + full, tail), &a, &b);
        v_store_n(dw + full, a, tail);
        v_store_n(db + full, b, tail);
    }
    const vf mean_g = v_set1(v_sum(sums.g) / (float)C), mean_gx = v_set1(v_sum(sums.gx) / (float)C);
    for (int64_t i = 0; i < full; i += VL) {
        const vf xhat = (v_load(x + i) - m) * s;
        vf d = (v_load(dout + i) * v_load(t->w + i) - mean_g - xhat * mean_gx) * s;
        if (t->acc_dx) {
            d += v_load(dx + i);
        }
        v_store(dx + i, d);
    }
    if (tail != 0) {
        const vf xhat = (v_load_n(x + full, tail) - m) * s;
        vf d =
            (v_load_n(dout + full, tail) * v_load_n(t->w + full, tail) - mean_g - xhat * mean_gx) *
            s;
        if (t->acc_dx) {
            d += v_load_n(dx + full, tail);
        }
        v_store_n(dx + full, d, tail);
    }
}

static void backward_chunks(void *arg, int64_t begin, int64_t end, int worker)
{
    const back_args *t = arg;
    const int64_t rows = chunk_rows(t->R);
    (void)worker;
    for (int64_t chunk = begin; chunk < end; chunk++) {
        float *dw = t->partial + chunk * 2 * t->C, *db = dw + t->C;
        memset(dw, 0, (size_t)(2 * t->C) * sizeof(float));
        const int64_t last = (chunk + 1) * rows < t->R ? (chunk + 1) * rows : t->R;
        for (int64_t r = chunk * rows; r < last; r++) {
            backward_row(t, r, dw, db);
        }
    }
}

/* Adds up one of dw, db over the chunks, in order. */
static void combine(float *restrict out, const float *restrict partial, int64_t chunks, int64_t C,
                    int acc)
{
    if (!acc) {
        memset(out, 0, (size_t)C * sizeof(float));
    }
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        for (int64_t i = 0; i < C; i++) {
            out[i] += partial[chunk * 2 * C + i];
        }
    }
}

void SHD_FN(layernorm_backward)(const shd_opctx *ctx, float *dx, float *dw, float *db,
                                const float *dout, const float *x, const float *w,
                                const float *mean, const float *rstd, int64_t R, int64_t C,
                                int acc_dx, int acc_dw, void *ws)
{
    back_args t = {dx, dw, db, dout, x, w, mean, rstd, R, C, acc_dx, acc_dw, ws};
    shd_cpu_parallel(ctx, chunk_count(R), 1, backward_chunks, &t);
    combine(dw, t.partial, chunk_count(R), C, acc_dw);
    combine(db, t.partial + C, chunk_count(R), C, acc_dw);
}

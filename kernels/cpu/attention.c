/* Causal self-attention by blocks of query rows (Dao 2023, "FlashAttention-2", with all keys of a
 * block at once): a thread holds the scores of one block, BLOCK × T, of one head. What lies above
 * the diagonal is left out, to the width of a vector. Backward computes the scores of a block again
 * from lse:
 *   P = exp(scale·QKᵀ - lse), dV += Pᵀ dO, dP = dO Vᵀ, dS = scale·P∘(dP - rowsum(dO∘O)),
 *   dQ = dS K, dK += dSᵀ Q. */
#include "daemon/base/pool.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile.h"

#include <math.h>

#define BLOCK 32 /* query rows; a multiple of TILE_ROWS */

/* A head's operands as the tiles want them, in the scratch of one thread. Dp is D rounded up to
 * whole vectors; t_stride is T rounded up and a cache line more, so that rows do not all fall on
 * the same cache sets. */
typedef struct scratch {
    float *k_t;         /* [D,t_stride] keys, transposed */
    float *v_t;         /* [D,t_stride] values, transposed (backward) */
    float *k;           /* [T,Dp] (backward) */
    float *v;           /* [T,Dp] (forward) */
    float *dk, *dv;     /* [T,Dp] sums (backward) */
    float *q, *dout;    /* [BLOCK,Dp] (backward) */
    float *scores;      /* [BLOCK,t_stride] */
    float *score_grads; /* [BLOCK,t_stride] (backward) */
    float *rows;        /* [TILE_ROWS,Dp] results on their way out */
    int64_t dp, t_stride;
} scratch;

/* Hands out memory behind `base`; with a NULL base it only counts. */
typedef struct cutter {
    float *base;
    int64_t used;
} cutter;

static float *take(cutter *c, int64_t rows, int64_t width)
{
    float *p = c->base != NULL ? c->base + c->used : NULL;
    c->used += rows * width;
    return p;
}

/* Lays the scratch out and returns its length in floats. */
static int64_t lay_out(scratch *w, const shd_attn_shape *s, int backward, float *base)
{
    cutter c = {base, 0};
    *w = (scratch){.dp = tile_pad(s->D), .t_stride = tile_pad(s->T) + 16};
    w->k_t = take(&c, s->D, w->t_stride);
    w->scores = take(&c, BLOCK, w->t_stride);
    w->rows = take(&c, TILE_ROWS, w->dp);
    if (!backward) {
        w->v = take(&c, s->T, w->dp);
    } else {
        w->v_t = take(&c, s->D, w->t_stride);
        w->k = take(&c, s->T, w->dp);
        w->dk = take(&c, s->T, w->dp);
        w->dv = take(&c, s->T, w->dp);
        w->q = take(&c, BLOCK, w->dp);
        w->dout = take(&c, BLOCK, w->dp);
        w->score_grads = take(&c, BLOCK, w->t_stride);
    }
    return (c.used + 63) / 64 * 64;
}

typedef struct attn_args {
    const shd_attn_shape *s;
    float *out, *lse;    /* forward */
    float *dq, *dk, *dv; /* backward */
    const float *dout, *fwd_out, *fwd_lse;
    const float *q, *k, *v;
    float *ws;
    int64_t ws_thread; /* floats of one thread */
} attn_args;

static int64_t thread_floats(const shd_attn_shape *s, int backward)
{
    scratch w;
    return lay_out(&w, s, backward, NULL);
}

size_t SHD_FN(attention_ws)(const shd_opctx *ctx, const shd_attn_shape *shape, int backward)
{
    return (size_t)(thread_floats(shape, backward) * shd_pool_nthreads(ctx->pool)) * sizeof(float);
}

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void copy_rows(float *to, int64_t ldt, const float *from, int64_t ldf, int64_t rows,
                      int64_t n)
{
    for (int64_t i = 0; i < rows; i++) {
        tile_copy_row(to + i * ldt, from + i * ldf, n);
    }
}

/* to[i, :] = from[i, :] · factor (n floats); factors may be NULL. */
static void put_rows(float *to, int64_t ldt, const float *from, int64_t ldf, int64_t rows,
                     int64_t n, const float *factors)
{
    for (int64_t i = 0; i < rows; i++) {
        const vf factor = v_set1(factors != NULL ? factors[i] : 1.0f);
        int64_t j = 0;
        for (; j + VL <= n; j += VL) {
            v_store(to + i * ldt + j, v_load(from + i * ldf + j) * factor);
        }
        if (j < n) {
            v_store_n(to + i * ldt + j, v_load(from + i * ldf + j) * factor, n - j);
        }
    }
}

/* The first n scores of a row become e^(score - largest), those up to `width` (a whole number of
 * vectors) 0; returns the sum and gives the largest. */
static float softmax_row(float *p, int64_t n, int64_t width, float *largest)
{
    const int64_t full = n / VL * VL, tail = n - full;
    vf top = v_set1(-INFINITY);
    for (int64_t i = 0; i < full; i += VL) {
        top = v_max(top, v_load(p + i));
    }
    float m = full != 0 ? v_largest(top) : p[0];
    for (int64_t i = full; i < n; i++) {
        m = p[i] > m ? p[i] : m;
    }
    const vf vm = v_set1(m);
    vf sum = v_set1(0.0f);
    for (int64_t i = 0; i < full; i += VL) {
        const vf e = v_exp(v_load(p + i) - vm);
        v_store(p + i, e);
        sum += e;
    }
    if (tail != 0) {
        v_store(p + full, v_exp(v_load(p + full) - vm));
    }
    memset(p + n, 0, (size_t)(width - n) * sizeof(float));
    if (tail != 0) {
        sum += v_load(p + full);
    }
    *largest = m;
    return v_sum(sum);
}

static void forward_head(const attn_args *t, int64_t b, int64_t h, float *base)
{
    const shd_attn_shape *s = t->s;
    const int64_t D = s->D, kv = h / (s->H / s->KVH);
    const int64_t kv_at = b * s->T * s->kv_stride + kv * D;
    scratch w;
    lay_out(&w, s, 0, base);
    tile_transpose(w.k_t, w.t_stride, t->k + kv_at, s->kv_stride, s->T, D);
    copy_rows(w.v, w.dp, t->v + kv_at, s->kv_stride, s->T, D);
    for (int64_t q0 = 0; q0 < s->T; q0 += TILE_ROWS) {
        const int64_t rows = at_most(TILE_ROWS, s->T - q0), keys = q0 + rows;
        const int64_t token = b * s->T + q0;
        float inverse[TILE_ROWS];
        tile_product(rows, keys, s->scale, t->q + token * s->q_stride + h * D, s->q_stride, 1,
                     w.k_t, w.t_stride, 0, D, w.scores, w.t_stride, 0);
        for (int64_t i = 0; i < rows; i++) {
            float largest;
            const float sum =
                softmax_row(w.scores + i * w.t_stride, q0 + i + 1, tile_pad(keys), &largest);
            inverse[i] = 1.0f / sum;
            if (t->lse != NULL) {
                t->lse[(b * s->H + h) * s->T + q0 + i] = largest + logf(sum);
            }
        }
        tile_product(rows, D, 1.0f, w.scores, w.t_stride, 1, w.v, w.dp, 0, keys, w.rows, w.dp, 0);
        put_rows(t->out + token * s->out_stride + h * D, s->out_stride, w.rows, w.dp, rows, D,
                 inverse);
    }
}

static void forward_heads(void *arg, int64_t begin, int64_t end, int worker)
{
    const attn_args *t = arg;
    for (int64_t i = begin; i < end; i++) {
        forward_head(t, i / t->s->H, i % t->s->H, t->ws + worker * t->ws_thread);
    }
}

void SHD_FN(attention_forward)(const shd_opctx *ctx, float *out, float *lse, const float *q,
                               const float *k, const float *v, const shd_attn_shape *shape,
                               void *ws)
{
    attn_args t = {
        .s = shape,
        .out = out,
        .lse = lse,
        .q = q,
        .k = k,
        .v = v,
        .ws = ws,
        .ws_thread = thread_floats(shape, 0),
    };
    shd_cpu_parallel(ctx, shape->B * shape->H, 1, forward_heads, &t);
}

/* ---- backward ---- */

/* The first n scores of a row become e^(score - lse), those up to `width` 0. */
static void probabilities(float *p, int64_t n, int64_t width, float lse)
{
    const vf l = v_set1(lse);
    for (int64_t i = 0; i < n; i += VL) {
        v_store(p + i, v_exp(v_load(p + i) - l));
    }
    memset(p + n, 0, (size_t)(width - n) * sizeof(float));
}

static float dot(const float *a, const float *b, int64_t n)
{
    vf sum = v_set1(0.0f);
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        sum = v_fma(v_load(a + i), v_load(b + i), sum);
    }
    if (i < n) {
        sum = v_fma(v_load_n(a + i, n - i), v_load_n(b + i, n - i), sum);
    }
    return v_sum(sum);
}

/* dp becomes scale · p · (dp - delta); p is 0 where there is no score. */
static void score_gradients(float *dp, const float *p, int64_t width, float delta, float scale)
{
    const vf d = v_set1(delta), c = v_set1(scale);
    for (int64_t i = 0; i < width; i += VL) {
        v_store(dp + i, v_load(p + i) * (v_load(dp + i) - d) * c);
    }
}

/* Scores and their gradients of query rows [q0, q0 + rows), tile by tile, and dq from them. */
static void query_rows(const attn_args *t, const scratch *w, int64_t b, int64_t h, int64_t q0,
                       int64_t rows)
{
    const shd_attn_shape *s = t->s;
    const int64_t D = s->D, stride = w->t_stride;
    const float *lse = t->fwd_lse + (b * s->H + h) * s->T;
    for (int64_t i0 = 0; i0 < rows; i0 += TILE_ROWS) {
        const int64_t n = at_most(TILE_ROWS, rows - i0), keys = q0 + i0 + n;
        const int64_t width = tile_pad(keys), token = b * s->T + q0 + i0;
        const float *out = t->fwd_out + token * s->out_stride + h * D;
        float *p = w->scores + i0 * stride, *dp = w->score_grads + i0 * stride;
        const float *dout = w->dout + i0 * w->dp;
        tile_product(n, keys, s->scale, w->q + i0 * w->dp, w->dp, 1, w->k_t, w->t_stride, 0, D, p,
                     stride, 0);
        tile_product(n, keys, 1.0f, dout, w->dp, 1, w->v_t, w->t_stride, 0, D, dp, stride, 0);
        for (int64_t i = 0; i < n; i++) {
            probabilities(p + i * stride, q0 + i0 + i + 1, width, lse[q0 + i0 + i]);
            const float delta = dot(dout + i * w->dp, out + i * s->out_stride, D);
            score_gradients(dp + i * stride, p + i * stride, width, delta, s->scale);
        }
        tile_product(n, D, 1.0f, dp, stride, 1, w->k, w->dp, 0, keys, w->rows, w->dp, 0);
        put_rows(t->dq + token * s->q_stride + h * D, s->q_stride, w->rows, w->dp, n, D, NULL);
    }
}

/* Adds what query rows [q0, q0 + rows) give to dk and dv; a key gets nothing from earlier rows. */
static void key_rows(const attn_args *t, const scratch *w, int64_t q0, int64_t rows)
{
    const int64_t D = t->s->D, keys = q0 + rows;
    for (int64_t j = 0; j < keys; j += TILE_ROWS) {
        const int64_t n = at_most(TILE_ROWS, keys - j), first = j > q0 ? j - q0 : 0;
        tile_product(n, D, 1.0f, w->scores + j, 1, w->t_stride, w->dout, w->dp, first, rows,
                     w->dv + j * w->dp, w->dp, 1);
        tile_product(n, D, 1.0f, w->score_grads + j, 1, w->t_stride, w->q, w->dp, first, rows,
                     w->dk + j * w->dp, w->dp, 1);
    }
}

/* A key head with all query heads that read it: nobody else writes its dk and dv. */
static void backward_key_head(const attn_args *t, int64_t b, int64_t kv, float *base)
{
    const shd_attn_shape *s = t->s;
    const int64_t D = s->D, group = s->H / s->KVH;
    const int64_t kv_at = b * s->T * s->kv_stride + kv * D;
    scratch w;
    lay_out(&w, s, 1, base);
    tile_transpose(w.k_t, w.t_stride, t->k + kv_at, s->kv_stride, s->T, D);
    tile_transpose(w.v_t, w.t_stride, t->v + kv_at, s->kv_stride, s->T, D);
    copy_rows(w.k, w.dp, t->k + kv_at, s->kv_stride, s->T, D);
    memset(w.dk, 0, (size_t)(s->T * w.dp) * sizeof(float));
    memset(w.dv, 0, (size_t)(s->T * w.dp) * sizeof(float));
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        for (int64_t q0 = 0; q0 < s->T; q0 += BLOCK) {
            const int64_t rows = at_most(BLOCK, s->T - q0), token = b * s->T + q0;
            copy_rows(w.q, w.dp, t->q + token * s->q_stride + h * D, s->q_stride, rows, D);
            copy_rows(w.dout, w.dp, t->dout + token * s->out_stride + h * D, s->out_stride, rows,
                      D);
            query_rows(t, &w, b, h, q0, rows);
            key_rows(t, &w, q0, rows);
        }
    }
    put_rows(t->dk + kv_at, s->kv_stride, w.dk, w.dp, s->T, D, NULL);
    put_rows(t->dv + kv_at, s->kv_stride, w.dv, w.dp, s->T, D, NULL);
}

static void backward_heads(void *arg, int64_t begin, int64_t end, int worker)
{
    const attn_args *t = arg;
    for (int64_t i = begin; i < end; i++) {
        backward_key_head(t, i / t->s->KVH, i % t->s->KVH, t->ws + worker * t->ws_thread);
    }
}

void SHD_FN(attention_backward)(const shd_opctx *ctx, float *dq, float *dk, float *dv,
                                const float *dout, const float *out, const float *lse,
                                const float *q, const float *k, const float *v,
                                const shd_attn_shape *shape, void *ws)
{
    attn_args t = {
        .s = shape,
        .dq = dq,
        .dk = dk,
        .dv = dv,
        .dout = dout,
        .fwd_out = out,
        .fwd_lse = lse,
        .q = q,
        .k = k,
        .v = v,
        .ws = ws,
        .ws_thread = thread_floats(shape, 1),
    };
    shd_cpu_parallel(ctx, shape->B * shape->KVH, 1, backward_heads, &t);
}

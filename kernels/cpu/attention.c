/* Causal self-attention by blocks of query rows (Dao 2023, "FlashAttention-2", with all keys of a
 * block at once): a thread holds one block of scores, BLOCK × keys, for one head. Blocks above the
 * diagonal, or before the window, are never computed. Products are the BLAS library's: own tiles in
 * cache were measured and won nothing on a whole step. Backward computes the scores of a block
 * again from lse; with M the mask and factor of dropout (1 without):
 *   P = exp(scale·QKᵀ - lse), dV += (P∘M)ᵀ dO, dP = M∘(dO Vᵀ), dS = scale·P∘(dP - rowsum(dO∘O)),
 *   dQ = dS K, dK += dSᵀ Q.
 * In half precision a head's operands are widened into scratch and its results rounded on their way
 * out; fp32 is computed where it lies. */
#include "daemon/base/pool.h"
#include "kernels/cpu/elt.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/mask.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"

#include <math.h>

#define BLOCK 64 /* query rows */

/* Rows of fp32. */
typedef struct rows {
    float *p;
    int64_t ld;
} rows;

typedef struct attn_args {
    const shd_attn_shape *s;
    elt *out;
    float *lse;        /* forward */
    elt *dq, *dk, *dv; /* backward */
    const elt *dout, *fwd_out;
    const float *fwd_lse;
    const elt *q, *k, *v;
    mask mask;
    float *ws;
    int64_t ws_thread; /* floats of scratch of one thread */
} attn_args;

/* Scratch of one thread. */
typedef struct scratch {
    float *scores, *score_grads; /* [block, stride] */
    float *k, *v, *dk, *dv;      /* [S,D], half precision only */
    float *q, *out, *dq, *dout;  /* [block,D], half precision only */
    int64_t stride;
} scratch;

static int64_t keys_of(const shd_attn_shape *s)
{
    return s->S > 0 ? s->S : s->T;
}

static int64_t block_rows(const shd_attn_shape *s)
{
    return s->T < BLOCK ? s->T : BLOCK;
}

/* Row length of scores: a whole number of cache lines plus one, so that rows do not fall on the
 * same cache sets. */
static int64_t score_stride(const shd_attn_shape *s)
{
    const int64_t seen = s->window > 0 ? s->window + BLOCK : keys_of(s);
    const int64_t n = seen < keys_of(s) ? seen : keys_of(s);
    return (n + 15) / 16 * 16 + 16;
}

/* Hands out parts of `base`; only counts when that is NULL. */
typedef struct cutter {
    float *base;
    int64_t used;
} cutter;

static float *take(cutter *c, int64_t n)
{
    float *p = c->base != NULL ? c->base + c->used : NULL;
    c->used += n;
    return p;
}

/* Lays the scratch out and returns its length in floats. */
static int64_t lay_out(scratch *w, const shd_attn_shape *s, int backward, float *base)
{
    cutter c = {base, 0};
    *w = (scratch){.stride = score_stride(s)};
    w->scores = take(&c, block_rows(s) * w->stride);
    if (backward) {
        w->score_grads = take(&c, block_rows(s) * w->stride);
    }
#ifndef SHD_ELT_F32
    const int64_t head = (keys_of(s) * s->D + 15) / 16 * 16;
    const int64_t block = (block_rows(s) * s->D + 15) / 16 * 16;
    w->k = take(&c, head);
    w->v = take(&c, head);
    w->q = take(&c, block);
    w->out = take(&c, block);
    if (backward) {
        w->dk = take(&c, head);
        w->dv = take(&c, head);
        w->dq = take(&c, block);
        w->dout = take(&c, block);
    }
#endif
    return c.used;
}

static int64_t thread_floats(const shd_attn_shape *s, int backward)
{
    scratch w;
    return lay_out(&w, s, backward, NULL);
}

size_t SHD_FN(attention_ws)(const shd_opctx *ctx, const shd_attn_shape *shape, int backward)
{
    return (size_t)(thread_floats(shape, backward) * shd_pool_nthreads(ctx->pool)) * sizeof(float);
}

#ifdef SHD_ELT_F32
static rows open_rows(const elt *x, int64_t ld, int64_t n, int64_t D, float *room)
{
    (void)n, (void)D, (void)room;
    return (rows){(float *)(uintptr_t)x, ld};
}

static rows result_rows(elt *x, int64_t ld, int64_t D, float *room)
{
    (void)D, (void)room;
    return (rows){x, ld};
}

static void close_rows(elt *x, int64_t ld, rows r, int64_t n, int64_t D)
{
    (void)x, (void)ld, (void)r, (void)n, (void)D;
}
#else
/* n rows of D elements, as fp32: in `room` when they are not already. */
static rows open_rows(const elt *x, int64_t ld, int64_t n, int64_t D, float *room)
{
    for (int64_t i = 0; i < n; i++) {
        for (int64_t d = 0; d < D; d += VL) {
            const int64_t k = D - d < VL ? D - d : VL;
            v_store_n(room + i * D + d, e_load_n(x + i * ld + d, k), k);
        }
    }
    return (rows){room, D};
}

/* Where n rows of results for x are made, */
static rows result_rows(elt *x, int64_t ld, int64_t D, float *room)
{
    (void)x, (void)ld;
    return (rows){room, D};
}

/* and how they get there. */
static void close_rows(elt *x, int64_t ld, rows r, int64_t n, int64_t D)
{
    for (int64_t i = 0; i < n; i++) {
        for (int64_t d = 0; d < D; d += VL) {
            const int64_t k = D - d < VL ? D - d : VL;
            e_store_n(x + i * ld + d, v_load_n(r.p + i * r.ld + d, k), k);
        }
    }
}
#endif

/* A block of query rows and the keys that it meets. */
typedef struct block {
    int64_t q0, n;      /* rows */
    int64_t pos;        /* position of the first */
    int64_t key0, keys; /* first key, number of keys */
} block;

static int64_t first_key(const shd_attn_shape *s, int64_t pos)
{
    return s->window > 0 && pos >= s->window ? pos - s->window + 1 : 0;
}

static block block_at(const shd_attn_shape *s, int64_t q0)
{
    block b = {.q0 = q0, .n = s->T - q0 < BLOCK ? s->T - q0 : BLOCK};
    b.pos = keys_of(s) - s->T + q0;
    b.key0 = first_key(s, b.pos);
    b.keys = b.pos + b.n - b.key0;
    return b;
}

/* Where row i of a block has its first score, and how many. */
static int64_t row_begin(const shd_attn_shape *s, const block *b, int64_t i)
{
    return first_key(s, b->pos + i) - b->key0;
}

static int64_t row_length(const shd_attn_shape *s, const block *b, int64_t i)
{
    return b->pos + i + 1 - first_key(s, b->pos + i);
}

/* Everything of a row of `width` but [begin, begin + n) becomes 0. */
static void clear_around(float *p, int64_t begin, int64_t n, int64_t width)
{
    memset(p, 0, (size_t)begin * sizeof(float));
    memset(p + begin + n, 0, (size_t)(width - begin - n) * sizeof(float));
}

/* The n scores become e^(score - largest); returns the sum and gives the largest. */
static float softmax_row(float *p, int64_t n, float *largest)
{
    const int64_t full = n / VL * VL, tail = n - full;
    vf top = v_set1(-INFINITY);
    for (int64_t i = 0; i < full; i += VL) {
        top = v_max(top, v_load(p + i));
    }
    float m = v_largest(top);
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
    float tail_sum = 0.0f;
    if (tail != 0) {
        float e[VL];
        v_store(e, v_exp(v_load_n(p + full, tail) - vm));
        for (int64_t i = 0; i < tail; i++) {
            p[full + i] = e[i];
            tail_sum += e[i];
        }
    }
    *largest = m;
    return v_sum(sum) + tail_sum;
}

/* p[i] *= dropout's factor of key `key0 + i` for the query at `pos` of head h of a sample. */
static void drop_row(const attn_args *t, float *p, int64_t n, int64_t key0, int64_t sample,
                     int64_t h, int64_t pos)
{
    const uint64_t base = (uint64_t)h << 48 | (uint64_t)pos << 24;
    uint32_t words[MASK_GROUP + VL];
    for (int64_t i = 0; i < n;) {
        const int64_t key = key0 + i, skip = key % MASK_GROUP;
        const int64_t m = n - i < MASK_GROUP - skip ? n - i : MASK_GROUP - skip;
        mask_words(&t->mask, t->s->dropout->first_sample + (uint64_t)sample, base,
                   (uint64_t)(key / MASK_GROUP), words);
        for (int64_t j = 0; j < m; j += VL) {
            const int64_t k = m - j < VL ? m - j : VL;
            const vf x = v_load_n(p + i + j, k) * mask_factors(&t->mask, words + skip + j);
            v_store_n(p + i + j, x, k);
        }
        i += m;
    }
}

static void scale_row(float *p, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i++) {
        p[i] *= factor;
    }
}

static void forward_block(const attn_args *t, const scratch *w, int64_t b, int64_t h, rows k,
                          rows v, const block *at)
{
    const shd_attn_shape *s = t->s;
    const int64_t D = s->D, token = b * s->T + at->q0;
    elt *out_at = t->out + token * s->out_stride + h * D;
    const rows q = open_rows(t->q + token * s->q_stride + h * D, s->q_stride, at->n, D, w->q);
    const rows out = result_rows(out_at, s->out_stride, D, w->out);
    shd_cpu_gemm(0, 1, at->n, at->keys, D, s->scale, q.p, q.ld, k.p + at->key0 * k.ld, k.ld, 0.0f,
                 w->scores, w->stride);
    float inverse[BLOCK];
    for (int64_t i = 0; i < at->n; i++) {
        const int64_t begin = row_begin(s, at, i), n = row_length(s, at, i);
        float *p = w->scores + i * w->stride, largest;
        const float sum = softmax_row(p + begin, n, &largest);
        clear_around(p, begin, n, at->keys);
        inverse[i] = 1.0f / sum;
        if (t->lse != NULL) {
            t->lse[(b * s->H + h) * s->T + at->q0 + i] = largest + logf(sum);
        }
        if (s->dropout != NULL) {
            drop_row(t, p + begin, n, at->key0 + begin, b, h, at->pos + i);
        }
    }
    shd_cpu_gemm(0, 0, at->n, D, at->keys, 1.0f, w->scores, w->stride, v.p + at->key0 * v.ld, v.ld,
                 0.0f, out.p, out.ld);
    for (int64_t i = 0; i < at->n; i++) {
        scale_row(out.p + i * out.ld, D, inverse[i]);
    }
    close_rows(out_at, s->out_stride, out, at->n, D);
}

static void forward_heads(void *arg, int64_t begin, int64_t end, int worker)
{
    const attn_args *t = arg;
    const shd_attn_shape *s = t->s;
    const int64_t S = keys_of(s);
    scratch w;
    lay_out(&w, s, 0, t->ws + worker * t->ws_thread);
    for (int64_t i = begin; i < end; i++) {
        const int64_t b = i / s->H, h = i % s->H, kv = h / (s->H / s->KVH);
        const int64_t kv_at = b * S * s->kv_stride + kv * s->D;
        const rows k = open_rows(t->k + kv_at, s->kv_stride, S, s->D, w.k);
        const rows v = open_rows(t->v + kv_at, s->kv_stride, S, s->D, w.v);
        for (int64_t q0 = 0; q0 < s->T; q0 += BLOCK) {
            const block at = block_at(s, q0);
            forward_block(t, &w, b, h, k, v, &at);
        }
    }
}

void SHD_FN(attention_forward)(const shd_opctx *ctx, void *out, float *lse, const void *q,
                               const void *k, const void *v, const shd_attn_shape *shape, void *ws)
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
    if (shape->dropout != NULL) {
        t.mask = mask_of(shape->dropout);
    }
    shd_cpu_parallel(ctx, shape->B * shape->H, 1, forward_heads, &t);
}

/* ---- backward ---- */

/* The n scores become e^(score - lse). */
static void probabilities(float *p, int64_t n, float lse)
{
    const int64_t full = n / VL * VL, tail = n - full;
    const vf l = v_set1(lse);
    for (int64_t i = 0; i < full; i += VL) {
        v_store(p + i, v_exp(v_load(p + i) - l));
    }
    if (tail != 0) {
        v_store_n(p + full, v_exp(v_load_n(p + full, tail) - l), tail);
    }
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
    int64_t i = 0;
    for (; i + VL <= width; i += VL) {
        v_store(dp + i, v_load(p + i) * (v_load(dp + i) - d) * c);
    }
    if (i < width) {
        const vf x = v_load_n(p + i, width - i) * (v_load_n(dp + i, width - i) - d) * c;
        v_store_n(dp + i, x, width - i);
    }
}

/* A key head's operands and sums. */
typedef struct key_head {
    rows k, v, dk, dv;
} key_head;

/* Adds the part of a block of query rows of head h; `first` says that dk and dv hold nothing yet.
 */
static void backward_block(const attn_args *t, const scratch *w, int64_t b, int64_t h,
                           const key_head *kv, const block *at, int first)
{
    const shd_attn_shape *s = t->s;
    const int64_t D = s->D, stride = w->stride, token = b * s->T + at->q0, n = at->n;
    const int64_t q_at = token * s->q_stride + h * D, out_at = token * s->out_stride + h * D;
    const rows q = open_rows(t->q + q_at, s->q_stride, n, D, w->q);
    const rows out = open_rows(t->fwd_out + out_at, s->out_stride, n, D, w->out);
    const rows dout = open_rows(t->dout + out_at, s->out_stride, n, D, w->dout);
    const rows dq = result_rows(t->dq + q_at, s->q_stride, D, w->dq);
    const float *lse = t->fwd_lse + (b * s->H + h) * s->T + at->q0;
    float *p = w->scores, *dp = w->score_grads;
    const float *k = kv->k.p + at->key0 * kv->k.ld, *v = kv->v.p + at->key0 * kv->v.ld;
    const float keep = first ? 0.0f : 1.0f;

    shd_cpu_gemm(0, 1, n, at->keys, D, s->scale, q.p, q.ld, k, kv->k.ld, 0.0f, p, stride);
    shd_cpu_gemm(0, 1, n, at->keys, D, 1.0f, dout.p, dout.ld, v, kv->v.ld, 0.0f, dp, stride);
    for (int64_t i = 0; i < n; i++) {
        const int64_t begin = row_begin(s, at, i), length = row_length(s, at, i);
        float *row = p + i * stride, *drow = dp + i * stride;
        probabilities(row + begin, length, lse[i]);
        clear_around(row, begin, length, at->keys);
        const float delta = dot(dout.p + i * dout.ld, out.p + i * out.ld, D);
        if (s->dropout != NULL) {
            drop_row(t, drow + begin, length, at->key0 + begin, b, h, at->pos + i);
        }
        score_gradients(drow, row, at->keys, delta, s->scale);
        if (s->dropout != NULL) {
            drop_row(t, row + begin, length, at->key0 + begin, b, h, at->pos + i);
        }
    }
    shd_cpu_gemm(1, 0, at->keys, D, n, 1.0f, p, stride, dout.p, dout.ld, keep,
                 kv->dv.p + at->key0 * kv->dv.ld, kv->dv.ld);
    shd_cpu_gemm(0, 0, n, D, at->keys, 1.0f, dp, stride, k, kv->k.ld, 0.0f, dq.p, dq.ld);
    shd_cpu_gemm(1, 0, at->keys, D, n, 1.0f, dp, stride, q.p, q.ld, keep,
                 kv->dk.p + at->key0 * kv->dk.ld, kv->dk.ld);
    close_rows(t->dq + q_at, s->q_stride, dq, n, D);
}

static void zero_rows(rows r, int64_t n, int64_t D)
{
    for (int64_t i = 0; i < n; i++) {
        memset(r.p + i * r.ld, 0, (size_t)D * sizeof(float));
    }
}

/* A key head with all query heads that read it: nobody else writes its dk and dv. */
static void backward_key_head(const attn_args *t, const scratch *w, int64_t b, int64_t kv)
{
    const shd_attn_shape *s = t->s;
    const int64_t group = s->H / s->KVH, D = s->D, S = keys_of(s);
    const int64_t at = b * S * s->kv_stride + kv * D;
    const key_head head = {open_rows(t->k + at, s->kv_stride, S, D, w->k),
                           open_rows(t->v + at, s->kv_stride, S, D, w->v),
                           result_rows(t->dk + at, s->kv_stride, D, w->dk),
                           result_rows(t->dv + at, s->kv_stride, D, w->dv)};
    /* Without a window the last block sees every key, so what follows it can add. */
    int first = s->window == 0;
    if (!first) {
        zero_rows(head.dk, S, D);
        zero_rows(head.dv, S, D);
    }
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
        for (int64_t q0 = (s->T - 1) / BLOCK * BLOCK; q0 >= 0; q0 -= BLOCK) {
            const block rows_at = block_at(s, q0);
            backward_block(t, w, b, h, &head, &rows_at, first);
            first = 0;
        }
    }
    close_rows(t->dk + at, s->kv_stride, head.dk, S, D);
    close_rows(t->dv + at, s->kv_stride, head.dv, S, D);
}

static void backward_heads(void *arg, int64_t begin, int64_t end, int worker)
{
    const attn_args *t = arg;
    scratch w;
    lay_out(&w, t->s, 1, t->ws + worker * t->ws_thread);
    for (int64_t i = begin; i < end; i++) {
        backward_key_head(t, &w, i / t->s->KVH, i % t->s->KVH);
    }
}

void SHD_FN(attention_backward)(const shd_opctx *ctx, void *dq, void *dk, void *dv,
                                const void *dout, const void *out, const float *lse, const void *q,
                                const void *k, const void *v, const shd_attn_shape *shape, void *ws)
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
    if (shape->dropout != NULL) {
        t.mask = mask_of(shape->dropout);
    }
    shd_cpu_parallel(ctx, shape->B * shape->KVH, 1, backward_heads, &t);
}

/* Causal self-attention by blocks of query rows (Dao 2023, "FlashAttention-2", with all keys of a
 * block at once): a thread holds one block of scores, BLOCK × T, for one head. Blocks above the
 * diagonal are never computed. Products are the BLAS library's: own tiles in cache were measured
 * and won nothing on a whole step. Backward computes the scores of a block again from lse:
 *   P = exp(scale·QKᵀ - lse), dV += Pᵀ dO, dP = dO Vᵀ, dS = scale·P∘(dP - rowsum(dO∘O)),
 *   dQ = dS K, dK += dSᵀ Q. */
#include "daemon/base/pool.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

#include <math.h>

#define BLOCK 64 /* query rows */

typedef struct attn_args {
    const shd_attn_shape *s;
    float *out, *lse;    /* forward */
    float *dq, *dk, *dv; /* backward */
    const float *dout, *fwd_out, *fwd_lse;
    const float *q, *k, *v;
    float *ws;
    int64_t ws_thread; /* floats of scratch of one thread */
} attn_args;

/* Scratch of one thread: one block of scores, in backward also one of their gradients. Row length
 * is a whole number of cache lines plus one, so that rows do not fall on the same cache sets. */
static int64_t score_stride(const shd_attn_shape *s)
{
    return (s->T + 15) / 16 * 16 + 16;
}

static int64_t block_rows(const shd_attn_shape *s)
{
    return s->T < BLOCK ? s->T : BLOCK;
}

static int64_t thread_floats(const shd_attn_shape *s, int backward)
{
    return block_rows(s) * score_stride(s) * (backward ? 2 : 1);
}

size_t SHD_FN(attention_ws)(const shd_opctx *ctx, const shd_attn_shape *shape, int backward)
{
    return (size_t)(thread_floats(shape, backward) * shd_pool_nthreads(ctx->pool)) * sizeof(float);
}

/* Row of `n` scores becomes e^(score - largest), zeros up to `width`; returns the sum and gives the
 * largest. */
static float softmax_row(float *p, int64_t n, int64_t width, float *largest)
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
    memset(p + n, 0, (size_t)(width - n) * sizeof(float));
    *largest = m;
    return v_sum(sum) + tail_sum;
}

static void forward_head(const attn_args *t, int64_t b, int64_t h, float *scores)
{
    const shd_attn_shape *s = t->s;
    const int64_t kv = h / (s->H / s->KVH), stride = score_stride(s), D = s->D;
    const float *k = t->k + b * s->T * s->kv_stride + kv * D;
    const float *v = t->v + b * s->T * s->kv_stride + kv * D;
    for (int64_t q0 = 0; q0 < s->T; q0 += BLOCK) {
        const int64_t rows = s->T - q0 < BLOCK ? s->T - q0 : BLOCK;
        const int64_t keys = q0 + rows, token = b * s->T + q0;
        const float *q = t->q + token * s->q_stride + h * D;
        float *out = t->out + token * s->out_stride + h * D;
        shd_cpu_gemm(0, 1, rows, keys, D, s->scale, q, s->q_stride, k, s->kv_stride, 0.0f, scores,
                     stride);
        float inverse[BLOCK];
        for (int64_t i = 0; i < rows; i++) {
            float largest;
            const float sum = softmax_row(scores + i * stride, q0 + i + 1, keys, &largest);
            inverse[i] = 1.0f / sum;
            if (t->lse != NULL) {
                t->lse[(b * s->H + h) * s->T + q0 + i] = largest + logf(sum);
            }
        }
        shd_cpu_gemm(0, 0, rows, D, keys, 1.0f, scores, stride, v, s->kv_stride, 0.0f, out,
                     s->out_stride);
        for (int64_t i = 0; i < rows; i++) {
            float *row = out + i * s->out_stride;
            for (int64_t d = 0; d < D; d++) {
                row[d] *= inverse[i];
            }
        }
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

static void probabilities(float *p, int64_t n, int64_t width, float lse)
{
    const int64_t full = n / VL * VL, tail = n - full;
    const vf l = v_set1(lse);
    for (int64_t i = 0; i < full; i += VL) {
        v_store(p + i, v_exp(v_load(p + i) - l));
    }
    if (tail != 0) {
        v_store_n(p + full, v_exp(v_load_n(p + full, tail) - l), tail);
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

/* dp becomes scale · p · (dp - delta); p is 0 beyond the diagonal. */
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

/* Adds the part of query rows [q0, q0 + rows) of head h; `first` says that dk and dv hold nothing
 * yet. */
static void backward_block(const attn_args *t, int64_t b, int64_t h, int64_t q0, int64_t rows,
                           int first, float *p)
{
    const shd_attn_shape *s = t->s;
    const int64_t kv = h / (s->H / s->KVH), stride = score_stride(s), D = s->D;
    const int64_t keys = q0 + rows, token = b * s->T + q0;
    const int64_t kv_at = b * s->T * s->kv_stride + kv * D;
    const int64_t q_at = token * s->q_stride + h * D, out_at = token * s->out_stride + h * D;
    const float *q = t->q + q_at, *dout = t->dout + out_at, *out = t->fwd_out + out_at;
    const float *lse = t->fwd_lse + (b * s->H + h) * s->T + q0;
    float *dp = p + block_rows(s) * stride;
    const float keep = first ? 0.0f : 1.0f;

    shd_cpu_gemm(0, 1, rows, keys, D, s->scale, q, s->q_stride, t->k + kv_at, s->kv_stride, 0.0f, p,
                 stride);
    for (int64_t i = 0; i < rows; i++) {
        probabilities(p + i * stride, q0 + i + 1, keys, lse[i]);
    }
    shd_cpu_gemm(1, 0, keys, D, rows, 1.0f, p, stride, dout, s->out_stride, keep, t->dv + kv_at,
                 s->kv_stride);
    shd_cpu_gemm(0, 1, rows, keys, D, 1.0f, dout, s->out_stride, t->v + kv_at, s->kv_stride, 0.0f,
                 dp, stride);
    for (int64_t i = 0; i < rows; i++) {
        const float delta = dot(dout + i * s->out_stride, out + i * s->out_stride, D);
        score_gradients(dp + i * stride, p + i * stride, keys, delta, s->scale);
    }
    shd_cpu_gemm(0, 0, rows, D, keys, 1.0f, dp, stride, t->k + kv_at, s->kv_stride, 0.0f,
                 t->dq + q_at, s->q_stride);
    shd_cpu_gemm(1, 0, keys, D, rows, 1.0f, dp, stride, q, s->q_stride, keep, t->dk + kv_at,
                 s->kv_stride);
}

/* A key head with all query heads that read it: nobody else writes its dk and dv. */
static void backward_heads(void *arg, int64_t begin, int64_t end, int worker)
{
    const attn_args *t = arg;
    const shd_attn_shape *s = t->s;
    const int64_t group = s->H / s->KVH;
    float *p = t->ws + worker * t->ws_thread;
    for (int64_t i = begin; i < end; i++) {
        const int64_t b = i / s->KVH, kv = i % s->KVH;
        int first = 1;
        for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
            /* The last block sees every key, so what follows can add. */
            for (int64_t q0 = (s->T - 1) / BLOCK * BLOCK; q0 >= 0; q0 -= BLOCK) {
                const int64_t rows = s->T - q0 < BLOCK ? s->T - q0 : BLOCK;
                backward_block(t, b, h, q0, rows, first, p);
                first = 0;
            }
        }
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

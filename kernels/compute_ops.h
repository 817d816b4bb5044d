/* The op table of a model's activations, one per compute dtype: fp32, bf16, fp16. `void *` operands
 * are in the table's dtype; `float *` ones (statistics, logits) are fp32 in every table. Arithmetic
 * inside an op is fp32 (products of bf16 and fp16 are exact in it), rounded to nearest even where a
 * result is stored. The tables for processors that multiply bf16 themselves take subnormal factors
 * of the linear ops for 0. The rules of kernels/ops.h hold. Floor F1; called from the thread of the
 * rank that owns the memory. */
#ifndef SHD_KERNELS_COMPUTE_OPS_H
#define SHD_KERNELS_COMPUTE_OPS_H

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which elements a dropout drops: a function of these and of the element's place in its sample, so
 * that neither the cut into ranks and micro-batches nor a repetition changes it. */
typedef struct shd_dropout {
    float p; /* probability of being dropped, [0, 1); the rest is scaled by 1 / (1 - p) */
    uint64_t seed, step;
    uint64_t first_sample; /* of the first sequence of the call; the next have the next */
    uint32_t site;         /* which of the model's dropouts */
} shd_dropout;

typedef enum shd_gelu_form {
    SHD_GELU_TANH = 0, /* ½x(1+tanh(√(2/π)(x+0.044715x³))); Hendrycks & Gimpel 2016 */
    SHD_GELU_ERF = 1   /* ½x(1+erf(x/√2)) */
} shd_gelu_form;

/* Shape of one attention call. q and out are [B,T,H,D], k and v are [B,S,KVH,D]; the row of token
 * (b,t) starts at (b*T + t) * stride, of key (b,s) at (b*S + s) * kv_stride. Query head h reads key
 * head h / (H / KVH). The queries are the last T of S tokens: query t has position S - T + t and
 * reads the keys at or before it, with a window only the last `window` of these (Hugging Face's
 * sliding_window). */
typedef struct shd_attn_shape {
    int64_t B, T, H, KVH, D;
    int64_t q_stride, kv_stride, out_stride; /* elements between rows of consecutive tokens */
    float scale;                             /* usually 1/sqrt(D) */
    int64_t S;                               /* keys of a sequence; 0: T */
    int64_t window;                          /* 0: all keys */
    const shd_dropout *dropout;              /* of probabilities; borrowed; NULL: none */
} shd_attn_shape;

typedef struct shd_compute_ops {
    const char *name; /* e.g. "cpu-x86-64-v4", "null" */
    shd_dtype dtype;

    /* ---- elementwise ---- */
    /* out[i] = a[i] + b[i]; out may be a or b. */
    void (*add)(const shd_opctx *, void *out, const void *a, const void *b, int64_t n);
    void (*gelu_forward)(const shd_opctx *, void *out, const void *x, int64_t n, shd_gelu_form);
    /* dx (+)= dout * gelu'(x); dx may be dout. */
    void (*gelu_backward)(const shd_opctx *, void *dx, const void *dout, const void *x, int64_t n,
                          shd_gelu_form, int acc);
    /* out = silu(gate) * up, silu(x) = x / (1 + e^-x) (Shazeer 2020). */
    void (*swiglu_forward)(const shd_opctx *, void *out, const void *gate, const void *up,
                           int64_t n);
    /* Either of dgate and dup may be NULL, or dout. */
    void (*swiglu_backward)(const shd_opctx *, void *dgate, void *dup, const void *dout,
                            const void *gate, const void *up, int64_t n, int acc_gate, int acc_up);
    /* out[R,C] = residual + dropout(x), rows in sequences of T; residual may be NULL. out may be
     * x or residual. */
    void (*dropout_forward)(const shd_opctx *, void *out, const void *x, const void *residual,
                            int64_t R, int64_t T, int64_t C, const shd_dropout *);
    /* dx (+)= dropout's mask and factor times dout; dx may be dout. */
    void (*dropout_backward)(const shd_opctx *, void *dx, const void *dout, int64_t R, int64_t T,
                             int64_t C, const shd_dropout *, int acc);

    /* ---- linear; `ws` of all three has linear_ws bytes ---- */
    /* out[R,N] = x[R,K] · w + bias + residual. w is [K,N] when w_kn, else [N,K]. bias [N] and
     * residual [R,N] may be NULL; residual may be out. */
    void (*linear_forward)(const shd_opctx *, void *out, const void *x, const void *w,
                           const void *bias, const void *residual, int64_t R, int64_t N, int64_t K,
                           int w_kn, void *ws);
    /* dx[R,K] (+)= dout[R,N] · wᵀ */
    void (*linear_backward_input)(const shd_opctx *, void *dx, const void *dout, const void *w,
                                  int64_t R, int64_t N, int64_t K, int w_kn, int acc, void *ws);
    /* dw (+)= xᵀ · dout in the layout of w; dbias[N] (+)= column sums of dout, rows added in a
     * fixed order. Either may be NULL. */
    void (*linear_backward_weight)(const shd_opctx *, void *dw, void *dbias, const void *dout,
                                   const void *x, int64_t R, int64_t N, int64_t K, int w_kn,
                                   int acc, void *ws);
    size_t (*linear_ws)(const shd_opctx *, int64_t R, int64_t N, int64_t K);
    /* The last linear, whose results stay fp32: logits[R,V] = x[R,K] · wᵀ, w [V,K]. */
    void (*head_forward)(const shd_opctx *, float *logits, const void *x, const void *w, int64_t R,
                         int64_t V, int64_t K, void *ws);
    /* dx[R,K] = dlogits · w; dw (+)= dlogitsᵀ · x, in fp32 as well, for the sum over many calls.
     * Either may be NULL. Processors that multiply bf16 themselves take dlogits rounded to it. */
    void (*head_backward)(const shd_opctx *, void *dx, float *dw, const float *dlogits,
                          const void *x, const void *w, int64_t R, int64_t V, int64_t K, int acc_dw,
                          void *ws);

    /* ---- layer norm (Ba et al. 2016), over the last axis; variance without Bessel correction */
    /* out[R,C], mean[R], rstd[R]; mean and rstd may be NULL when no backward follows. */
    void (*layernorm_forward)(const shd_opctx *, void *out, float *mean, float *rstd, const void *x,
                              const void *w, const void *b, int64_t R, int64_t C, float eps);
    /* dx (+)= by acc_dx; dw[C], db[C] (+)= by acc_dw. Any of the three may be NULL. */
    void (*layernorm_backward)(const shd_opctx *, void *dx, void *dw, void *db, const void *dout,
                               const void *x, const void *w, const float *mean, const float *rstd,
                               int64_t R, int64_t C, int acc_dx, int acc_dw, void *ws);
    size_t (*layernorm_backward_ws)(const shd_opctx *, int64_t R, int64_t C);

    /* ---- RMS norm (Zhang & Sennrich 2019): out = w · x · rstd, rstd = 1/√(mean(x²) + eps) ---- */
    /* In half precision x·rstd is rounded before it meets w, as Hugging Face's models do. rstd[R]
     * may be NULL. */
    void (*rmsnorm_forward)(const shd_opctx *, void *out, float *rstd, const void *x, const void *w,
                            int64_t R, int64_t C, float eps);
    /* dx and dw as in layer norm; either may be NULL. */
    void (*rmsnorm_backward)(const shd_opctx *, void *dx, void *dw, const void *dout, const void *x,
                             const void *w, const float *rstd, int64_t R, int64_t C, int acc_dx,
                             int acc_dw, void *ws);
    size_t (*rmsnorm_backward_ws)(const shd_opctx *, int64_t R, int64_t C);

    /* ---- embedding ---- */
    /* out[r,:] = wte[ids[r],:] + wpe[pos0 + r % T,:]; wpe may be NULL. ids are in [0, V). */
    void (*embedding_forward)(const shd_opctx *, void *out, const void *wte, const void *wpe,
                              const int32_t *ids, int64_t R, int64_t T, int64_t C, int64_t pos0);
    /* dwte[V,C] and dwpe[P,C] (+)= for pos0 = 0; rows with equal index are added in row order, in
     * fp32. Rows of index `pad` add nothing to dwte (-1: there is none). With acc == 0 the whole of
     * dwte and dwpe is overwritten (rows not hit become 0). Either may be NULL. */
    void (*embedding_backward)(const shd_opctx *, void *dwte, void *dwpe, const void *dout,
                               const int32_t *ids, int64_t R, int64_t T, int64_t C, int64_t V,
                               int64_t P, int64_t pad, int acc_wte, int acc_wpe, void *ws);
    size_t (*embedding_backward_ws)(const shd_opctx *, int64_t R, int64_t V);

    /* ---- rotary positions (Su et al. 2021), Hugging Face's pairing (i, i + D/2) ---- */
    /* out (+)= x[R, heads*D] with every pair turned by the angle (pos0 + r % T) * inv_freq[i], or
     * back by it when `inverse` (the backward). out may be x. inv_freq [D/2] is host memory, read
     * during the call. Angles are fp32 products, as in Hugging Face's models. */
    void (*rope)(const shd_opctx *, void *out, const void *x, int64_t R, int64_t T, int64_t heads,
                 int64_t D, int64_t pos0, const float *inv_freq, int inverse, int acc);

    /* ---- causal attention, blocked over queries (Dao 2023): no T×T tensor is kept ---- */
    /* lse[B,H,T] = log-sum-exp of each row of scaled scores (NULL when no backward follows). */
    void (*attention_forward)(const shd_opctx *, void *out, float *lse, const void *q,
                              const void *k, const void *v, const shd_attn_shape *, void *ws);
    /* dq, dk, dv have the strides of q, k, v and are overwritten. S is T. */
    void (*attention_backward)(const shd_opctx *, void *dq, void *dk, void *dv, const void *dout,
                               const void *out, const float *lse, const void *q, const void *k,
                               const void *v, const shd_attn_shape *, void *ws);
    size_t (*attention_ws)(const shd_opctx *, const shd_attn_shape *, int backward);
} shd_compute_ops;

/* The CPU table of a dtype (SHD_F32, SHD_BF16, SHD_F16) for the best instruction set that this
 * processor has. Static storage. */
const shd_compute_ops *shd_compute_ops_cpu(shd_dtype dtype);

/* The same for a named instruction set, as shd_ops_cpu_named. */
const shd_compute_ops *shd_compute_ops_cpu_named(const char *name, shd_dtype dtype);

/* Computes nothing; workspace sizes are those of the CPU table. Counts into ctx->work. */
const shd_compute_ops *shd_compute_ops_null(shd_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif

/* Ops on activations that compute nothing, for a dry run on virtual memory. Workspace sizes are the
 * CPU's, so that the dry run takes the memory that the run will take. */
#include "kernels/compute_ops.h"

/* Nothing is looked at. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static void null_add(const shd_opctx *ctx, void *out, const void *a, const void *b, int64_t n) {}

static void null_gelu_forward(const shd_opctx *ctx, void *out, const void *x, int64_t n,
                              shd_gelu_form form)
{
}

static void null_gelu_backward(const shd_opctx *ctx, void *dx, const void *dout, const void *x,
                               int64_t n, shd_gelu_form form, int acc)
{
}

static void null_swiglu_forward(const shd_opctx *ctx, void *out, const void *gate, const void *up,
                                int64_t n)
{
}

static void null_swiglu_backward(const shd_opctx *ctx, void *dgate, void *dup, const void *dout,
                                 const void *gate, const void *up, int64_t n, int acc_gate,
                                 int acc_up)
{
}

static void null_dropout_forward(const shd_opctx *ctx, void *out, const void *x,
                                 const void *residual, int64_t R, int64_t T, int64_t C,
                                 const shd_dropout *dropout)
{
}

static void null_dropout_backward(const shd_opctx *ctx, void *dx, const void *dout, int64_t R,
                                  int64_t T, int64_t C, const shd_dropout *dropout, int acc)
{
}

static void null_linear_forward(const shd_opctx *ctx, void *out, const void *x, const void *w,
                                const void *bias, const void *residual, int64_t R, int64_t N,
                                int64_t K, int w_kn, void *ws)
{
}

static void null_linear_backward_input(const shd_opctx *ctx, void *dx, const void *dout,
                                       const void *w, int64_t R, int64_t N, int64_t K, int w_kn,
                                       int acc, void *ws)
{
}

static void null_linear_backward_weight(const shd_opctx *ctx, void *dw, void *dbias,
                                        const void *dout, const void *x, int64_t R, int64_t N,
                                        int64_t K, int w_kn, int acc, void *ws)
{
}

static void null_head_forward(const shd_opctx *ctx, float *logits, const void *x, const void *w,
                              int64_t R, int64_t V, int64_t K, void *ws)
{
}

static void null_head_backward(const shd_opctx *ctx, void *dx, float *dw, const float *dlogits,
                               const void *x, const void *w, int64_t R, int64_t V, int64_t K,
                               int acc_dw, void *ws)
{
}

static void null_layernorm_forward(const shd_opctx *ctx, void *out, float *mean, float *rstd,
                                   const void *x, const void *w, const void *b, int64_t R,
                                   int64_t C, float eps)
{
}

static void null_layernorm_backward(const shd_opctx *ctx, void *dx, void *dw, void *db,
                                    const void *dout, const void *x, const void *w,
                                    const float *mean, const float *rstd, int64_t R, int64_t C,
                                    int acc_dx, int acc_dw, void *ws)
{
}

static void null_rmsnorm_forward(const shd_opctx *ctx, void *out, float *rstd, const void *x,
                                 const void *w, int64_t R, int64_t C, float eps)
{
}

static void null_rmsnorm_backward(const shd_opctx *ctx, void *dx, void *dw, const void *dout,
                                  const void *x, const void *w, const float *rstd, int64_t R,
                                  int64_t C, int acc_dx, int acc_dw, void *ws)
{
}

static void null_embedding_forward(const shd_opctx *ctx, void *out, const void *wte,
                                   const void *wpe, const int32_t *ids, int64_t R, int64_t T,
                                   int64_t C, int64_t pos0)
{
}

static void null_embedding_backward(const shd_opctx *ctx, void *dwte, void *dwpe, const void *dout,
                                    const int32_t *ids, int64_t R, int64_t T, int64_t C, int64_t V,
                                    int64_t P, int64_t pad, int acc_wte, int acc_wpe, void *ws)
{
}

static void null_rope(const shd_opctx *ctx, void *out, const void *x, int64_t R, int64_t T,
                      int64_t heads, int64_t D, int64_t pos0, const float *inv_freq, int inverse,
                      int acc)
{
}

static void null_attention_forward(const shd_opctx *ctx, void *out, float *lse, const void *q,
                                   const void *k, const void *v, const shd_attn_shape *shape,
                                   void *ws)
{
}

static void null_attention_backward(const shd_opctx *ctx, void *dq, void *dk, void *dv,
                                    const void *dout, const void *out, const float *lse,
                                    const void *q, const void *k, const void *v,
                                    const shd_attn_shape *shape, void *ws)
{
}

#define SIZES(dtype)                                                                               \
    static size_t null_linear_ws_##dtype(const shd_opctx *ctx, int64_t R, int64_t N, int64_t K)    \
    {                                                                                              \
        return shd_compute_ops_cpu(dtype)->linear_ws(ctx, R, N, K);                                \
    }                                                                                              \
    static size_t null_layernorm_backward_ws_##dtype(const shd_opctx *ctx, int64_t R, int64_t C)   \
    {                                                                                              \
        return shd_compute_ops_cpu(dtype)->layernorm_backward_ws(ctx, R, C);                       \
    }                                                                                              \
    static size_t null_rmsnorm_backward_ws_##dtype(const shd_opctx *ctx, int64_t R, int64_t C)     \
    {                                                                                              \
        return shd_compute_ops_cpu(dtype)->rmsnorm_backward_ws(ctx, R, C);                         \
    }                                                                                              \
    static size_t null_embedding_backward_ws_##dtype(const shd_opctx *ctx, int64_t R, int64_t V)   \
    {                                                                                              \
        return shd_compute_ops_cpu(dtype)->embedding_backward_ws(ctx, R, V);                       \
    }                                                                                              \
    static size_t null_attention_ws_##dtype(const shd_opctx *ctx, const shd_attn_shape *shape,     \
                                            int backward)                                          \
    {                                                                                              \
        return shd_compute_ops_cpu(dtype)->attention_ws(ctx, shape, backward);                     \
    }

SIZES(SHD_F32)
SIZES(SHD_BF16)
SIZES(SHD_F16)

#define TABLE(dt)                                                                                  \
    {                                                                                              \
        .name = "null", .dtype = dt, .add = null_add, .gelu_forward = null_gelu_forward,           \
        .gelu_backward = null_gelu_backward, .swiglu_forward = null_swiglu_forward,                \
        .swiglu_backward = null_swiglu_backward, .dropout_forward = null_dropout_forward,          \
        .dropout_backward = null_dropout_backward, .linear_forward = null_linear_forward,          \
        .linear_backward_input = null_linear_backward_input,                                       \
        .linear_backward_weight = null_linear_backward_weight, .linear_ws = null_linear_ws_##dt,   \
        .head_forward = null_head_forward, .head_backward = null_head_backward,                    \
        .layernorm_forward = null_layernorm_forward,                                               \
        .layernorm_backward = null_layernorm_backward,                                             \
        .layernorm_backward_ws = null_layernorm_backward_ws_##dt,                                  \
        .rmsnorm_forward = null_rmsnorm_forward, .rmsnorm_backward = null_rmsnorm_backward,        \
        .rmsnorm_backward_ws = null_rmsnorm_backward_ws_##dt,                                      \
        .embedding_forward = null_embedding_forward,                                               \
        .embedding_backward = null_embedding_backward,                                             \
        .embedding_backward_ws = null_embedding_backward_ws_##dt, .rope = null_rope,               \
        .attention_forward = null_attention_forward,                                               \
        .attention_backward = null_attention_backward, .attention_ws = null_attention_ws_##dt,     \
    }

const shd_compute_ops *shd_compute_ops_null(shd_dtype dtype)
{
    static const shd_compute_ops f32 = TABLE(SHD_F32), bf16 = TABLE(SHD_BF16), f16 = TABLE(SHD_F16);
    switch (dtype) {
    case SHD_F32:
        return &f32;
    case SHD_BF16:
        return &bf16;
    case SHD_F16:
        return &f16;
    default:
        return NULL;
    }
}

/* Ops that compute nothing, for a dry run on virtual memory. Workspace sizes are the CPU's, so that
 * the dry run takes the memory that the run will take. */
#include "kernels/ops.h"

static void null_copy(const shd_opctx *ctx, void *dst, const void *src, size_t bytes)
{
    (void)ctx, (void)dst, (void)src, (void)bytes;
}

static void null_zero(const shd_opctx *ctx, void *dst, size_t bytes)
{
    (void)ctx, (void)dst, (void)bytes;
}

static void null_add(const shd_opctx *ctx, float *out, const float *a, const float *b, int64_t n)
{
    (void)ctx, (void)out, (void)a, (void)b, (void)n;
}

static void null_scale(const shd_opctx *ctx, float *x, float s, int64_t n)
{
    (void)ctx, (void)x, (void)s, (void)n;
}

static void null_gelu_forward(const shd_opctx *ctx, float *out, const float *x, int64_t n)
{
    (void)ctx, (void)out, (void)x, (void)n;
}

static void null_gelu_backward(const shd_opctx *ctx, float *dx, const float *dout, const float *x,
                               int64_t n, int acc)
{
    (void)ctx, (void)dx, (void)dout, (void)x, (void)n, (void)acc;
}

static void null_linear_forward(const shd_opctx *ctx, float *out, const float *x, const float *w,
                                const float *bias, const float *residual, int64_t R, int64_t N,
                                int64_t K, int w_kn)
{
    (void)ctx, (void)out, (void)x, (void)w, (void)bias, (void)residual;
    (void)R, (void)N, (void)K, (void)w_kn;
}

static void null_linear_backward_input(const shd_opctx *ctx, float *dx, const float *dout,
                                       const float *w, int64_t R, int64_t N, int64_t K, int w_kn,
                                       int acc)
{
    (void)ctx, (void)dx, (void)dout, (void)w, (void)R, (void)N, (void)K, (void)w_kn, (void)acc;
}

static void null_linear_backward_weight(const shd_opctx *ctx, float *dw, float *dbias,
                                        const float *dout, const float *x, int64_t R, int64_t N,
                                        int64_t K, int w_kn, int acc, void *ws)
{
    (void)ctx, (void)dw, (void)dbias, (void)dout, (void)x;
    (void)R, (void)N, (void)K, (void)w_kn, (void)acc, (void)ws;
}

static size_t null_linear_backward_weight_ws(const shd_opctx *ctx, int64_t R, int64_t N, int64_t K)
{
    return shd_ops_cpu()->linear_backward_weight_ws(ctx, R, N, K);
}

static void null_layernorm_forward(const shd_opctx *ctx, float *out, float *mean, float *rstd,
                                   const float *x, const float *w, const float *b, int64_t R,
                                   int64_t C, float eps)
{
    (void)ctx, (void)out, (void)mean, (void)rstd, (void)x, (void)w, (void)b;
    (void)R, (void)C, (void)eps;
}

static void null_layernorm_backward(const shd_opctx *ctx, float *dx, float *dw, float *db,
                                    const float *dout, const float *x, const float *w,
                                    const float *mean, const float *rstd, int64_t R, int64_t C,
                                    int acc_dx, int acc_dw, void *ws)
{
    (void)ctx, (void)dx, (void)dw, (void)db, (void)dout, (void)x, (void)w, (void)mean, (void)rstd;
    (void)R, (void)C, (void)acc_dx, (void)acc_dw, (void)ws;
}

static size_t null_layernorm_backward_ws(const shd_opctx *ctx, int64_t R, int64_t C)
{
    return shd_ops_cpu()->layernorm_backward_ws(ctx, R, C);
}

static void null_embedding_forward(const shd_opctx *ctx, float *out, const float *wte,
                                   const float *wpe, const int32_t *ids, int64_t R, int64_t T,
                                   int64_t C, int64_t pos0)
{
    (void)ctx, (void)out, (void)wte, (void)wpe, (void)ids, (void)R, (void)T, (void)C, (void)pos0;
}

static void null_embedding_backward(const shd_opctx *ctx, float *dwte, float *dwpe,
                                    const float *dout, const int32_t *ids, int64_t R, int64_t T,
                                    int64_t C, int64_t V, int64_t P, int acc_wte, int acc_wpe)
{
    (void)ctx, (void)dwte, (void)dwpe, (void)dout, (void)ids;
    (void)R, (void)T, (void)C, (void)V, (void)P, (void)acc_wte, (void)acc_wpe;
}

static void null_attention_forward(const shd_opctx *ctx, float *out, float *lse, const float *q,
                                   const float *k, const float *v, const shd_attn_shape *shape,
                                   void *ws)
{
    (void)ctx, (void)out, (void)lse, (void)q, (void)k, (void)v, (void)shape, (void)ws;
}

static void null_attention_backward(const shd_opctx *ctx, float *dq, float *dk, float *dv,
                                    const float *dout, const float *out, const float *lse,
                                    const float *q, const float *k, const float *v,
                                    const shd_attn_shape *shape, void *ws)
{
    (void)ctx, (void)dq, (void)dk, (void)dv, (void)dout, (void)out, (void)lse;
    (void)q, (void)k, (void)v, (void)shape, (void)ws;
}

static size_t null_attention_ws(const shd_opctx *ctx, const shd_attn_shape *shape, int backward)
{
    return shd_ops_cpu()->attention_ws(ctx, shape, backward);
}

static void null_cross_entropy(const shd_opctx *ctx, float *losses, float *logits,
                               const int32_t *targets, float grad_scale, int64_t R, int64_t V,
                               int64_t ld, int backward)
{
    (void)ctx, (void)losses, (void)logits, (void)targets, (void)grad_scale;
    (void)R, (void)V, (void)ld, (void)backward;
}

static void null_sum_losses(const shd_opctx *ctx, double *sum, const float *losses, int64_t R)
{
    (void)ctx, (void)sum, (void)losses, (void)R;
}

static void null_tree_sum(const shd_opctx *ctx, float *out, const float *const *in, int64_t V,
                          int64_t n, int acc)
{
    (void)ctx, (void)out, (void)in, (void)V, (void)n, (void)acc;
}

static void null_block_sumsq(const shd_opctx *ctx, double *out, const float *x, int64_t n)
{
    (void)ctx, (void)out, (void)x, (void)n;
}

static void null_adamw(const shd_opctx *ctx, float *p, const float *g, float *m, float *v,
                       int64_t n, const shd_adam_args *args)
{
    (void)ctx, (void)p, (void)g, (void)m, (void)v, (void)n, (void)args;
}

static void null_sgd(const shd_opctx *ctx, float *p, const float *g, float *buf, int64_t n,
                     const shd_sgd_args *args)
{
    (void)ctx, (void)p, (void)g, (void)buf, (void)n, (void)args;
}

static void null_lion(const shd_opctx *ctx, float *p, const float *g, float *m, int64_t n,
                      const shd_lion_args *args)
{
    (void)ctx, (void)p, (void)g, (void)m, (void)n, (void)args;
}

static void null_fill_normal(const shd_opctx *ctx, float *out, int64_t n, uint64_t seed,
                             uint64_t stream, int64_t index0, float mean, float std)
{
    (void)ctx, (void)out, (void)n, (void)seed, (void)stream, (void)index0, (void)mean, (void)std;
}

static void null_fill_constant(const shd_opctx *ctx, float *out, int64_t n, float value)
{
    (void)ctx, (void)out, (void)n, (void)value;
}

const shd_ops *shd_ops_null(void)
{
    static const shd_ops table = {
        .name = "null",
        .copy = null_copy,
        .zero = null_zero,
        .add = null_add,
        .scale = null_scale,
        .gelu_forward = null_gelu_forward,
        .gelu_backward = null_gelu_backward,
        .linear_forward = null_linear_forward,
        .linear_backward_input = null_linear_backward_input,
        .linear_backward_weight = null_linear_backward_weight,
        .linear_backward_weight_ws = null_linear_backward_weight_ws,
        .layernorm_forward = null_layernorm_forward,
        .layernorm_backward = null_layernorm_backward,
        .layernorm_backward_ws = null_layernorm_backward_ws,
        .embedding_forward = null_embedding_forward,
        .embedding_backward = null_embedding_backward,
        .attention_forward = null_attention_forward,
        .attention_backward = null_attention_backward,
        .attention_ws = null_attention_ws,
        .cross_entropy = null_cross_entropy,
        .sum_losses = null_sum_losses,
        .tree_sum = null_tree_sum,
        .block_sumsq = null_block_sumsq,
        .adamw = null_adamw,
        .adam = null_adamw,
        .sgd = null_sgd,
        .lion = null_lion,
        .fill_normal = null_fill_normal,
        .fill_constant = null_fill_constant,
    };
    return &table;
}

/* The ops on activations of one dtype for null_compute.c, which includes this once for each, with
 * TYPED_DTYPE and TYPED(name) defined. Floor F1. No include guard on purpose. */

/* Bytes of an element. */
#define ELT ((double)shd_dtype_size(TYPED_DTYPE))

static void TYPED(add)(const shd_opctx *ctx, void *out, const void *a, const void *b, int64_t n)
{
    shd_null_traffic(ctx, ELT * 3.0 * (double)n);
}

static void TYPED(gelu_forward)(const shd_opctx *ctx, void *out, const void *x, int64_t n,
                                shd_gelu_form form)
{
    shd_null_traffic(ctx, ELT * 2.0 * (double)n);
}

static void TYPED(gelu_backward)(const shd_opctx *ctx, void *dx, const void *dout, const void *x,
                                 int64_t n, shd_gelu_form form, int acc)
{
    shd_null_traffic(ctx, ELT * (acc ? 4.0 : 3.0) * (double)n);
}

static void TYPED(swiglu_forward)(const shd_opctx *ctx, void *out, const void *gate, const void *up,
                                  int64_t n)
{
    shd_null_traffic(ctx, ELT * 3.0 * (double)n);
}

static void TYPED(swiglu_backward)(const shd_opctx *ctx, void *dgate, void *dup, const void *dout,
                                   const void *gate, const void *up, int64_t n, int acc_gate,
                                   int acc_up)
{
    const int written = (dgate != NULL) + (dup != NULL) + acc_gate + acc_up;
    shd_null_traffic(ctx, ELT * (3.0 + written) * (double)n);
}

static void TYPED(dropout_forward)(const shd_opctx *ctx, void *out, const void *x,
                                   const void *residual, int64_t R, int64_t T, int64_t C,
                                   const shd_dropout *dropout)
{
    shd_null_traffic(ctx, ELT * (residual != NULL ? 3.0 : 2.0) * (double)(R * C));
}

static void TYPED(dropout_backward)(const shd_opctx *ctx, void *dx, const void *dout, int64_t R,
                                    int64_t T, int64_t C, const shd_dropout *dropout, int acc)
{
    shd_null_traffic(ctx, ELT * (acc ? 3.0 : 2.0) * (double)(R * C));
}

static void TYPED(linear_forward)(const shd_opctx *ctx, void *out, const void *x, const void *w,
                                  const void *bias, const void *residual, int64_t R, int64_t N,
                                  int64_t K, int w_kn, void *ws)
{
    const double more = residual != NULL ? (double)R * (double)N : 0;
    shd_null_work(ctx, product(R, N, K), 0, ELT * (operands(R, N, K) + more));
}

static void TYPED(linear_backward_input)(const shd_opctx *ctx, void *dx, const void *dout,
                                         const void *w, int64_t R, int64_t N, int64_t K, int w_kn,
                                         int acc, void *ws)
{
    const double more = acc ? (double)R * (double)K : 0;
    shd_null_work(ctx, product(R, N, K), 0, ELT * (operands(R, N, K) + more));
}

static void TYPED(linear_backward_weight)(const shd_opctx *ctx, void *dw, void *dbias,
                                          const void *dout, const void *x, int64_t R, int64_t N,
                                          int64_t K, int w_kn, int acc, void *ws)
{
    const double more = acc ? (double)N * (double)K : 0;
    const double bias = dw != NULL ? 0 : (double)R * (double)N;
    shd_null_work(ctx, dw != NULL ? product(R, N, K) : 0, 0,
                  ELT * (dw != NULL ? operands(R, N, K) + more : bias));
}

static void TYPED(head_forward)(const shd_opctx *ctx, float *logits, const void *x, const void *w,
                                int64_t R, int64_t V, int64_t K, void *ws)
{
    const double logit_bytes = sizeof(float) * (double)R * (double)V;
    shd_null_work(ctx, product(R, V, K), 0,
                  ELT * ((double)R * (double)K + (double)V * (double)K) + logit_bytes);
}

static void TYPED(head_backward)(const shd_opctx *ctx, void *dx, float *dw, const float *dlogits,
                                 const void *x, const void *w, int64_t R, int64_t V, int64_t K,
                                 int acc_dw, void *ws)
{
    const double logit_bytes = sizeof(float) * (double)R * (double)V;
    const double rows = (double)R * (double)K, head = (double)V * (double)K;
    if (dx != NULL) {
        shd_null_work(ctx, product(R, V, K), 0, logit_bytes + ELT * (rows + head));
    }
    if (dw != NULL) {
        shd_null_work(ctx, product(R, V, K), 0,
                      logit_bytes + ELT * rows + sizeof(float) * (acc_dw ? 2 : 1) * head);
    }
}

static void TYPED(layernorm_forward)(const shd_opctx *ctx, void *out, float *mean, float *rstd,
                                     const void *x, const void *w, const void *b, int64_t R,
                                     int64_t C, float eps)
{
    shd_null_traffic(ctx, ELT * 2.0 * (double)(R * C));
}

static void TYPED(layernorm_backward)(const shd_opctx *ctx, void *dx, void *dw, void *db,
                                      const void *dout, const void *x, const void *w,
                                      const float *mean, const float *rstd, int64_t R, int64_t C,
                                      int acc_dx, int acc_dw, void *ws)
{
    shd_null_traffic(ctx, ELT * ((dx != NULL ? 3.0 : 2.0) + (acc_dx ? 1 : 0)) * (double)(R * C));
}

static void TYPED(rmsnorm_forward)(const shd_opctx *ctx, void *out, float *rstd, const void *x,
                                   const void *w, int64_t R, int64_t C, float eps)
{
    shd_null_traffic(ctx, ELT * 2.0 * (double)(R * C));
}

static void TYPED(rmsnorm_backward)(const shd_opctx *ctx, void *dx, void *dw, const void *dout,
                                    const void *x, const void *w, const float *rstd, int64_t R,
                                    int64_t C, int acc_dx, int acc_dw, void *ws)
{
    shd_null_traffic(ctx, ELT * ((dx != NULL ? 3.0 : 2.0) + (acc_dx ? 1 : 0)) * (double)(R * C));
}

static void TYPED(embedding_forward)(const shd_opctx *ctx, void *out, const void *wte,
                                     const void *wpe, const int32_t *ids, int64_t R, int64_t T,
                                     int64_t C, int64_t pos0)
{
    shd_null_traffic(ctx, ELT * (wpe != NULL ? 3.0 : 2.0) * (double)(R * C));
}

static void TYPED(embedding_backward)(const shd_opctx *ctx, void *dwte, void *dwpe,
                                      const void *dout, const int32_t *ids, int64_t R, int64_t T,
                                      int64_t C, int64_t V, int64_t P, int64_t pad, int acc_wte,
                                      int acc_wpe, void *ws)
{
    const double written = (dwte != NULL ? (double)V : 0) + (dwpe != NULL ? (double)P : 0);
    shd_null_traffic(ctx, ELT * ((double)R + written) * (double)C);
}

static void TYPED(rope)(const shd_opctx *ctx, void *out, const void *x, int64_t R, int64_t T,
                        int64_t heads, int64_t D, int64_t pos0, const float *inv_freq, int inverse,
                        int acc)
{
    shd_null_traffic(ctx, ELT * (acc ? 3.0 : 2.0) * (double)(R * heads * D));
}

static void TYPED(attention_forward)(const shd_opctx *ctx, void *out, float *lse, const void *q,
                                     const void *k, const void *v, const shd_attn_shape *shape,
                                     void *ws)
{
    shd_null_work(ctx, 2 * attention_product(shape), 0, ELT * 2 * attention_operands(shape));
}

/* Scores and their gradient, and the gradients of q, k and v; the scores are not kept (Dao 2023).
 */
static void TYPED(attention_backward)(const shd_opctx *ctx, void *dq, void *dk, void *dv,
                                      const void *dout, const void *out, const float *lse,
                                      const void *q, const void *k, const void *v,
                                      const shd_attn_shape *shape, void *ws)
{
    const double one = attention_product(shape);
    shd_null_work(ctx, 5 * one, one, ELT * 4 * attention_operands(shape));
}

static size_t TYPED(linear_ws)(const shd_opctx *ctx, int64_t R, int64_t N, int64_t K)
{
    return shd_compute_ops_cpu(TYPED_DTYPE)->linear_ws(ctx, R, N, K);
}

static size_t TYPED(layernorm_backward_ws)(const shd_opctx *ctx, int64_t R, int64_t C)
{
    return shd_compute_ops_cpu(TYPED_DTYPE)->layernorm_backward_ws(ctx, R, C);
}

static size_t TYPED(rmsnorm_backward_ws)(const shd_opctx *ctx, int64_t R, int64_t C)
{
    return shd_compute_ops_cpu(TYPED_DTYPE)->rmsnorm_backward_ws(ctx, R, C);
}

static size_t TYPED(embedding_backward_ws)(const shd_opctx *ctx, int64_t R, int64_t V)
{
    return shd_compute_ops_cpu(TYPED_DTYPE)->embedding_backward_ws(ctx, R, V);
}

static size_t TYPED(attention_ws)(const shd_opctx *ctx, const shd_attn_shape *shape, int backward)
{
    return shd_compute_ops_cpu(TYPED_DTYPE)->attention_ws(ctx, shape, backward);
}

static const shd_compute_ops *TYPED(table)(void)
{
    static const shd_compute_ops table = {
        .name = "null",
        .dtype = TYPED_DTYPE,
        .add = TYPED(add),
        .gelu_forward = TYPED(gelu_forward),
        .gelu_backward = TYPED(gelu_backward),
        .swiglu_forward = TYPED(swiglu_forward),
        .swiglu_backward = TYPED(swiglu_backward),
        .dropout_forward = TYPED(dropout_forward),
        .dropout_backward = TYPED(dropout_backward),
        .linear_forward = TYPED(linear_forward),
        .linear_backward_input = TYPED(linear_backward_input),
        .linear_backward_weight = TYPED(linear_backward_weight),
        .head_forward = TYPED(head_forward),
        .head_backward = TYPED(head_backward),
        .layernorm_forward = TYPED(layernorm_forward),
        .layernorm_backward = TYPED(layernorm_backward),
        .rmsnorm_forward = TYPED(rmsnorm_forward),
        .rmsnorm_backward = TYPED(rmsnorm_backward),
        .embedding_forward = TYPED(embedding_forward),
        .embedding_backward = TYPED(embedding_backward),
        .rope = TYPED(rope),
        .attention_forward = TYPED(attention_forward),
        .attention_backward = TYPED(attention_backward),
        .linear_ws = TYPED(linear_ws),
        .layernorm_backward_ws = TYPED(layernorm_backward_ws),
        .rmsnorm_backward_ws = TYPED(rmsnorm_backward_ws),
        .embedding_backward_ws = TYPED(embedding_backward_ws),
        .attention_ws = TYPED(attention_ws),
    };
    return &table;
}

#undef ELT
#undef TYPED
#undef TYPED_DTYPE

/* The functions that the op families give to the table of their instruction set; what they do is
 * said in kernels/ops.h. Floor F1. */
#ifndef SHD_KERNELS_CPU_OPS_DECL_H
#define SHD_KERNELS_CPU_OPS_DECL_H

#include "kernels/cpu/isa.h"

/* elementwise.c */
void SHD_FN(copy)(const shd_opctx *ctx, void *dst, const void *src, size_t bytes);
void SHD_FN(zero)(const shd_opctx *ctx, void *dst, size_t bytes);
void SHD_FN(add)(const shd_opctx *ctx, float *out, const float *a, const float *b, int64_t n);
void SHD_FN(scale)(const shd_opctx *ctx, float *x, float s, int64_t n);
void SHD_FN(fill_constant)(const shd_opctx *ctx, float *out, int64_t n, float value);

/* gelu.c */
void SHD_FN(gelu_forward)(const shd_opctx *ctx, float *out, const float *x, int64_t n);
void SHD_FN(gelu_backward)(const shd_opctx *ctx, float *dx, const float *dout, const float *x,
                           int64_t n, int acc);

/* linear.c */
void SHD_FN(linear_forward)(const shd_opctx *ctx, float *out, const float *x, const float *w,
                            const float *bias, const float *residual, int64_t R, int64_t N,
                            int64_t K, int w_kn);
void SHD_FN(linear_backward_input)(const shd_opctx *ctx, float *dx, const float *dout,
                                   const float *w, int64_t R, int64_t N, int64_t K, int w_kn,
                                   int acc);
void SHD_FN(linear_backward_weight)(const shd_opctx *ctx, float *dw, float *dbias,
                                    const float *dout, const float *x, int64_t R, int64_t N,
                                    int64_t K, int w_kn, int acc, void *ws);
size_t SHD_FN(linear_backward_weight_ws)(const shd_opctx *ctx, int64_t R, int64_t N, int64_t K);

/* layernorm.c */
void SHD_FN(layernorm_forward)(const shd_opctx *ctx, float *out, float *mean, float *rstd,
                               const float *x, const float *w, const float *b, int64_t R, int64_t C,
                               float eps);
void SHD_FN(layernorm_backward)(const shd_opctx *ctx, float *dx, float *dw, float *db,
                                const float *dout, const float *x, const float *w,
                                const float *mean, const float *rstd, int64_t R, int64_t C,
                                int acc_dx, int acc_dw, void *ws);
size_t SHD_FN(layernorm_backward_ws)(const shd_opctx *ctx, int64_t R, int64_t C);

/* embedding.c */
void SHD_FN(embedding_forward)(const shd_opctx *ctx, float *out, const float *wte, const float *wpe,
                               const int32_t *ids, int64_t R, int64_t T, int64_t C, int64_t pos0);
void SHD_FN(embedding_backward)(const shd_opctx *ctx, float *dwte, float *dwpe, const float *dout,
                                const int32_t *ids, int64_t R, int64_t T, int64_t C, int64_t V,
                                int64_t P, int acc_wte, int acc_wpe);

/* attention.c */
void SHD_FN(attention_forward)(const shd_opctx *ctx, float *out, float *lse, const float *q,
                               const float *k, const float *v, const shd_attn_shape *shape,
                               void *ws);
void SHD_FN(attention_backward)(const shd_opctx *ctx, float *dq, float *dk, float *dv,
                                const float *dout, const float *out, const float *lse,
                                const float *q, const float *k, const float *v,
                                const shd_attn_shape *shape, void *ws);
size_t SHD_FN(attention_ws)(const shd_opctx *ctx, const shd_attn_shape *shape, int backward);

/* cross_entropy.c */
void SHD_FN(cross_entropy)(const shd_opctx *ctx, float *losses, float *logits,
                           const int32_t *targets, float grad_scale, int64_t R, int64_t V,
                           int64_t ld, int backward);
void SHD_FN(sum_losses)(const shd_opctx *ctx, double *sum, const float *losses, int64_t R);

/* flat.c */
void SHD_FN(tree_sum)(const shd_opctx *ctx, float *out, const float *const *in, int64_t V,
                      int64_t n, int acc);
void SHD_FN(block_sumsq)(const shd_opctx *ctx, double *out, const float *x, int64_t n);

/* optim.c */
void SHD_FN(adamw)(const shd_opctx *ctx, float *p, const float *g, float *m, float *v, int64_t n,
                   const shd_adam_args *args);
void SHD_FN(adam)(const shd_opctx *ctx, float *p, const float *g, float *m, float *v, int64_t n,
                  const shd_adam_args *args);
void SHD_FN(sgd)(const shd_opctx *ctx, float *p, const float *g, float *buf, int64_t n,
                 const shd_sgd_args *args);
void SHD_FN(lion)(const shd_opctx *ctx, float *p, const float *g, float *m, int64_t n,
                  const shd_lion_args *args);

/* random.c */
void SHD_FN(fill_normal)(const shd_opctx *ctx, float *out, int64_t n, uint64_t seed,
                         uint64_t stream, int64_t index0, float mean, float std);

#endif

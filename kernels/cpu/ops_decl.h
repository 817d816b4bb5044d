/* The functions that the op families give to the tables of their instruction set; what they do is
 * said in kernels/ops.h and kernels/compute_ops.h. Floor F1. */
#ifndef SHD_KERNELS_CPU_OPS_DECL_H
#define SHD_KERNELS_CPU_OPS_DECL_H

#include "kernels/compute_ops.h"
#include "kernels/cpu/isa.h"

/* ---- the flat table ---- */

/* elementwise.c */
void SHD_FLAT_FN(copy)(const shd_opctx *ctx, void *dst, const void *src, size_t bytes);
void SHD_FLAT_FN(zero)(const shd_opctx *ctx, void *dst, size_t bytes);
void SHD_FLAT_FN(fill_constant)(const shd_opctx *ctx, float *out, int64_t n, float value);

/* cast.c */
void SHD_FLAT_FN(cast)(const shd_opctx *ctx, void *out, shd_dtype out_dtype, const void *in,
                       shd_dtype in_dtype, int64_t n);

/* cross_entropy.c */
void SHD_FLAT_FN(cross_entropy)(const shd_opctx *ctx, float *losses, float *logits,
                                const int32_t *targets, float grad_scale, int64_t R, int64_t V,
                                int64_t ld, int backward);
void SHD_FLAT_FN(sum_losses)(const shd_opctx *ctx, double *sum, const float *losses, int64_t R);

/* flat.c */
void SHD_FLAT_FN(tree_sum)(const shd_opctx *ctx, void *out, shd_dtype out_dtype,
                           const void *const *in, shd_dtype in_dtype, int64_t V, int64_t n,
                           int acc);
void SHD_FLAT_FN(block_sumsq)(const shd_opctx *ctx, double *out, const void *x, shd_dtype dtype,
                              int64_t n);

/* optim.c */
void SHD_FLAT_FN(adamw)(const shd_opctx *ctx, float *p, const float *g, float *m, float *v,
                        int64_t n, const shd_adam_args *args);
void SHD_FLAT_FN(adam)(const shd_opctx *ctx, float *p, const float *g, float *m, float *v,
                       int64_t n, const shd_adam_args *args);
void SHD_FLAT_FN(sgd)(const shd_opctx *ctx, float *p, const float *g, float *buf, int64_t n,
                      const shd_sgd_args *args);
void SHD_FLAT_FN(lion)(const shd_opctx *ctx, float *p, const float *g, float *m, int64_t n,
                       const shd_lion_args *args);

/* random.c */
void SHD_FLAT_FN(fill_normal)(const shd_opctx *ctx, float *out, int64_t n, uint64_t seed,
                              uint64_t stream, int64_t index0, float mean, float std);

/* ---- the compute table of one dtype ---- */
#ifdef SHD_ELT

/* add.c */
void SHD_FN(add)(const shd_opctx *ctx, void *out, const void *a, const void *b, int64_t n);

/* gelu.c */
void SHD_FN(gelu_forward)(const shd_opctx *ctx, void *out, const void *x, int64_t n,
                          shd_gelu_form form);
void SHD_FN(gelu_backward)(const shd_opctx *ctx, void *dx, const void *dout, const void *x,
                           int64_t n, shd_gelu_form form, int acc);

/* swiglu.c */
void SHD_FN(swiglu_forward)(const shd_opctx *ctx, void *out, const void *gate, const void *up,
                            int64_t n);
void SHD_FN(swiglu_backward)(const shd_opctx *ctx, void *dgate, void *dup, const void *dout,
                             const void *gate, const void *up, int64_t n, int acc_gate, int acc_up);

/* dropout.c */
void SHD_FN(dropout_forward)(const shd_opctx *ctx, void *out, const void *x, const void *residual,
                             int64_t R, int64_t T, int64_t C, const shd_dropout *dropout);
void SHD_FN(dropout_backward)(const shd_opctx *ctx, void *dx, const void *dout, int64_t R,
                              int64_t T, int64_t C, const shd_dropout *dropout, int acc);

/* linear.c */
void SHD_FN(linear_forward)(const shd_opctx *ctx, void *out, const void *x, const void *w,
                            const void *bias, const void *residual, int64_t R, int64_t N, int64_t K,
                            int w_kn, void *ws);
void SHD_FN(linear_backward_input)(const shd_opctx *ctx, void *dx, const void *dout, const void *w,
                                   int64_t R, int64_t N, int64_t K, int w_kn, int acc, void *ws);
void SHD_FN(linear_backward_weight)(const shd_opctx *ctx, void *dw, void *dbias, const void *dout,
                                    const void *x, int64_t R, int64_t N, int64_t K, int w_kn,
                                    int acc, void *ws);
size_t SHD_FN(linear_ws)(const shd_opctx *ctx, int64_t R, int64_t N, int64_t K);
void SHD_FN(head_forward)(const shd_opctx *ctx, float *logits, const void *x, const void *w,
                          int64_t R, int64_t V, int64_t K, void *ws);
void SHD_FN(head_backward)(const shd_opctx *ctx, void *dx, float *dw, const float *dlogits,
                           const void *x, const void *w, int64_t R, int64_t V, int64_t K,
                           int acc_dw, void *ws);

/* layernorm.c */
void SHD_FN(layernorm_forward)(const shd_opctx *ctx, void *out, float *mean, float *rstd,
                               const void *x, const void *w, const void *b, int64_t R, int64_t C,
                               float eps);
void SHD_FN(layernorm_backward)(const shd_opctx *ctx, void *dx, void *dw, void *db,
                                const void *dout, const void *x, const void *w, const float *mean,
                                const float *rstd, int64_t R, int64_t C, int acc_dx, int acc_dw,
                                void *ws);
size_t SHD_FN(layernorm_backward_ws)(const shd_opctx *ctx, int64_t R, int64_t C);

/* rmsnorm.c */
void SHD_FN(rmsnorm_forward)(const shd_opctx *ctx, void *out, float *rstd, const void *x,
                             const void *w, int64_t R, int64_t C, float eps);
void SHD_FN(rmsnorm_backward)(const shd_opctx *ctx, void *dx, void *dw, const void *dout,
                              const void *x, const void *w, const float *rstd, int64_t R, int64_t C,
                              int acc_dx, int acc_dw, void *ws);
size_t SHD_FN(rmsnorm_backward_ws)(const shd_opctx *ctx, int64_t R, int64_t C);

/* rope.c */
void SHD_FN(rope)(const shd_opctx *ctx, void *out, const void *x, int64_t R, int64_t T,
                  int64_t heads, int64_t D, int64_t pos0, const float *inv_freq, int inverse,
                  int acc);

/* embedding.c */
void SHD_FN(embedding_forward)(const shd_opctx *ctx, void *out, const void *wte, const void *wpe,
                               const int32_t *ids, int64_t R, int64_t T, int64_t C, int64_t pos0);
void SHD_FN(embedding_backward)(const shd_opctx *ctx, void *dwte, void *dwpe, const void *dout,
                                const int32_t *ids, int64_t R, int64_t T, int64_t C, int64_t V,
                                int64_t P, int64_t pad, int acc_wte, int acc_wpe, void *ws);
size_t SHD_FN(embedding_backward_ws)(const shd_opctx *ctx, int64_t R, int64_t V);

/* attention.c */
void SHD_FN(attention_forward)(const shd_opctx *ctx, void *out, float *lse, const void *q,
                               const void *k, const void *v, const shd_attn_shape *shape, void *ws);
void SHD_FN(attention_backward)(const shd_opctx *ctx, void *dq, void *dk, void *dv,
                                const void *dout, const void *out, const float *lse, const void *q,
                                const void *k, const void *v, const shd_attn_shape *shape,
                                void *ws);
size_t SHD_FN(attention_ws)(const shd_opctx *ctx, const shd_attn_shape *shape, int backward);

#endif

#endif

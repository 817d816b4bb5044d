/* Flat ops that compute nothing, for a dry run on virtual memory; what they would do is counted. */
#include "kernels/null_work.h"

/* Operands are not looked at. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

/* n elements of a dtype, in bytes. */
static double size(shd_dtype dtype, int64_t n)
{
    return (double)n * (double)shd_dtype_size(dtype);
}

static void null_copy(const shd_opctx *ctx, void *dst, const void *src, size_t bytes)
{
    shd_null_traffic(ctx, 2.0 * (double)bytes);
}

static void null_zero(const shd_opctx *ctx, void *dst, size_t bytes)
{
    shd_null_traffic(ctx, (double)bytes);
}

static void null_cast(const shd_opctx *ctx, void *out, shd_dtype out_dtype, const void *in,
                      shd_dtype in_dtype, int64_t n)
{
    shd_null_traffic(ctx, size(out_dtype, n) + size(in_dtype, n));
}

static void null_cross_entropy(const shd_opctx *ctx, float *losses, float *logits,
                               const int32_t *targets, float grad_scale, int64_t R, int64_t V,
                               int64_t ld, int backward)
{
    shd_null_traffic(ctx, size(SHD_F32, R * V) * (backward ? 2 : 1));
}

static void null_sum_losses(const shd_opctx *ctx, double *sum, const float *losses, int64_t R)
{
    shd_null_traffic(ctx, size(SHD_F32, R));
}

static void null_tree_sum(const shd_opctx *ctx, void *out, shd_dtype out_dtype,
                          const void *const *in, shd_dtype in_dtype, int64_t V, int64_t n, int acc)
{
    shd_null_traffic(ctx, size(in_dtype, V * n) + size(out_dtype, acc ? 2 * n : n));
}

static void null_block_sumsq(const shd_opctx *ctx, double *out, const void *x, shd_dtype dtype,
                             int64_t n)
{
    shd_null_traffic(ctx, size(dtype, n));
}

/* p and the states are read and written, the gradient is read. */
static void null_adamw(const shd_opctx *ctx, float *p, const float *g, float *m, float *v,
                       int64_t n, const shd_adam_args *args)
{
    shd_null_traffic(ctx, size(SHD_F32, 7 * n));
}

static void null_sgd(const shd_opctx *ctx, float *p, const float *g, float *buf, int64_t n,
                     const shd_sgd_args *args)
{
    shd_null_traffic(ctx, size(SHD_F32, (buf != NULL ? 5 : 3) * n));
}

static void null_lion(const shd_opctx *ctx, float *p, const float *g, float *m, int64_t n,
                      const shd_lion_args *args)
{
    shd_null_traffic(ctx, size(SHD_F32, 5 * n));
}

static void null_fill_normal(const shd_opctx *ctx, float *out, int64_t n, uint64_t seed,
                             uint64_t stream, int64_t index0, float mean, float std)
{
    shd_null_traffic(ctx, size(SHD_F32, n));
}

static void null_fill_constant(const shd_opctx *ctx, float *out, int64_t n, float value)
{
    shd_null_traffic(ctx, size(SHD_F32, n));
}

const shd_ops *shd_ops_null(void)
{
    static const shd_ops table = {
        .name = "null",
        .copy = null_copy,
        .zero = null_zero,
        .cast = null_cast,
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

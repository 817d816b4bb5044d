#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

shd_attn_shape Shape()
{
    shd_attn_shape s = {};
    s.B = 2, s.T = 200, s.H = 4, s.KVH = 2, s.D = 16;
    s.q_stride = 64, s.kv_stride = 32, s.out_stride = 64, s.scale = 0.25f;
    return s;
}

/* Pointers with nothing behind them: a dry run must not look. */
float *Nowhere()
{
    return reinterpret_cast<float *>(uintptr_t{1} << 44);
}

TEST(NullOps, TouchNoMemory)
{
    const shd_ops *null = shd_ops_null();
    Context ctx(2);
    float *p = Nowhere();
    const shd_adam_args a = {};
    const void *const *in = reinterpret_cast<const void *const *>(p);
    int32_t *ids = reinterpret_cast<int32_t *>(p);
    double *d = reinterpret_cast<double *>(p);
    null->copy(ctx.get(), p, p, 4096);
    null->zero(ctx.get(), p, 4096);
    null->cast(ctx.get(), p, SHD_BF16, p, SHD_F32, 4096);
    null->cross_entropy(ctx.get(), p, p, ids, 1.0f, 32, 32, 32, 1);
    null->sum_losses(ctx.get(), d, p, 32);
    null->tree_sum(ctx.get(), p, SHD_F32, in, SHD_BF16, 4, 1024, 1);
    null->block_sumsq(ctx.get(), d, p, SHD_F16, 1024);
    null->adamw(ctx.get(), p, p, p, p, 1024, &a);
    null->fill_normal(ctx.get(), p, 1024, 1, 1, 0, 0.0f, 1.0f);
    null->fill_constant(ctx.get(), p, 1024, 0.0f);
}

TEST(NullOps, ComputeTouchesNoMemory)
{
    Context ctx(2);
    float *p = Nowhere();
    int32_t *ids = reinterpret_cast<int32_t *>(p);
    const shd_attn_shape s = Shape();
    const shd_dropout drop = {};
    for (shd_dtype dtype : {SHD_F32, SHD_BF16, SHD_F16}) {
        const shd_compute_ops *null = shd_compute_ops_null(dtype);
        EXPECT_EQ(dtype, null->dtype);
        null->add(ctx.get(), p, p, p, 1024);
        null->gelu_forward(ctx.get(), p, p, 1024, SHD_GELU_ERF);
        null->gelu_backward(ctx.get(), p, p, p, 1024, SHD_GELU_TANH, 1);
        null->swiglu_forward(ctx.get(), p, p, p, 1024);
        null->swiglu_backward(ctx.get(), p, p, p, p, p, 1024, 1, 1);
        null->dropout_forward(ctx.get(), p, p, p, 32, 32, 32, &drop);
        null->dropout_backward(ctx.get(), p, p, 32, 32, 32, &drop, 1);
        null->linear_forward(ctx.get(), p, p, p, p, p, 32, 32, 32, 1, p);
        null->linear_backward_input(ctx.get(), p, p, p, 32, 32, 32, 1, 1, p);
        null->linear_backward_weight(ctx.get(), p, p, p, p, 32, 32, 32, 1, 1, p);
        null->head_forward(ctx.get(), p, p, p, 32, 32, 32, p);
        null->head_backward(ctx.get(), p, p, p, p, p, 32, 32, 32, 1, p);
        null->layernorm_forward(ctx.get(), p, p, p, p, p, p, 32, 32, 1e-5f);
        null->layernorm_backward(ctx.get(), p, p, p, p, p, p, p, p, 32, 32, 1, 1, p);
        null->rmsnorm_forward(ctx.get(), p, p, p, p, 32, 32, 1e-5f);
        null->rmsnorm_backward(ctx.get(), p, p, p, p, p, p, 32, 32, 1, 1, p);
        null->embedding_forward(ctx.get(), p, p, p, ids, 32, 32, 32, 0);
        null->embedding_backward(ctx.get(), p, p, p, ids, 32, 32, 32, 32, 32, -1, 0, 0, p);
        null->rope(ctx.get(), p, p, 32, 32, 2, 16, 0, p, 1, 1);
        null->attention_forward(ctx.get(), p, p, p, p, p, &s, p);
        null->attention_backward(ctx.get(), p, p, p, p, p, p, p, p, p, &s, p);
    }
}

TEST(NullOps, WorkspacesAreTheCpus)
{
    const shd_attn_shape s = Shape();
    for (shd_dtype dtype : {SHD_F32, SHD_BF16, SHD_F16}) {
        const shd_compute_ops *null = shd_compute_ops_null(dtype);
        const shd_compute_ops *cpu = shd_compute_ops_cpu(dtype);
        for (int nthreads : {1, 2, 7}) {
            Context ctx(nthreads);
            for (int backward : {0, 1}) {
                EXPECT_GT(null->attention_ws(ctx.get(), &s, backward), 0u);
                EXPECT_EQ(cpu->attention_ws(ctx.get(), &s, backward),
                          null->attention_ws(ctx.get(), &s, backward));
            }
            EXPECT_GT(null->layernorm_backward_ws(ctx.get(), 300, 200), 0u);
            EXPECT_EQ(cpu->layernorm_backward_ws(ctx.get(), 300, 200),
                      null->layernorm_backward_ws(ctx.get(), 300, 200));
            EXPECT_EQ(cpu->rmsnorm_backward_ws(ctx.get(), 300, 200),
                      null->rmsnorm_backward_ws(ctx.get(), 300, 200));
            EXPECT_EQ(cpu->embedding_backward_ws(ctx.get(), 300, 200),
                      null->embedding_backward_ws(ctx.get(), 300, 200));
            EXPECT_EQ(cpu->linear_ws(ctx.get(), 30, 40, 50),
                      null->linear_ws(ctx.get(), 30, 40, 50));
        }
    }
}

} // namespace

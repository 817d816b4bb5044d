#include "kernels/ops.h"

#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

/* Pointers with nothing behind them: a dry run must not look. */
TEST(NullOps, TouchNoMemory)
{
    const shd_ops *null = shd_ops_null();
    Context ctx(2);
    float *p = reinterpret_cast<float *>(uintptr_t{1} << 44);
    const shd_attn_shape s = {2, 64, 4, 2, 16, 64, 32, 64, 0.25f};
    const shd_adam_args a = {};
    const float *const *in = reinterpret_cast<const float *const *>(uintptr_t{1} << 44);
    int32_t *ids = reinterpret_cast<int32_t *>(p);
    double *d = reinterpret_cast<double *>(p);
    null->copy(ctx.get(), p, p, 4096);
    null->zero(ctx.get(), p, 4096);
    null->add(ctx.get(), p, p, p, 1024);
    null->scale(ctx.get(), p, 2.0f, 1024);
    null->gelu_forward(ctx.get(), p, p, 1024);
    null->gelu_backward(ctx.get(), p, p, p, 1024, 1);
    null->linear_forward(ctx.get(), p, p, p, p, p, 32, 32, 32, 1);
    null->linear_backward_input(ctx.get(), p, p, p, 32, 32, 32, 1, 1);
    null->linear_backward_weight(ctx.get(), p, p, p, p, 32, 32, 32, 1, 1, p);
    null->layernorm_forward(ctx.get(), p, p, p, p, p, p, 32, 32, 1e-5f);
    null->layernorm_backward(ctx.get(), p, p, p, p, p, p, p, p, 32, 32, 1, 1, p);
    null->embedding_forward(ctx.get(), p, p, p, ids, 32, 32, 32, 0);
    null->embedding_backward(ctx.get(), p, p, p, ids, 32, 32, 32, 32, 32, 0, 0);
    null->attention_forward(ctx.get(), p, p, p, p, p, &s, p);
    null->attention_backward(ctx.get(), p, p, p, p, p, p, p, p, p, &s, p);
    null->cross_entropy(ctx.get(), p, p, ids, 1.0f, 32, 32, 32, 1);
    null->sum_losses(ctx.get(), d, p, 32);
    null->tree_sum(ctx.get(), p, in, 4, 1024, 1);
    null->block_sumsq(ctx.get(), d, p, 1024);
    null->adamw(ctx.get(), p, p, p, p, 1024, &a);
    null->fill_normal(ctx.get(), p, 1024, 1, 1, 0, 0.0f, 1.0f);
    null->fill_constant(ctx.get(), p, 1024, 0.0f);
}

TEST(NullOps, WorkspacesAreTheCpus)
{
    const shd_ops *null = shd_ops_null(), *cpu = shd_ops_cpu();
    const shd_attn_shape s = {2, 200, 4, 2, 16, 64, 32, 64, 0.25f};
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
        EXPECT_EQ(cpu->linear_backward_weight_ws(ctx.get(), 30, 40, 50),
                  null->linear_backward_weight_ws(ctx.get(), 30, 40, 50));
    }
}

} // namespace

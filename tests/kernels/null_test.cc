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

/* Counted by hand from the definition of each op. */
TEST(NullOps, CountTheWorkOfProducts)
{
    float *p = Nowhere();
    Context ctx(1);
    shd_op_work work = {};
    shd_opctx counted = *ctx.get();
    counted.work = &work;
    const shd_compute_ops *null = shd_compute_ops_null(SHD_BF16);
    null->linear_forward(&counted, p, p, p, nullptr, nullptr, 3, 5, 7, 1, p);
    EXPECT_EQ(2.0 * 3 * 5 * 7, work.flops);
    EXPECT_EQ(2.0 * (3 * 7 + 5 * 7 + 3 * 5), work.bytes);
    EXPECT_EQ(0.0, work.seconds) << "no rates are stated";
    work = {};
    null->linear_backward_input(&counted, p, p, p, 3, 5, 7, 1, 0, p);
    null->linear_backward_weight(&counted, p, p, p, p, 3, 5, 7, 1, 0, p);
    EXPECT_EQ(2 * 2.0 * 3 * 5 * 7, work.flops);
    EXPECT_EQ(2u, work.calls);
    work = {};
    null->head_backward(&counted, p, nullptr, p, p, p, 3, 5, 7, 0, p);
    EXPECT_EQ(2.0 * 3 * 5 * 7, work.flops) << "the head may be frozen";
}

/* Pairs of a query and a key that it sees, one by one. */
double Pairs(const shd_attn_shape &s)
{
    const int64_t S = s.S != 0 ? s.S : s.T;
    double n = 0;
    for (int64_t t = 0; t < s.T; t++) {
        const int64_t seen = S - s.T + t + 1;
        n += static_cast<double>(s.window != 0 && s.window < seen ? s.window : seen);
    }
    return n * static_cast<double>(s.B * s.H);
}

TEST(NullOps, CountAttentionWithItsMask)
{
    float *p = Nowhere();
    Context ctx(1);
    shd_op_work work = {};
    shd_opctx counted = *ctx.get();
    counted.work = &work;
    const shd_compute_ops *null = shd_compute_ops_null(SHD_F32);
    for (int64_t window : {0, 1, 3, 200, 500}) {
        for (int64_t keys : {0, 200, 201, 1000}) {
            shd_attn_shape s = Shape();
            s.window = window, s.S = keys;
            work = {};
            null->attention_forward(&counted, p, p, p, p, p, &s, p);
            EXPECT_EQ(2 * 2 * Pairs(s) * static_cast<double>(s.D), work.flops)
                << window << " " << keys;
            EXPECT_EQ(0.0, work.repeated);
        }
        shd_attn_shape s = Shape();
        s.window = window;
        work = {};
        null->attention_backward(&counted, p, p, p, p, p, p, p, p, p, &s, p);
        EXPECT_EQ(5 * 2 * Pairs(s) * static_cast<double>(s.D), work.flops);
        EXPECT_EQ(work.flops / 5, work.repeated);
    }
}

/* The roofline: an op takes the longer of its products and its traffic. */
TEST(NullOps, AddUpTheTimeOfOps)
{
    float *p = Nowhere();
    Context ctx(1);
    shd_op_work work = {};
    work.flops_rate = 1000;
    work.memory_rate = 100;
    shd_opctx counted = *ctx.get();
    counted.work = &work;
    const shd_compute_ops *null = shd_compute_ops_null(SHD_F32);
    null->add(&counted, p, p, p, 25); /* 300 bytes: 3 s */
    EXPECT_DOUBLE_EQ(3.0, work.seconds);
    null->linear_forward(&counted, p, p, p, nullptr, nullptr, 100, 100, 100, 1, p);
    EXPECT_DOUBLE_EQ(3.0 + 2000.0, work.seconds) << "2 MFLOP against 120 kB";
    null->linear_forward(&counted, p, p, p, nullptr, nullptr, 1, 100, 100, 1, p);
    EXPECT_DOUBLE_EQ(2003.0 + 408.0, work.seconds) << "20 kFLOP against 40.8 kB";
    const shd_adam_args args = {};
    shd_ops_null()->adamw(&counted, p, p, p, p, 100, &args); /* 28 bytes an element */
    EXPECT_DOUBLE_EQ(2411.0 + 28.0, work.seconds);
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

#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

const int64_t kSizes[] = {1, 7, 16, 17, 1000, 100003};

TEST(Elementwise, AddAlsoInPlace)
{
    for (int64_t n : kSizes) {
        const Floats a = Random(n, 1), b = Random(n, 2);
        Doubles want;
        for (size_t i = 0; i < a.size(); i++) {
            want.push_back(a[i] + b[i]); /* exact: one rounding, in float */
        }
        const ComputeRun out = [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
            Floats o = Garbage(n);
            ops->add(ctx, o.data(), a.data(), b.data(), n);
            return o;
        };
        const ComputeRun over_a = [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
            Floats o = a;
            ops->add(ctx, o.data(), o.data(), b.data(), n);
            return o;
        };
        const ComputeRun over_b = [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
            Floats o = b;
            ops->add(ctx, o.data(), a.data(), o.data(), n);
            return o;
        };
        ExpectOp(out, want, 0.0, "add");
        ExpectOp(over_a, want, 0.0, "add over a");
        ExpectOp(over_b, want, 0.0, "add over b");
    }
}

TEST(Elementwise, Fill)
{
    for (int64_t n : kSizes) {
        ExpectOp(
            [&](const shd_ops *ops, const shd_opctx *ctx) {
                Floats y = Garbage(n);
                ops->fill_constant(ctx, y.data(), n, -2.5f);
                return y;
            },
            Doubles(static_cast<size_t>(n), -2.5), 0.0, "fill_constant");
    }
}

/* Sizes on both sides of every way the copy is done, at odd addresses; neighbours stay as they
 * were. */
TEST(Elementwise, CopyAndZeroAnyBytesAtAnyAddress)
{
    const size_t sizes[] = {0, 1, 63, 4097, (1u << 18) + 3, (9u << 20) + 5, (40u << 20) + 11};
    for (const shd_ops *ops : Tables()) {
        for (int nthreads : {1, 3}) {
            Context ctx(nthreads);
            for (size_t bytes : sizes) {
                std::vector<unsigned char> from(bytes + 128), to(bytes + 128, 0xAA);
                for (size_t i = 0; i < from.size(); i++) {
                    from[i] = static_cast<unsigned char>(i * 7 + (i >> 8));
                }
                ops->copy(ctx.get(), to.data() + 5, from.data() + 3, bytes);
                ASSERT_EQ(0, memcmp(to.data() + 5, from.data() + 3, bytes)) << bytes;
                ASSERT_EQ(0xAA, to[4]);
                ASSERT_EQ(0xAA, to[bytes + 5]);
                ops->zero(ctx.get(), to.data() + 5, bytes);
                for (size_t i = 0; i < bytes; i++) {
                    ASSERT_EQ(0, to[i + 5]) << i << " of " << bytes;
                }
                ASSERT_EQ(0xAA, to[4]);
                ASSERT_EQ(0xAA, to[bytes + 5]);
            }
        }
    }
}

const shd_gelu_form kForms[] = {SHD_GELU_TANH, SHD_GELU_ERF};

double Gelu(shd_gelu_form form, double x)
{
    const double u = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
    return form == SHD_GELU_ERF ? 0.5 * x * std::erfc(-x / std::sqrt(2.0))
                                : 0.5 * x * (1.0 + std::tanh(u));
}

Doubles GeluAll(shd_gelu_form form, const Doubles &x)
{
    Doubles y;
    for (double v : x) {
        y.push_back(Gelu(form, v));
    }
    return y;
}

TEST(Gelu, ForwardOverTheWholeRange)
{
    Floats x = Random(70003, 5, 12.0f);
    for (float v : {0.0f, -0.0f, 1e-20f, -1e-20f, 100.0f, -100.0f, 1e4f, -1e4f}) {
        x.push_back(v);
    }
    const int64_t n = static_cast<int64_t>(x.size());
    for (shd_gelu_form form : kForms) {
        ExpectOp(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                Floats y = Garbage(n);
                ops->gelu_forward(ctx, y.data(), x.data(), n, form);
                return y;
            },
            GeluAll(form, ToDouble(x)), 5e-7, "gelu_forward");
    }
}

TEST(Gelu, NanAndInfinityPassThrough)
{
    const Floats x = {std::nanf(""), INFINITY, 1.0f};
    for (const shd_compute_ops *ops : ComputeTables(SHD_F32)) {
        for (shd_gelu_form form : kForms) {
            Context ctx(1);
            Floats y(3);
            ops->gelu_forward(ctx.get(), y.data(), x.data(), 3, form);
            EXPECT_TRUE(std::isnan(y[0])) << ops->name;
            EXPECT_EQ(INFINITY, y[1]) << ops->name;
            EXPECT_NEAR(Gelu(form, 1.0), y[2], 1e-6) << ops->name;
        }
    }
}

TEST(Gelu, BackwardIsTheDerivative)
{
    const int64_t n = 513;
    const Floats x = Random(n, 6, 8.0f), dout = Random(n, 7), before = Random(n, 8);
    for (shd_gelu_form form : kForms) {
        Doubles want;
        for (size_t i = 0; i < x.size(); i++) {
            want.push_back(NumericGradient([&](const Doubles &v) { return GeluAll(form, v); },
                                           {x[i]}, {dout[i]})[0]);
        }
        ExpectOp(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                Floats dx = Garbage(n);
                ops->gelu_backward(ctx, dx.data(), dout.data(), x.data(), n, form, 0);
                return dx;
            },
            want, 2e-6, "gelu_backward");
        ExpectOp(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                Floats dx = dout;
                ops->gelu_backward(ctx, dx.data(), dx.data(), x.data(), n, form, 0);
                return dx;
            },
            want, 2e-6, "gelu_backward in place");
        for (size_t i = 0; i < want.size(); i++) {
            want[i] += before[i];
        }
        ExpectOp(
            [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                Floats dx = before;
                ops->gelu_backward(ctx, dx.data(), dout.data(), x.data(), n, form, 1);
                return dx;
            },
            want, 2e-6, "gelu_backward acc");
    }
}

/* Any part of a range, at any address, has the bits that it has in the whole. */
TEST(Elementwise, PositionDoesNotMatter)
{
    const int64_t n = 2000;
    const Floats x = Random(n, 9, 4.0f), d = Random(n, 10);
    const auto all = [&](const char *isa, int64_t begin, int64_t end) {
        Context ctx(1);
        const shd_compute_ops *ops = shd_compute_ops_cpu_named(isa, SHD_F32);
        const int64_t m = end - begin;
        std::vector<Floats> out;
        for (shd_gelu_form form : kForms) {
            Floats f(static_cast<size_t>(m)), b(static_cast<size_t>(m));
            ops->gelu_forward(ctx.get(), f.data(), x.data() + begin, m, form);
            ops->gelu_backward(ctx.get(), b.data(), d.data() + begin, x.data() + begin, m, form, 0);
            out.push_back(f);
            out.push_back(b);
        }
        return out;
    };
    for (const char *isa : kIsas) {
        if (shd_ops_cpu_named(isa) == nullptr) {
            continue;
        }
        const std::vector<Floats> whole = all(isa, 0, n);
        for (int64_t begin : {0, 1, 5, 16, 333}) {
            for (int64_t m : {1, 3, 15, 16, 31, 100, 1500}) {
                const std::vector<Floats> part = all(isa, begin, begin + m);
                for (size_t op = 0; op < whole.size(); op++) {
                    const Floats same(whole[op].begin() + begin, whole[op].begin() + begin + m);
                    ASSERT_TRUE(SameBits(same, part[op]))
                        << isa << " op " << op << " at " << begin << " of " << m;
                }
            }
        }
    }
}

TEST(Dispatch, TablesAreNamedAndTheBestIsChosen)
{
    EXPECT_EQ(nullptr, shd_ops_cpu_named("x86-64-v5"));
    ASSERT_NE(nullptr, shd_ops_cpu_named("x86-64"));
    EXPECT_STREQ("cpu-x86-64", shd_ops_cpu_named("x86-64")->name);
    EXPECT_EQ(Tables().back(), shd_ops_cpu());
    for (shd_dtype dtype : {SHD_F32, SHD_BF16, SHD_F16}) {
        EXPECT_EQ(nullptr, shd_compute_ops_cpu_named("x86-64-v5", dtype));
        EXPECT_EQ(ComputeTables(dtype).back(), shd_compute_ops_cpu(dtype));
        EXPECT_EQ(dtype, shd_compute_ops_cpu(dtype)->dtype);
    }
    EXPECT_EQ(nullptr, shd_compute_ops_cpu(SHD_I32));
}

} // namespace

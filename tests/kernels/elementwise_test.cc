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
        const OpRun out = [&](const shd_ops *ops, const shd_opctx *ctx) {
            Floats o = Garbage(n);
            ops->add(ctx, o.data(), a.data(), b.data(), n);
            return o;
        };
        const OpRun over_a = [&](const shd_ops *ops, const shd_opctx *ctx) {
            Floats o = a;
            ops->add(ctx, o.data(), o.data(), b.data(), n);
            return o;
        };
        const OpRun over_b = [&](const shd_ops *ops, const shd_opctx *ctx) {
            Floats o = b;
            ops->add(ctx, o.data(), a.data(), o.data(), n);
            return o;
        };
        ExpectOp(out, want, 0.0, "add");
        ExpectOp(over_a, want, 0.0, "add over a");
        ExpectOp(over_b, want, 0.0, "add over b");
    }
}

TEST(Elementwise, ScaleAndFill)
{
    for (int64_t n : kSizes) {
        const Floats x = Random(n, 3);
        Doubles want;
        for (float v : x) {
            want.push_back(v * 0.37f);
        }
        ExpectOp(
            [&](const shd_ops *ops, const shd_opctx *ctx) {
                Floats y = x;
                ops->scale(ctx, y.data(), 0.37f, n);
                return y;
            },
            want, 0.0, "scale");
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

double Gelu(double x)
{
    const double u = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1.0 + std::tanh(u));
}

Doubles GeluAll(const Doubles &x)
{
    Doubles y;
    for (double v : x) {
        y.push_back(Gelu(v));
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
    Doubles want = GeluAll(ToDouble(x));
    const OpRun run = [&](const shd_ops *ops, const shd_opctx *ctx) {
        Floats y = Garbage(n);
        ops->gelu_forward(ctx, y.data(), x.data(), n);
        return y;
    };
    ExpectOp(run, want, 5e-7, "gelu_forward");
}

TEST(Gelu, NanAndInfinityPassThrough)
{
    const Floats x = {std::nanf(""), INFINITY, 1.0f};
    for (const shd_ops *ops : Tables()) {
        Context ctx(1);
        Floats y(3);
        ops->gelu_forward(ctx.get(), y.data(), x.data(), 3);
        EXPECT_TRUE(std::isnan(y[0])) << ops->name;
        EXPECT_EQ(INFINITY, y[1]) << ops->name;
        EXPECT_NEAR(Gelu(1.0), y[2], 1e-6) << ops->name;
    }
}

TEST(Gelu, BackwardIsTheDerivative)
{
    const int64_t n = 513;
    const Floats x = Random(n, 6, 8.0f), dout = Random(n, 7), before = Random(n, 8);
    Doubles want;
    const Doubles ones(1, 1.0);
    for (size_t i = 0; i < x.size(); i++) {
        want.push_back(NumericGradient(GeluAll, {x[i]}, {dout[i]})[0]);
    }
    ExpectOp(
        [&](const shd_ops *ops, const shd_opctx *ctx) {
            Floats dx = Garbage(n);
            ops->gelu_backward(ctx, dx.data(), dout.data(), x.data(), n, 0);
            return dx;
        },
        want, 2e-6, "gelu_backward");
    ExpectOp(
        [&](const shd_ops *ops, const shd_opctx *ctx) {
            Floats dx = dout;
            ops->gelu_backward(ctx, dx.data(), dx.data(), x.data(), n, 0);
            return dx;
        },
        want, 2e-6, "gelu_backward in place");
    for (size_t i = 0; i < want.size(); i++) {
        want[i] += before[i];
    }
    ExpectOp(
        [&](const shd_ops *ops, const shd_opctx *ctx) {
            Floats dx = before;
            ops->gelu_backward(ctx, dx.data(), dout.data(), x.data(), n, 1);
            return dx;
        },
        want, 2e-6, "gelu_backward acc");
}

/* Any part of a range, at any address, has the bits that it has in the whole. */
TEST(Elementwise, PositionDoesNotMatter)
{
    const int64_t n = 2000;
    const Floats x = Random(n, 9, 4.0f), d = Random(n, 10);
    const auto all = [&](const shd_ops *ops, int64_t begin, int64_t end) {
        Context ctx(1);
        const int64_t m = end - begin;
        Floats f(static_cast<size_t>(m)), b(static_cast<size_t>(m)),
            s(x.begin() + begin, x.begin() + end);
        ops->gelu_forward(ctx.get(), f.data(), x.data() + begin, m);
        ops->gelu_backward(ctx.get(), b.data(), d.data() + begin, x.data() + begin, m, 0);
        ops->scale(ctx.get(), s.data(), 1.1f, m);
        return std::vector<Floats>{f, b, s};
    };
    for (const shd_ops *ops : Tables()) {
        const std::vector<Floats> whole = all(ops, 0, n);
        for (int64_t begin : {0, 1, 5, 16, 333}) {
            for (int64_t m : {1, 3, 15, 16, 31, 100, 1500}) {
                const std::vector<Floats> part = all(ops, begin, begin + m);
                for (size_t op = 0; op < whole.size(); op++) {
                    const Floats same(whole[op].begin() + begin, whole[op].begin() + begin + m);
                    ASSERT_TRUE(SameBits(same, part[op]))
                        << ops->name << " op " << op << " at " << begin << " of " << m;
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
}

} // namespace

#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

constexpr float kScale = 0.125f;

Doubles Losses(const Doubles &logits, const std::vector<int32_t> &targets, int64_t V, int64_t ld)
{
    Doubles losses;
    for (size_t r = 0; r < targets.size(); r++) {
        const double *row = logits.data() + static_cast<int64_t>(r) * ld;
        double top = -INFINITY, sum = 0.0;
        for (int64_t i = 0; i < V; i++) {
            top = std::max(top, row[i]);
        }
        for (int64_t i = 0; i < V; i++) {
            sum += std::exp(row[i] - top);
        }
        losses.push_back(targets[r] < 0 ? 0.0 : std::log(sum) + top - row[targets[r]]);
    }
    return losses;
}

struct Shape {
    int64_t R, V, ld;
};

TEST(CrossEntropy, LossesAndGradients)
{
    for (const Shape &s :
         {Shape{1, 1, 1}, Shape{5, 3, 4}, Shape{9, 256, 256}, Shape{40, 1003, 1010},
          Shape{3, 50257, 50257}, Shape{2, 152064, 152064}}) {
        const Floats logits = Random(s.R * s.ld, 1, 8.0f);
        std::vector<int32_t> targets = RandomIds(s.R, static_cast<int32_t>(s.V), 2);
        if (s.R > 4) {
            targets[2] = -1;
            targets[4] = -100;
        }
        const Doubles losses = Losses(ToDouble(logits), targets, s.V, s.ld);
        ExpectOp(
            [&](const shd_ops *ops, const shd_opctx *ctx) {
                Floats x = logits, l = Garbage(s.R);
                ops->cross_entropy(ctx, l.data(), x.data(), targets.data(), kScale, s.R, s.V, s.ld,
                                   0);
                EXPECT_TRUE(SameBits(logits, x)) << "logits are left as they are";
                return l;
            },
            losses, 1e-6, "cross_entropy");

        Doubles want = losses;
        for (int64_t r = 0; r < s.R; r++) {
            const float *row = logits.data() + r * s.ld;
            const int32_t target = targets[static_cast<size_t>(r)];
            double sum = 0.0;
            for (int64_t i = 0; i < s.V; i++) {
                sum += std::exp(static_cast<double>(row[i]));
            }
            for (int64_t i = 0; i < s.ld; i++) {
                const double p = std::exp(static_cast<double>(row[i])) / sum;
                want.push_back(i >= s.V ? row[i] : target < 0 ? 0.0 : (p - (i == target)) * kScale);
            }
        }
        ExpectOp(
            [&](const shd_ops *ops, const shd_opctx *ctx) {
                Floats x = logits, l = Garbage(s.R);
                ops->cross_entropy(ctx, l.data(), x.data(), targets.data(), kScale, s.R, s.V, s.ld,
                                   1);
                return Concat({l, x});
            },
            want, 2e-6, "cross_entropy with gradients");
    }
}

TEST(CrossEntropy, GradientIsTheDerivative)
{
    const int64_t R = 4, V = 11;
    const Floats logits = Random(R * V, 3, 2.0f);
    const std::vector<int32_t> targets = {0, 10, -1, 5};
    const Doubles want = NumericGradient([&](const Doubles &x) { return Losses(x, targets, V, V); },
                                         ToDouble(logits), Floats(static_cast<size_t>(R), kScale));
    ExpectOp(
        [&](const shd_ops *ops, const shd_opctx *ctx) {
            Floats x = logits, l = Garbage(R);
            ops->cross_entropy(ctx, l.data(), x.data(), targets.data(), kScale, R, V, V, 1);
            return x;
        },
        want, 2e-6, "cross_entropy gradient");
}

TEST(CrossEntropy, ExtremeLogits)
{
    for (const shd_ops *ops : Tables()) {
        Context ctx(1);
        Floats x = {1000.0f, -1000.0f, 0.0f, 1.0f, std::nanf(""), 2.0f}, l(2);
        const std::vector<int32_t> targets = {1, 0};
        ops->cross_entropy(ctx.get(), l.data(), x.data(), targets.data(), 1.0f, 2, 3, 3, 1);
        EXPECT_EQ(2000.0f, l[0]) << ops->name;
        EXPECT_EQ(1.0f, x[0]);
        EXPECT_EQ(-1.0f, x[1]);
        EXPECT_EQ(0.0f, x[2]);
        EXPECT_TRUE(std::isnan(l[1])) << ops->name << ": a NaN among the logits must show";
    }
}

TEST(CrossEntropy, SumInRowOrderInDouble)
{
    const Floats losses = Random(10001, 4);
    double want = 0.0;
    for (float v : losses) {
        want += v;
    }
    for (const shd_ops *ops : Tables()) {
        Context ctx(3);
        double got = -1.0;
        ops->sum_losses(ctx.get(), &got, losses.data(), 10001);
        EXPECT_EQ(want, got);
    }
}

} // namespace

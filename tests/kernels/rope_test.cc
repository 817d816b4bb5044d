#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

struct Case {
    int64_t R, T, heads, D, pos0;
};

const Case kCases[] = {
    {1, 1, 1, 2, 0},        {6, 3, 2, 10, 0},  {40, 20, 3, 64, 7},
    {7, 7, 2, 128, 131000}, {5, 5, 1, 200, 3},
};

Floats Frequencies(int64_t D, double theta = 10000.0)
{
    Floats f;
    for (int64_t i = 0; i < D / 2; i++) {
        f.push_back(static_cast<float>(
            std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(D))));
    }
    return f;
}

/* The angle is the fp32 product, as Hugging Face's models make it; all else in double. */
Doubles Reference(const Case &c, const Doubles &x, const Floats &inv_freq, double direction)
{
    Doubles out(x.size());
    for (int64_t r = 0; r < c.R; r++) {
        for (int64_t h = 0; h < c.heads; h++) {
            for (int64_t i = 0; i < c.D / 2; i++) {
                const float position = static_cast<float>(c.pos0 + r % c.T);
                const double angle = position * inv_freq[static_cast<size_t>(i)];
                const size_t a = static_cast<size_t>((r * c.heads + h) * c.D + i);
                const size_t b = a + static_cast<size_t>(c.D / 2);
                const double cosine = std::cos(angle), sine = direction * std::sin(angle);
                out[a] = x[a] * cosine - x[b] * sine;
                out[b] = x[b] * cosine + x[a] * sine;
            }
        }
    }
    return out;
}

Floats Turn(const shd_compute_ops *ops, const shd_opctx *ctx, const Case &c, const Floats &x,
            const Floats &f, int inverse, const Floats &before)
{
    Elts in(ops, x), out(ops, before.empty() ? Garbage(c.R * c.heads * c.D) : before);
    ops->rope(ctx, out.data(), in.data(), c.R, c.T, c.heads, c.D, c.pos0, f.data(), inverse,
              !before.empty());
    if (before.empty()) {
        ops->rope(ctx, in.data(), in.data(), c.R, c.T, c.heads, c.D, c.pos0, f.data(), inverse, 0);
        EXPECT_TRUE(SameBits(in.floats(), out.floats())) << "in place";
    }
    return out.floats();
}

TEST(Rope, TurnsPairsThereAndBack)
{
    for (const Case &c : kCases) {
        for (double theta : {10000.0, 500000.0}) {
            const Floats f = Frequencies(c.D, theta), x = Random(c.R * c.heads * c.D, 1);
            const Floats before = Random(c.R * c.heads * c.D, 2);
            for (int inverse : {0, 1}) {
                for (int acc : {0, 1}) {
                    Doubles want = Reference(c, ToDouble(x), f, inverse ? -1.0 : 1.0);
                    for (size_t i = 0; acc && i < want.size(); i++) {
                        want[i] += before[i];
                    }
                    ExpectOp(
                        [&](const shd_compute_ops *ops, const shd_opctx *ctx) {
                            return Turn(ops, ctx, c, x, f, inverse, acc ? before : Floats());
                        },
                        want, 4e-7, "rope");
                    ExpectHalf(
                        [&](const shd_compute_ops *ops, const shd_opctx *ctx, shd_dtype d) {
                            return Turn(ops, ctx, c, Rounded(d, x), f, inverse,
                                        acc ? Rounded(d, before) : Floats());
                        },
                        1e-6, "rope");
                }
            }
        }
    }
}

/* A row has the bits that it has when it is computed alone, as generation does. */
TEST(Rope, PositionsOneAtATime)
{
    const Case all{300, 300, 2, 48, 0};
    const Floats f = Frequencies(48), x = Random(300 * 96, 3);
    for (const shd_compute_ops *ops : ComputeTables(SHD_F32)) {
        Context ctx(2);
        const Floats whole = Turn(ops, ctx.get(), all, x, f, 0, {});
        for (int64_t r : {0, 1, 17, 299}) {
            const Floats row(x.begin() + r * 96, x.begin() + (r + 1) * 96);
            const Floats alone = Turn(ops, ctx.get(), {1, 1, 2, 48, r}, row, f, 0, {});
            EXPECT_TRUE(
                SameBits(Floats(whole.begin() + r * 96, whole.begin() + (r + 1) * 96), alone));
        }
    }
}

} // namespace

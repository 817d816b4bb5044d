#include "kernels/philox.h"
#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

constexpr shd_dropout kDrop = {0.3f, 11, 5, 1000, 3};

/* Word by word, as kernels/cpu/mask.h says. */
bool Keeps(const shd_dropout &d, uint64_t sample, uint64_t element)
{
    uint32_t key[4], words[4];
    shd_philox(d.seed, SHD_STREAM(SHD_STREAM_DROPOUT, d.site), d.step, key);
    shd_philox(static_cast<uint64_t>(key[1]) << 32 | key[0], sample,
               element / 64 * 16 + element % 16, words);
    return words[element / 16 % 4] >= static_cast<uint32_t>(d.p * 4294967296.0);
}

Doubles Forward(const shd_dropout &d, const Floats &x, const Floats &residual, int64_t T, int64_t C)
{
    Doubles out;
    for (size_t i = 0; i < x.size(); i++) {
        const uint64_t in_sample = i % static_cast<uint64_t>(T * C);
        const uint64_t sample = d.first_sample + i / static_cast<uint64_t>(T * C);
        const double kept = Keeps(d, sample, in_sample) ? x[i] / (1.0 - d.p) : 0.0;
        out.push_back(kept + (residual.empty() ? 0.0 : residual[i]));
    }
    return out;
}

TEST(Dropout, ForwardAndBackward)
{
    for (auto [R, T, C] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                           {6, 3, 5},
                           {40, 8, 33},
                           {64, 16, 64},
                           {300, 100, 129}}) {
        const int64_t r = R, t = T, c = C;
        const Floats x = Random(R * C, 1), other = Random(R * C, 2);
        for (int with : {0, 1}) {
            const Floats none, &residual = with ? other : none;
            const Doubles want = Forward(kDrop, x, residual, T, C);
            const TypedRun forward = [&](const shd_compute_ops *ops, const shd_opctx *ctx,
                                         shd_dtype d) {
                Elts in(ops, Rounded(d, x)), add(ops, Rounded(d, residual)),
                    out(ops, Garbage(r * c));
                ops->dropout_forward(ctx, out.data(), in.data(), with ? add.data() : nullptr, r, t,
                                     c, &kDrop);
                ops->dropout_forward(ctx, in.data(), in.data(), with ? add.data() : nullptr, r, t,
                                     c, &kDrop);
                EXPECT_TRUE(SameBits(in.floats(), out.floats())) << "in place";
                return out.floats();
            };
            const TypedRun backward = [&](const shd_compute_ops *ops, const shd_opctx *ctx,
                                          shd_dtype d) {
                Elts in(ops, Rounded(d, x)), dx(ops, with ? Rounded(d, other) : Garbage(r * c));
                ops->dropout_backward(ctx, dx.data(), in.data(), r, t, c, &kDrop, with);
                return dx.floats();
            };
            ExpectOp([&](const shd_compute_ops *ops,
                         const shd_opctx *ctx) { return forward(ops, ctx, SHD_F32); },
                     want, 3e-7, "dropout_forward");
            ExpectOp([&](const shd_compute_ops *ops,
                         const shd_opctx *ctx) { return backward(ops, ctx, SHD_F32); },
                     want, 3e-7, "dropout_backward");
            ExpectHalf(forward, 1e-6, "dropout_forward");
            ExpectHalf(backward, 1e-6, "dropout_backward");
        }
    }
}

/* A sample's mask is the same in any batch, and differs by everything that it is keyed by. */
TEST(Dropout, AMaskBelongsToItsSample)
{
    const int64_t T = 7, C = 31, n = T * C;
    Context ctx(2);
    const shd_compute_ops *ops = shd_compute_ops_cpu(SHD_F32);
    const auto mask = [&](shd_dropout d, int64_t sequences) {
        Floats out(static_cast<size_t>(sequences * n)),
            ones(static_cast<size_t>(sequences * n), 1.0f);
        ops->dropout_forward(ctx.get(), out.data(), ones.data(), nullptr, sequences * T, T, C, &d);
        return out;
    };
    const Floats four = mask(kDrop, 4);
    for (uint64_t s = 0; s < 4; s++) {
        shd_dropout d = kDrop;
        d.first_sample += s;
        EXPECT_TRUE(SameBits(Floats(four.begin() + static_cast<int64_t>(s) * n,
                                    four.begin() + static_cast<int64_t>(s + 1) * n),
                             mask(d, 1)));
    }
    for (int field = 0; field < 4; field++) {
        shd_dropout d = kDrop;
        d.seed += field == 0;
        d.step += field == 1;
        d.first_sample += field == 2;
        d.site += field == 3;
        EXPECT_FALSE(SameBits(mask(kDrop, 1), mask(d, 1))) << field;
    }
}

TEST(Dropout, DropsTheShareThatIsAskedFor)
{
    const int64_t n = 1 << 20;
    Context ctx(2);
    for (float p : {0.1f, 0.5f, 0.9f}) {
        shd_dropout d = kDrop;
        d.p = p;
        Floats x(static_cast<size_t>(n), 1.0f);
        shd_compute_ops_cpu(SHD_F32)->dropout_forward(ctx.get(), x.data(), x.data(), nullptr, 1024,
                                                      256, 1024, &d);
        double zeros = 0.0, sum = 0.0;
        for (float v : x) {
            zeros += v == 0.0f;
            sum += v;
        }
        const double sigma = std::sqrt(p * (1.0 - p) / static_cast<double>(n));
        EXPECT_NEAR(p, zeros / static_cast<double>(n), 5.0 * sigma);
        EXPECT_NEAR(1.0, sum / static_cast<double>(n), 5.0 * sigma / (1.0 - p));
    }
}

} // namespace

#include "kernels/philox.h"
#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

struct Answer {
    uint64_t seed, stream, index;
    uint32_t out[4];
};

/* Known answers of the authors' library (Random123, kat_vectors, philox4x32 10 rounds). */
TEST(Philox, KnownAnswers)
{
    const uint64_t ones = UINT64_MAX;
    for (const Answer &a : {
             Answer{0, 0, 0, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
             Answer{ones, ones, ones, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
             Answer{0x299f31d0a4093822u,
                    0x0370734413198a2eu,
                    0x85a308d3243f6a88u,
                    {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}},
         }) {
        uint32_t out[4];
        shd_philox(a.seed, a.stream, a.index, out);
        for (int i = 0; i < 4; i++) {
            EXPECT_EQ(a.out[i], out[i]);
        }
    }
}

TEST(Philox, UnitIsAboveZeroAndAtMostOne)
{
    EXPECT_EQ(1.0f, shd_philox_unit(UINT32_MAX));
    EXPECT_EQ(1.0f / 16777216.0f, shd_philox_unit(0));
    EXPECT_EQ(0.5f, shd_philox_unit(0x7fffffffu));
}

TEST(FillNormal, FollowsItsFormula)
{
    const int64_t n = 4099;
    Doubles want;
    for (int64_t i = 0; i < n; i++) {
        uint32_t w[4];
        shd_philox(11, 22, static_cast<uint64_t>(i / 4), w);
        const int pair = static_cast<int>(i % 4) / 2 * 2;
        const double radius =
            std::sqrt(-2.0 * std::log(static_cast<double>(shd_philox_unit(w[pair]))));
        const double angle = 2.0 * M_PI * static_cast<double>(shd_philox_unit(w[pair + 1]));
        want.push_back(0.5 + 2.0 * radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)));
    }
    ExpectOp(
        [&](const shd_ops *ops, const shd_opctx *ctx) {
            Floats x = Garbage(n);
            ops->fill_normal(ctx, x.data(), n, 11, 22, 0, 0.5f, 2.0f);
            return x;
        },
        want, 2e-6, "fill_normal");
}

TEST(FillNormal, AnyPartHasTheBitsOfTheWhole)
{
    const int64_t n = 3000, start = int64_t{5} << 33;
    for (const shd_ops *ops : Tables()) {
        Context ctx(2);
        Floats whole(static_cast<size_t>(n));
        ops->fill_normal(ctx.get(), whole.data(), n, 1, 2, start, 0.0f, 0.02f);
        for (int64_t begin : {0, 1, 2, 3, 4, 63, 64, 1001}) {
            for (int64_t size : {1, 2, 3, 5, 64, 65, 1500}) {
                Floats part(static_cast<size_t>(size));
                ops->fill_normal(ctx.get(), part.data(), size, 1, 2, start + begin, 0.0f, 0.02f);
                ASSERT_TRUE(
                    SameBits(Floats(whole.begin() + begin, whole.begin() + begin + size), part))
                    << ops->name << " " << begin << " + " << size;
            }
        }
    }
}

TEST(FillNormal, Moments)
{
    const int64_t n = 1 << 20;
    for (const shd_ops *ops : Tables()) {
        Context ctx(2);
        Floats x(static_cast<size_t>(n));
        ops->fill_normal(ctx.get(), x.data(), n, 42, 7, 0, 0.0f, 1.0f);
        double m1 = 0.0, m2 = 0.0, m3 = 0.0, m4 = 0.0, neighbours = 0.0;
        int64_t outside = 0;
        for (size_t i = 0; i < x.size(); i++) {
            const double v = x[i];
            m1 += v;
            m2 += v * v;
            m3 += v * v * v;
            m4 += v * v * v * v;
            neighbours += i > 0 ? v * x[i - 1] : 0.0;
            outside += std::fabs(v) > 1.959964;
        }
        const double N = static_cast<double>(n); /* standard errors: 1e-3, 1.4e-3, 2.4e-3, 1e-2 */
        EXPECT_NEAR(0.0, m1 / N, 4e-3) << ops->name;
        EXPECT_NEAR(1.0, m2 / N, 6e-3);
        EXPECT_NEAR(0.0, m3 / N, 1e-2);
        EXPECT_NEAR(3.0, m4 / N, 4e-2);
        EXPECT_NEAR(0.0, neighbours / N, 4e-3);
        EXPECT_NEAR(0.05, static_cast<double>(outside) / N, 1e-3);
    }
}

TEST(FillNormal, SeedsAndStreamsDiffer)
{
    Context ctx(1);
    Floats a(64), b(64), c(64);
    shd_ops_cpu()->fill_normal(ctx.get(), a.data(), 64, 1, 1, 0, 0.0f, 1.0f);
    shd_ops_cpu()->fill_normal(ctx.get(), b.data(), 64, 1, 2, 0, 0.0f, 1.0f);
    shd_ops_cpu()->fill_normal(ctx.get(), c.data(), 64, 2, 1, 0, 0.0f, 1.0f);
    EXPECT_FALSE(SameBits(a, b));
    EXPECT_FALSE(SameBits(a, c));
    EXPECT_FALSE(SameBits(b, c));
}

} // namespace

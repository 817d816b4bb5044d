#include "tests/kernels/op_test.h"

using namespace optest;

namespace
{

const shd_dtype kDtypes[] = {SHD_F32, SHD_BF16, SHD_F16};

uint32_t Bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

float FromBits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* Numbers of every binade, among them ties and their neighbours for both half types. */
Floats Numbers()
{
    Floats x = {0.0f,
                -0.0f,
                1.0f,
                65504.0f,
                65519.99f,
                65520.0f,
                65536.0f,
                -1e30f,
                3.38e38f,
                3.39e38f,
                3.4e38f,
                INFINITY,
                -INFINITY,
                1e-45f,
                6e-8f,
                2.98e-8f,
                2.9802322387695312e-8f,
                2.99e-8f,
                5.96e-8f,
                6.1e-5f,
                6.09e-5f,
                1.17e-38f};
    std::mt19937 engine(1);
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        for (int i = 0; i < 40; i++) {
            const uint32_t top = (engine() & 0x80000000u) | exponent << 23;
            const uint32_t mantissa = engine() & 0x7fffffu;
            x.push_back(FromBits(top | mantissa));
            for (uint32_t tie : {0x8000u, 0x1000u}) {
                const uint32_t at = (mantissa & ~(2 * tie - 1)) | tie;
                for (uint32_t near : {at - 1, at, at + 1}) {
                    x.push_back(FromBits(top | (near & 0x7fffffu)));
                }
            }
        }
    }
    return x;
}

std::vector<uint16_t> Down(const shd_ops *ops, int nthreads, shd_dtype dtype, const Floats &x)
{
    Context ctx(nthreads);
    std::vector<uint16_t> h(x.size() + 1, 0x1234);
    ops->cast(ctx.get(), h.data(), dtype, x.data(), SHD_F32, static_cast<int64_t>(x.size()));
    EXPECT_EQ(0x1234, h.back());
    h.pop_back();
    return h;
}

TEST(Cast, DownToTheNearestEven)
{
    const Floats x = Numbers();
    for (shd_dtype dtype : {SHD_BF16, SHD_F16}) {
        for (const shd_ops *ops : Tables()) {
            const std::vector<uint16_t> h = Down(ops, 1, dtype, x);
            Elts want(dtype, x);
            EXPECT_EQ(0, memcmp(want.data(), h.data(), 2 * h.size())) << ops->name;
            Context ctx(1);
            Floats back(x.size());
            ops->cast(ctx.get(), back.data(), SHD_F32, h.data(), dtype,
                      static_cast<int64_t>(x.size()));
            for (size_t i = 0; i < x.size(); i++) {
                ASSERT_EQ(Bits(Rounded(dtype, x[i])), Bits(back[i]))
                    << ops->name << " " << shd_dtype_name(dtype) << " of " << x[i];
            }
        }
    }
}

TEST(Cast, EveryHalfValueThereAndBack)
{
    std::vector<uint16_t> all(65536);
    for (size_t i = 0; i < all.size(); i++) {
        all[i] = static_cast<uint16_t>(i);
    }
    for (shd_dtype dtype : {SHD_BF16, SHD_F16}) {
        for (const shd_ops *ops : Tables()) {
            Context ctx(2);
            Floats up(all.size());
            ops->cast(ctx.get(), up.data(), SHD_F32, all.data(), dtype, 65536);
            const std::vector<uint16_t> down = Down(ops, 2, dtype, up);
            const uint32_t infinity = dtype == SHD_BF16 ? 0x7f80u : 0x7c00u;
            for (uint32_t i = 0; i < 65536; i++) {
                const bool nan = (i & 0x7fffu) > infinity;
                ASSERT_EQ(nan, std::isnan(up[i])) << ops->name << " " << i;
                if (!nan) {
                    ASSERT_EQ(i, down[i]) << ops->name << " " << shd_dtype_name(dtype);
                } else {
                    ASSERT_GT(down[i] & 0x7fffu, infinity) << "a NaN stays one";
                }
            }
        }
    }
}

TEST(Cast, NanStaysNan)
{
    Floats x;
    for (uint32_t payload : {1u, 0x1fffu, 0x2000u, 0xffffu, 0x10000u, 0x400000u, 0x7fffffu}) {
        x.push_back(FromBits(0x7f800000u | payload));
        x.push_back(FromBits(0xff800000u | payload));
    }
    for (const shd_ops *ops : Tables()) {
        for (uint16_t h : Down(ops, 1, SHD_BF16, x)) {
            EXPECT_GT(h & 0x7fffu, 0x7f80u) << ops->name;
        }
        for (uint16_t h : Down(ops, 1, SHD_F16, x)) {
            EXPECT_GT(h & 0x7fffu, 0x7c00u) << ops->name;
        }
    }
}

/* Between any two dtypes, any length, any address, any number of threads. */
TEST(Cast, AnyPairAnyLength)
{
    for (shd_dtype from : kDtypes) {
        for (shd_dtype to : kDtypes) {
            for (int64_t n : {0, 1, 15, 16, 17, 1000, 70001}) {
                const Floats x = Random(n + 1, 3, 100.0f);
                Elts in(from, x);
                for (const shd_ops *ops : Tables()) {
                    for (int nthreads : {1, 3}) {
                        Context ctx(nthreads);
                        Elts out(to, Floats(static_cast<size_t>(n), 7.0f));
                        ops->cast(ctx.get(), out.data(), to, in.at(1), from, n);
                        Floats want = in.floats();
                        want.erase(want.begin());
                        ASSERT_TRUE(SameBits(Rounded(to, want), out.floats()))
                            << ops->name << " " << shd_dtype_name(from) << " to "
                            << shd_dtype_name(to) << ", " << n;
                    }
                }
            }
        }
    }
}

} // namespace

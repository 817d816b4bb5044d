// Conversions of files' numbers: exact up for every value, and down to the nearest.
#include "daemon/store/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace
{

// What 16 bits mean, by the definition of the format (IEEE 754-2008, 3.4).
double Value(uint16_t bits, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
        return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
    }
    return exponent == 0 ? sign * std::ldexp(mantissa, 1 - bias - mantissa_bits)
                         : sign * std::ldexp((1 << mantissa_bits) + mantissa,
                                             exponent - bias - mantissa_bits);
}

class Halves : public ::testing::TestWithParam<shd_st_dtype>
{
  protected:
    double Of(uint16_t bits) const
    {
        return GetParam() == SHD_ST_BF16 ? Value(bits, 8, 7) : Value(bits, 5, 10);
    }
};

TEST_P(Halves, EveryValueGoesUpExactlyAndComesBack)
{
    std::vector<uint16_t> in(65536), out(65536);
    std::vector<float> up(65536);
    for (size_t i = 0; i < in.size(); i++) {
        in[i] = static_cast<uint16_t>(i);
    }
    shd_convert_to_f32(up.data(), in.data(), GetParam(), in.size());
    ASSERT_EQ(shd_convert_from_f32(out.data(), GetParam(), up.data(), up.size()), up.size());
    for (size_t i = 0; i < in.size(); i++) {
        const double value = Of(in[i]);
        if (std::isnan(value)) {
            EXPECT_TRUE(std::isnan(up[i]) && std::isnan(Of(out[i]))) << i;
        } else {
            EXPECT_EQ(static_cast<double>(up[i]), value) << i;
            EXPECT_EQ(out[i], in[i]) << i;
        }
    }
}

// Between two neighbours: below, at and above the middle.
TEST_P(Halves, DownToTheNearestTiesToEven)
{
    for (uint16_t bits = 0; Of(static_cast<uint16_t>(bits + 1)) < INFINITY; bits++) {
        const double low = Of(bits), high = Of(static_cast<uint16_t>(bits + 1));
        const float middle = static_cast<float>((low + high) / 2);
        if (static_cast<double>(middle) != (low + high) / 2) {
            continue; // finer than fp32
        }
        const float in[3] = {std::nextafterf(middle, 0), middle, std::nextafterf(middle, INFINITY)};
        uint16_t out[3];
        ASSERT_EQ(shd_convert_from_f32(out, GetParam(), in, 3), 3u);
        EXPECT_EQ(out[0], bits);
        EXPECT_EQ(out[1], bits % 2 == 0 ? bits : bits + 1);
        EXPECT_EQ(out[2], bits + 1);
    }
}

TEST_P(Halves, BeyondTheRangeIsTold)
{
    const float beyond = GetParam() == SHD_ST_BF16 ? 3.4e38f : 65520.0f;
    const float in[] = {1, INFINITY, -INFINITY, -beyond, 2};
    uint16_t out[5];
    EXPECT_EQ(shd_convert_from_f32(out, GetParam(), in, 5), 3u);
    EXPECT_TRUE(std::isinf(Of(out[1])) && std::isinf(Of(out[2])));
    const float largest = GetParam() == SHD_ST_BF16 ? 3.38e38f : 65519.0f;
    EXPECT_EQ(shd_convert_from_f32(out, GetParam(), &largest, 1), 1u);
}

INSTANTIATE_TEST_SUITE_P(Types, Halves, ::testing::Values(SHD_ST_BF16, SHD_ST_F16),
                         [](const auto &type) { return shd_st_dtype_name(type.param); });

TEST(Convert, Fp32StaysBitForBit)
{
    const uint32_t in[] = {0x7f800001u, 0x80000000u, 1u, 0x3f800000u};
    float up[4];
    uint32_t out[4];
    shd_convert_to_f32(up, in, SHD_ST_F32, 4);
    EXPECT_EQ(shd_convert_from_f32(out, SHD_ST_F32, up, 4), 4u);
    EXPECT_EQ(memcmp(in, out, sizeof(in)), 0);
    EXPECT_TRUE(shd_st_dtype_is_float(SHD_ST_BF16));
    EXPECT_FALSE(shd_st_dtype_is_float(SHD_ST_I32));
}

} // namespace

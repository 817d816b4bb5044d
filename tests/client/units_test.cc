#include "client/units.h"

#include <cmath>
#include <cstdlib>
#include <string>

#include "client/utf8.h"
#include "gtest/gtest.h"

static std::string bytes(uint64_t n)
{
    char out[SHC_UNIT_LEN];
    return shc_format_bytes(out, n);
}
static std::string count(double n)
{
    char out[SHC_UNIT_LEN];
    return shc_format_count(out, n);
}
static std::string hms(double s)
{
    char out[SHC_UNIT_LEN];
    return shc_format_hms(out, s);
}
static std::string age(double s)
{
    char out[SHC_UNIT_LEN];
    return shc_format_age(out, s);
}
static std::string clean(const std::string &s)
{
    shc_buf buf{};
    shc_text_clean(&buf, s.c_str());
    std::string out = shc_buf_str(&buf);
    shc_buf_fini(&buf);
    return out;
}

TEST(Units, Bytes)
{
    EXPECT_EQ(bytes(0), "0 B  ");
    EXPECT_EQ(bytes(1023), "1023 B  ");
    EXPECT_EQ(bytes(1024), "1.0 KiB");
    EXPECT_EQ(bytes(1536), "1.5 KiB");
    EXPECT_EQ(bytes(1048575), "1.0 MiB"); // not 1024.0 KiB
    EXPECT_EQ(bytes(1u << 20), "1.0 MiB");
    EXPECT_EQ(bytes(12900000), "12.3 MiB");
    EXPECT_EQ(bytes(1ull << 40), "1.0 TiB");
    EXPECT_EQ(bytes(UINT64_MAX), "16.0 EiB");
}

TEST(Units, Counts)
{
    EXPECT_EQ(count(0), "0");
    EXPECT_EQ(count(987), "987");
    EXPECT_EQ(count(999.6), "1.00k");
    EXPECT_EQ(count(12345), "12.3k");
    EXPECT_EQ(count(99960), "100k");
    EXPECT_EQ(count(842000), "842k");
    EXPECT_EQ(count(124439808), "124M");
    EXPECT_EQ(count(1.5576e9), "1.56G");
    EXPECT_EQ(count(NAN), "-");
}

TEST(Units, Durations)
{
    EXPECT_EQ(hms(0), "0:00:00");
    EXPECT_EQ(hms(7.4), "0:00:07");
    EXPECT_EQ(hms(59.6), "0:01:00");
    EXPECT_EQ(hms(3723), "1:02:03");
    EXPECT_EQ(hms(360000), "100:00:00");
    EXPECT_EQ(hms(-1), "-");
    EXPECT_EQ(hms(INFINITY), "-");
    EXPECT_EQ(age(12.9), "12s");
    EXPECT_EQ(age(3599), "59m");
    EXPECT_EQ(age(86399), "23h");
    EXPECT_EQ(age(200000), "2d");
    EXPECT_EQ(age(-5), "0s");
}

TEST(Units, Time)
{
    char out[SHC_UNIT_LEN];
    setenv("TZ", "UTC", 1);
    EXPECT_STREQ(shc_format_time(out, 1700000000.9), "2023-11-14 22:13:20");
}

TEST(Units, TextOfOthersCannotDriveTheTerminal)
{
    EXPECT_EQ(clean("plain"), "plain");
    EXPECT_EQ(clean("a\x1b[2Jb\rc\x7f"), "a?[2Jb?c?");
    EXPECT_EQ(clean("gr\xC3\xB6\xC3\x9F"), "gr\xC3\xB6\xC3\x9F");
    EXPECT_EQ(clean("x\xC3"), "x?");
    EXPECT_EQ(clean("\xC2\x9B"), "?"); // CSI as one code point
    EXPECT_EQ(shc_text_width("gr\xC3\xB6\xC3\x9F"), 4u);
}

static int next(const std::string &s)
{
    return shc_utf8_next(reinterpret_cast<const unsigned char *>(s.data()), s.size());
}

TEST(Utf8, Sequences)
{
    EXPECT_EQ(next("a"), 1);
    EXPECT_EQ(next("\xC3\xB6"), 2);
    EXPECT_EQ(next("\xE2\x82\xAC"), 3);
    EXPECT_EQ(next("\xF0\x9F\x98\x80"), 4);
    EXPECT_EQ(next("\xE2\x82"), 0);
    EXPECT_EQ(next("\xF0\x9F\x98"), 0);
    EXPECT_EQ(next("\xC3"), 0);
    EXPECT_EQ(next("\x80"), -1);
    EXPECT_EQ(next("\xC0\x80"), -1);         // overlong
    EXPECT_EQ(next("\xE0\x80\x80"), -1);     // overlong
    EXPECT_EQ(next("\xED\xA0\x80"), -1);     // surrogate
    EXPECT_EQ(next("\xF4\x90\x80\x80"), -1); // past U+10FFFF
    EXPECT_EQ(next("\xC3x"), -1);
    EXPECT_EQ(next("\xFF"), -1);
}

// The order of samples: every window once an epoch, a function of seed and cursor alone.
#include "daemon/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace
{

shd_sampler Make(uint64_t begin, uint64_t end, uint32_t seq_len, uint64_t seed, int shuffle = 1)
{
    shd_sampler sampler;
    shd_error err;
    EXPECT_EQ(shd_sampler_init(&sampler, begin, end, seq_len, seed, shuffle, &err), 0)
        << err.message;
    return sampler;
}

std::vector<uint64_t> Epoch(const shd_sampler &sampler, uint64_t epoch)
{
    std::vector<uint64_t> offsets;
    for (uint64_t i = 0; i < sampler.windows; i++) {
        offsets.push_back(shd_sampler_offset(&sampler, epoch * sampler.windows + i));
    }
    return offsets;
}

// Windows are laid end to end, each once, and the last target is still inside.
void ExpectEachWindowOnce(const shd_sampler &sampler, uint64_t epoch, uint64_t end)
{
    std::vector<uint64_t> offsets = Epoch(sampler, epoch);
    std::sort(offsets.begin(), offsets.end());
    ASSERT_GE(offsets.front(), sampler.begin);
    for (size_t i = 1; i < offsets.size(); i++) {
        ASSERT_EQ(offsets[i], offsets[i - 1] + sampler.seq_len);
    }
    ASSERT_LE(offsets.back() + sampler.seq_len + 1, end);
}

TEST(Sampler, EveryWindowOnceAnEpoch)
{
    for (uint64_t windows :
         {1,  2,  3,   4,   5,   7,   8,    13,   16,   17,   31,   32,    33,   63,
          64, 65, 127, 255, 256, 257, 1000, 1023, 1024, 1025, 4099, 65536, 65537}) {
        for (uint32_t seq_len : {1u, 3u, 16u}) {
            for (uint64_t extra = 0; extra < seq_len; extra += 2) {
                const uint64_t end = 100 + windows * seq_len + 1 + extra;
                const shd_sampler sampler = Make(100, end, seq_len, 42);
                ASSERT_EQ(sampler.windows, windows);
                ASSERT_EQ(sampler.slack, extra);
                const uint64_t epochs = windows > 5000 ? 1 : 3;
                for (uint64_t epoch = 0; epoch < epochs; epoch++) {
                    ExpectEachWindowOnce(sampler, epoch, end);
                }
            }
        }
    }
}

TEST(Sampler, IsAFunctionOfSeedAndCursor)
{
    const shd_sampler a = Make(0, 10001, 10, 7), same = Make(0, 10001, 10, 7);
    const shd_sampler other = Make(0, 10001, 10, 8);
    // In any order of asking.
    std::vector<uint64_t> forward = Epoch(a, 0), backward(a.windows);
    for (uint64_t i = a.windows; i-- > 0;) {
        backward[i] = shd_sampler_offset(&same, i);
    }
    EXPECT_EQ(forward, backward);
    EXPECT_NE(forward, Epoch(other, 0));
    EXPECT_NE(forward, Epoch(a, 1));
    EXPECT_NE(Epoch(a, 1), Epoch(a, 2));
}

TEST(Sampler, PinnedValues)
{
    // An order once published is what a job resumes with: these numbers may not change.
    const shd_sampler sampler = Make(5, 5 + 10 * 8 + 1 + 3, 8, 1234);
    const std::vector<uint64_t> first = Epoch(sampler, 0), second = Epoch(sampler, 1);
    EXPECT_EQ(first, (std::vector<uint64_t>{55, 63, 47, 31, 39, 71, 23, 79, 7, 15}));
    EXPECT_EQ(second, (std::vector<uint64_t>{16, 80, 24, 8, 32, 64, 56, 40, 72, 48}));
}

TEST(Sampler, InFileOrder)
{
    const shd_sampler sampler = Make(3, 3 + 50, 7, 42, 0);
    ASSERT_EQ(sampler.windows, 7u);
    for (uint64_t cursor = 0; cursor < 30; cursor++) {
        EXPECT_EQ(shd_sampler_offset(&sampler, cursor), 3 + cursor % 7 * 7);
    }
}

TEST(Sampler, SeedsReachEveryOrderEvenly)
{
    // Of 4 windows there are 24 orders; 4,800 seeds put about 200 into each (sigma 14).
    std::vector<int> hits(256);
    for (uint64_t seed = 0; seed < 4800; seed++) {
        int code = 0;
        for (uint64_t window : Epoch(Make(0, 5, 1, seed), 0)) {
            code = code * 4 + static_cast<int>(window);
        }
        hits[code]++;
    }
    int orders = 0;
    for (int n : hits) {
        if (n > 0) {
            orders++;
            EXPECT_GT(n, 200 - 5 * 14);
            EXPECT_LT(n, 200 + 5 * 14);
        }
    }
    EXPECT_EQ(orders, 24);
}

TEST(Sampler, NeighboursAreSpread)
{
    // The mean distance of consecutive windows of a random order of n is n / 3.
    const shd_sampler sampler = Make(0, 100001, 10, 3);
    const std::vector<uint64_t> offsets = Epoch(sampler, 0);
    double sum = 0;
    for (size_t i = 1; i < offsets.size(); i++) {
        sum += std::abs(static_cast<double>(offsets[i]) - static_cast<double>(offsets[i - 1])) / 10;
    }
    EXPECT_NEAR(sum / static_cast<double>(offsets.size() - 1), 10000 / 3.0, 150);
}

TEST(Sampler, BordersMoveFromEpochToEpoch)
{
    const shd_sampler sampler = Make(0, 10 * 16 + 1 + 11, 16, 9);
    std::set<uint64_t> shifts;
    for (uint64_t epoch = 0; epoch < 300; epoch++) {
        const std::vector<uint64_t> offsets = Epoch(sampler, epoch);
        shifts.insert(*std::min_element(offsets.begin(), offsets.end()));
    }
    EXPECT_EQ(shifts.size(), 12u); // 0 .. slack
    EXPECT_EQ(*shifts.rbegin(), 11u);
}

TEST(Sampler, HugeFile)
{
    const uint64_t end = uint64_t{1} << 50;
    const shd_sampler sampler = Make(0, end, 1024, 1);
    std::set<uint64_t> seen;
    for (uint64_t cursor = 0; cursor < 2000; cursor++) {
        const uint64_t offset = shd_sampler_offset(&sampler, cursor);
        EXPECT_LE(offset + 1025, end);
        seen.insert(offset);
    }
    EXPECT_EQ(seen.size(), 2000u);
}

TEST(Sampler, TooFewTokens)
{
    shd_sampler sampler;
    shd_error err;
    EXPECT_EQ(shd_sampler_init(&sampler, 10, 26, 16, 1, 1, &err), SHD_EDATA);
    EXPECT_STREQ(err.message, "16 tokens are too few for sequences of 16: at least 17 are needed");
    EXPECT_EQ(shd_sampler_init(&sampler, 10, 27, 16, 1, 1, &err), 0);
    EXPECT_EQ(sampler.windows, 1u);
    EXPECT_EQ(shd_sampler_init(&sampler, 27, 10, 16, 1, 1, &err), SHD_EDATA);
    EXPECT_EQ(shd_sampler_init(&sampler, 0, 10, UINT32_MAX, 1, 1, &err), SHD_EDATA);
    EXPECT_STREQ(
        err.message,
        "10 tokens are too few for sequences of 4294967295: at least 4294967296 are needed");
    EXPECT_EQ(shd_sampler_init(&sampler, 0, 10, 0, 1, 1, &err), SHD_EINVAL);
}

} // namespace

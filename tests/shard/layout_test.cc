// Where parameters lie: alignment, padding, and the part of a parameter inside a range.
#include "daemon/shard/layout.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace
{

struct Table {
    std::vector<int64_t> numel;
    std::vector<uint32_t> unit;
    uint32_t units;
};

const Table kOdd = {{1, 7919, 16, 255, 257, 13, 4096, 2}, {0, 1, 0, 2, 1, 0, 2, 1}, 3};

TEST(Layout, AlignsParametersAndPadsUnits)
{
    for (uint32_t world : {1u, 2u, 3u, 5u, 7u, 64u}) {
        shd_layout layout;
        shd_layout_init(&layout, static_cast<uint32_t>(kOdd.numel.size()), kOdd.numel.data(),
                        kOdd.unit.data(), kOdd.units, world);
        std::vector<int64_t> end(kOdd.units), sum(kOdd.units);
        for (uint32_t i = 0; i < layout.n_params; i++) {
            const shd_slot &slot = layout.slots[i];
            EXPECT_EQ(kOdd.unit[i], slot.unit);
            EXPECT_EQ(kOdd.numel[i], slot.numel);
            EXPECT_EQ(0, slot.offset % SHD_PARAM_ALIGN);
            EXPECT_GE(slot.offset, end[slot.unit]) << "parameters of a unit follow each other";
            EXPECT_LT(slot.offset - end[slot.unit], SHD_PARAM_ALIGN) << "without needless gaps";
            end[slot.unit] = slot.offset + slot.numel;
            sum[slot.unit] += slot.numel;
        }
        int64_t numel = 0, padded = 0;
        for (uint32_t u = 0; u < kOdd.units; u++) {
            EXPECT_EQ(sum[u], layout.units[u].numel);
            EXPECT_EQ(0, layout.units[u].padded % (static_cast<int64_t>(world) * SHD_BLOCK));
            EXPECT_GE(layout.units[u].padded, end[u]);
            EXPECT_LT(layout.units[u].padded - end[u],
                      static_cast<int64_t>(world) * SHD_BLOCK + SHD_PARAM_ALIGN);
            numel += layout.units[u].numel;
            padded += layout.units[u].padded;
        }
        EXPECT_EQ(numel, layout.numel);
        EXPECT_EQ(padded, layout.padded);
        shd_layout_fini(&layout);
        EXPECT_EQ(nullptr, layout.slots);
    }
}

TEST(Layout, WhatFitsExactlyIsNotPadded)
{
    const int64_t numel[] = {512, 256};
    const uint32_t unit[] = {0, 0};
    shd_layout layout;
    shd_layout_init(&layout, 2, numel, unit, 1, 3);
    EXPECT_EQ(768, layout.padded);
    shd_layout_fini(&layout);
}

// Against walking over every element.
void CheckIntersect(const shd_slot &slot, int64_t begin, int64_t end)
{
    int64_t n = 0, first = -1, at = -1;
    for (int64_t i = begin; i < end; i++) {
        if (i >= slot.offset && i < slot.offset + slot.numel) {
            if (n++ == 0) {
                first = i - slot.offset;
                at = i - begin;
            }
        }
    }
    int64_t got_first = -1, got_at = -1;
    ASSERT_EQ(n, shd_slot_intersect(&slot, begin, end, &got_first, &got_at))
        << slot.offset << "+" << slot.numel << " in [" << begin << "," << end << ")";
    ASSERT_EQ(first, got_first);
    ASSERT_EQ(at, got_at);
}

TEST(Intersect, EveryBoundaryAgainstBruteForce)
{
    for (int64_t offset : {0, 1, 5}) {
        for (int64_t numel : {1, 2, 7}) {
            const shd_slot slot = {0, offset, numel};
            for (int64_t begin = 0; begin <= 14; begin++) {
                for (int64_t end = begin; end <= 14; end++) {
                    CheckIntersect(slot, begin, end);
                }
            }
        }
    }
}

TEST(Intersect, PartsOfAnyCutCoverAParameterOnce)
{
    std::mt19937 random(3);
    for (int round = 0; round < 200; round++) {
        const shd_slot slot = {0, static_cast<int64_t>(random() % 500),
                               1 + static_cast<int64_t>(random() % 700)};
        const int64_t parts = 1 + static_cast<int64_t>(random() % 9), width = 150;
        std::vector<int> hits(static_cast<size_t>(slot.numel));
        for (int64_t p = 0; p < parts; p++) {
            const int64_t begin = p * width;
            CheckIntersect(slot, begin, begin + width);
            int64_t first = 0, at = 0;
            const int64_t n = shd_slot_intersect(&slot, begin, begin + width, &first, &at);
            for (int64_t i = 0; i < n; i++) {
                hits[static_cast<size_t>(first + i)]++;
                EXPECT_EQ(slot.offset + first + i, begin + at + i);
            }
        }
        for (int64_t i = 0; i < slot.numel; i++) {
            EXPECT_EQ(slot.offset + i < parts * width, hits[static_cast<size_t>(i)]);
        }
    }
}

} // namespace

// Units on real rank threads, and their reductions read literally from the contract. For tests.
#ifndef TESTS_SHARD_UNITS_H
#define TESTS_SHARD_UNITS_H

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "daemon/shard/unit.h"

namespace units
{

using Flat = std::vector<float>;

// Primes, one unit smaller than an atom of many ranks, one larger.
const std::vector<int64_t> kNumel = {7919, 13, 257, 1, 3};
const std::vector<uint32_t> kUnit = {0, 1, 0, 1, 0};

const shd_units_config kFp32 = {SHD_F32, SHD_F32, 2, {}};

inline float *F(void *data)
{
    return static_cast<float *>(data);
}

struct Rank {
    uint32_t rank;
    shd_device *dev;
    shd_arena *arena;
    shd_units units;
};

class World
{
  public:
    World(const shd_strategy &strategy, const std::vector<int64_t> &numel,
          const std::vector<uint32_t> &unit, uint64_t extent = 2 << 20,
          const shd_units_config &config = kFp32, const std::vector<uint32_t> &frozen = {},
          const std::vector<uint32_t> &whole = {})
        : strategy_(strategy), ranks_(strategy.world), comms_(strategy.world)
    {
        uint32_t n_units = 0;
        for (uint32_t u : unit) {
            n_units = u + 1 > n_units ? u + 1 : n_units;
        }
        shd_layout_init(&layout_, static_cast<uint32_t>(numel.size()), numel.data(), unit.data(),
                        n_units, strategy.world);
        for (uint32_t u : frozen) {
            layout_.units[u].frozen = 1;
        }
        for (uint32_t u : whole) {
            layout_.units[u].whole = 1;
        }
        shd_comm_local_create(strategy.world, comms_.data());
        Each([&](Rank &rank) {
            shd_error err = {};
            rank.dev = shd_device_create_cpu(1, 0);
            ASSERT_EQ(0, shd_device_arena(rank.dev, extent, &rank.arena, &err)) << err.message;
            ASSERT_EQ(0, shd_units_init(&rank.units, &layout_, &strategy_, &config, rank.dev,
                                        rank.arena, comms_[rank.rank], &err))
                << err.message;
        });
    }
    ~World()
    {
        for (Rank &rank : ranks_) {
            shd_units_fini(&rank.units);
            shd_usage usage[SHD_TAG_COUNT];
            shd_arena_usage(rank.arena, usage);
            for (int t = 0; t < SHD_TAG_COUNT; t++) {
                EXPECT_EQ(0u, usage[t].now) << shd_tag_name(static_cast<shd_tag>(t));
            }
            shd_arena_free(rank.arena);
            shd_device_free(rank.dev);
        }
        for (shd_comm *comm : comms_) {
            shd_comm_free(comm);
        }
        shd_layout_fini(&layout_);
    }
    World(const World &) = delete;
    World &operator=(const World &) = delete;

    // fn on every rank, each on a thread of its own.
    void Each(const std::function<void(Rank &)> &fn)
    {
        std::vector<std::thread> threads;
        for (uint32_t r = 0; r < strategy_.world; r++) {
            ranks_[r].rank = r;
            threads.emplace_back([&, r] { fn(ranks_[r]); });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
    }
    const shd_layout &layout() const
    {
        return layout_;
    }
    uint32_t world() const
    {
        return strategy_.world;
    }

  private:
    shd_strategy strategy_;
    shd_layout layout_;
    std::vector<Rank> ranks_;
    std::vector<shd_comm *> comms_;
};

inline std::vector<shd_strategy> Strategies(uint32_t world)
{
    std::vector<shd_strategy> all;
    for (uint32_t p = 1; p <= world; p++) {
        for (uint32_t g = p; g <= world; g += p) {
            for (uint32_t o = g; o <= world; o += g) {
                const uint32_t degrees[3] = {p, g, o};
                shd_strategy s = {};
                if (world % o == 0 && shd_strategy_make("", degrees, 3, world, &s, nullptr) == 0) {
                    all.push_back(s);
                }
            }
        }
    }
    return all;
}

inline std::string Describe(const shd_strategy &s)
{
    return std::to_string(s.p) + "," + std::to_string(s.g) + "," + std::to_string(s.o) + " of " +
           std::to_string(s.world);
}

// A unit's flat buffer with random values of mixed size; zeros in the padding.
inline Flat RandomFlat(const shd_layout &layout, uint32_t u, uint32_t seed)
{
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    Flat flat(static_cast<size_t>(layout.units[u].padded));
    for (uint32_t i = 0; i < layout.n_params; i++) {
        for (int64_t k = 0; layout.slots[i].unit == u && k < layout.slots[i].numel; k++) {
            flat[static_cast<size_t>(layout.slots[i].offset + k)] =
                std::ldexp(uniform(random), static_cast<int>(random() % 20) - 10);
        }
    }
    return flat;
}

// Reduction as the contract has it: a range of m > 1 leaves splits after the largest power of two
// below m.
inline float Tree(const std::vector<Flat> &leaves, size_t first, size_t m, size_t i)
{
    if (m == 1) {
        return leaves[first][i];
    }
    size_t half = 1;
    while (2 * half < m) {
        half *= 2;
    }
    return Tree(leaves, first, half, i) + Tree(leaves, first + half, m - half, i);
}

inline Flat Copy(const float *data, int64_t n)
{
    return Flat(data, data + n);
}

// Every value of x rounded to dtype, as fp32.
inline Flat Rounded(const Flat &x, shd_dtype dtype)
{
    shd_device *dev = shd_device_create_cpu(1, 0);
    const shd_ops *ops = shd_device_ops(dev);
    const int64_t n = static_cast<int64_t>(x.size());
    Flat narrow(x.size()), out(x.size());
    ops->cast(shd_device_opctx(dev), narrow.data(), dtype, x.data(), SHD_F32, n);
    ops->cast(shd_device_opctx(dev), out.data(), SHD_F32, narrow.data(), dtype, n);
    shd_device_free(dev);
    return out;
}

// fp32 values into memory of dtype, and back.
inline void Store(Rank *rank, void *to, shd_dtype dtype, const float *from, int64_t n)
{
    shd_device_ops(rank->dev)->cast(shd_device_opctx(rank->dev), to, dtype, from, SHD_F32, n);
}

inline Flat Load(Rank *rank, const void *from, shd_dtype dtype, int64_t n)
{
    Flat out(static_cast<size_t>(n));
    shd_device_ops(rank->dev)->cast(shd_device_opctx(rank->dev), out.data(), SHD_F32, from, dtype,
                                    n);
    return out;
}

// The tree over leaves [first, first + m), every sum rounded.
inline Flat RoundedTree(const std::vector<Flat> &leaves, size_t first, size_t m, shd_dtype dtype)
{
    if (m == 1) {
        return leaves[first];
    }
    size_t half = 1;
    while (2 * half < m) {
        half *= 2;
    }
    Flat a = RoundedTree(leaves, first, half, dtype);
    const Flat b = RoundedTree(leaves, first + half, m - half, dtype);
    for (size_t i = 0; i < a.size(); i++) {
        a[i] += b[i];
    }
    return Rounded(a, dtype);
}

} // namespace units

#endif

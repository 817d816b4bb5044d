// Units: parameters come back bit for bit, gradients are the tree over ranks folded over rounds,
// whatever the degrees.
#include "tests/shard/units.h"

namespace
{

using namespace units;

TEST(Gather, GivesBackEveryBitAndResharesAgain)
{
    for (uint32_t world : {1u, 2u, 3u, 4u, 6u}) {
        for (const shd_strategy &s : Strategies(world)) {
            SCOPED_TRACE(Describe(s));
            World w(s, kNumel, kUnit);
            std::vector<Flat> want = {RandomFlat(w.layout(), 0, 1), RandomFlat(w.layout(), 1, 2)};
            w.Each([&](Rank &rank) {
                shd_error err = {};
                for (uint32_t u = 0; u < 2; u++) {
                    shd_unit &unit = rank.units.units[u];
                    EXPECT_EQ(w.layout().units[u].padded / s.p,
                              unit.params.end - unit.params.begin);
                    EXPECT_EQ(w.layout().units[u].padded / s.g, unit.grads.end - unit.grads.begin);
                    EXPECT_EQ(w.layout().units[u].padded / s.o,
                              unit.master.end - unit.master.begin);
                    std::copy(want[u].begin() + unit.params.begin,
                              want[u].begin() + unit.params.end, F(unit.params.data));
                    for (int again = 0; again < 2; again++) {
                        if (s.p > 1) {
                            EXPECT_EQ(SHD_UNIT_SHARDED, unit.memory);
                            EXPECT_EQ(nullptr, unit.full);
                        }
                        ASSERT_EQ(0, shd_unit_gather(&rank.units, u, &err)) << err.message;
                        EXPECT_EQ(SHD_UNIT_FULL, unit.memory);
                        EXPECT_TRUE(Copy(F(unit.full), unit.n) == want[u]);
                        const void *full = unit.full;
                        ASSERT_EQ(0, shd_unit_gather(&rank.units, u, &err)); // nothing to do
                        EXPECT_EQ(full, unit.full);
                        shd_unit_reshard(&rank.units, u);
                        shd_unit_reshard(&rank.units, u);
                    }
                }
            });
        }
    }
}

// One optimizer step's worth of gradients; returns what grad_finish left, as one flat buffer.
std::vector<Flat> Reduce(World *w, const shd_strategy &s,
                         const std::vector<std::vector<Flat>> &leaf, uint32_t u,
                         std::vector<double> *sumsq)
{
    std::vector<Flat> got(s.world);
    sumsq->assign(s.world, 0.0);
    w->Each([&](Rank &rank) {
        shd_error err = {};
        shd_unit &unit = rank.units.units[u];
        for (const std::vector<Flat> &round : leaf) {
            ASSERT_EQ(0, shd_unit_grad_begin(&rank.units, u, &err)) << err.message;
            ASSERT_EQ(0, shd_unit_grad_begin(&rank.units, u, &err)); // nothing to do
            for (uint32_t i = 0; i < w->layout().n_params; i++) {    // padding is not ours to write
                const shd_slot &slot = w->layout().slots[i];
                if (slot.unit == u) {
                    std::copy_n(round[rank.rank].begin() + slot.offset, slot.numel,
                                F(unit.local_grad) + slot.offset);
                }
            }
            ASSERT_EQ(0, shd_unit_grad_reduce(&rank.units, u, &err)) << err.message;
            EXPECT_EQ(nullptr, unit.local_grad);
            shd_units_round_done(&rank.units);
        }
        ASSERT_EQ(0, shd_unit_grad_finish(&rank.units, u, &err)) << err.message;
        const shd_range range = shd_unit_update_grads(&rank.units, u);
        EXPECT_EQ(unit.master.begin, range.begin);
        EXPECT_EQ(unit.master.end, range.end);
        got[rank.rank] = Copy(F(range.data), range.end - range.begin);
        for (uint32_t other = 0; other < w->layout().n_units; other++) { // u's alone count
            const shd_range grads = shd_unit_update_grads(&rank.units, other);
            if (other != u && grads.data != nullptr) {
                std::fill(F(grads.data), F(grads.data) + (grads.end - grads.begin), 0.0f);
            }
        }
        ASSERT_EQ(0, shd_units_sumsq(&rank.units, &(*sumsq)[rank.rank], &err)) << err.message;
        shd_units_step_done(&rank.units);
    });
    return got;
}

void CheckReduce(const shd_strategy &s, const std::vector<int64_t> &numel,
                 const std::vector<uint32_t> &units, uint32_t u, uint32_t rounds, uint64_t extent)
{
    SCOPED_TRACE(Describe(s));
    World w(s, numel, units, extent);
    const size_t n = static_cast<size_t>(w.layout().units[u].padded);
    for (uint32_t step = 0; step < 2; step++) { // the second step must not see the first
        std::vector<std::vector<Flat>> leaf(rounds);
        for (uint32_t j = 0; j < rounds; j++) {
            for (uint32_t r = 0; r < s.world; r++) {
                leaf[j].push_back(RandomFlat(w.layout(), u, 100 * step + 10 * j + r));
            }
        }
        Flat want(n);
        for (size_t i = 0; i < n; i++) {
            want[i] = Tree(leaf[0], 0, s.world, i);
            for (uint32_t j = 1; j < rounds; j++) {
                want[i] += Tree(leaf[j], 0, s.world, i);
            }
        }
        // Blocks by the op, combined by parameter in block order: exact. Naively in double: near.
        shd_device *dev = shd_device_create_cpu(1, 0);
        std::vector<double> blocks(n / SHD_BLOCK);
        shd_device_ops(dev)->block_sumsq(shd_device_opctx(dev), blocks.data(), want.data(), SHD_F32,
                                         static_cast<int64_t>(n));
        shd_device_free(dev);
        double in_order = 0, naive = 0;
        for (uint32_t i = 0; i < w.layout().n_params; i++) {
            const shd_slot &slot = w.layout().slots[i];
            double of_parameter = 0;
            for (int64_t k = 0; slot.unit == u && k < slot.numel; k += SHD_BLOCK) {
                of_parameter += blocks[static_cast<size_t>((slot.offset + k) / SHD_BLOCK)];
            }
            in_order += of_parameter;
        }
        for (float x : want) {
            naive += static_cast<double>(x) * static_cast<double>(x);
        }
        std::vector<double> sumsq;
        const std::vector<Flat> got = Reduce(&w, s, leaf, u, &sumsq);
        for (uint32_t r = 0; r < s.world; r++) {
            const size_t part = n / s.o, begin = part * shd_strategy_index_o(&s, r);
            EXPECT_TRUE(got[r] == Flat(want.begin() + static_cast<long>(begin),
                                       want.begin() + static_cast<long>(begin + part)))
                << "rank " << r << " step " << step;
            EXPECT_EQ(in_order, sumsq[r]) << "rank " << r;
            EXPECT_NEAR(naive, sumsq[r], 1e-12 * naive);
        }
    }
}

TEST(Reduce, IsTheTreeOverRanksFoldedOverRounds)
{
    for (uint32_t world : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u}) {
        for (const shd_strategy &s : Strategies(world)) {
            for (uint32_t rounds : {1u, 3u}) {
                CheckReduce(s, kNumel, kUnit, 0, rounds, 2 << 20);
            }
        }
    }
}

// A unit whose atoms are larger than what is exchanged at a time.
TEST(Reduce, GoesInChunksWhenAnAtomIsLarge)
{
    for (const char *name : {"ddp", "zero3"}) {
        shd_strategy s = {};
        ASSERT_EQ(0, shd_strategy_make(name, nullptr, 0, 2, &s, nullptr));
        CheckReduce(s, {1100003}, {0}, 0, 2, 64 << 20);
    }
}

TEST(Sumsq, SeesInfinityAndStartsAtZero)
{
    shd_strategy s = {};
    ASSERT_EQ(0, shd_strategy_make("zero2", nullptr, 0, 2, &s, nullptr));
    World w(s, kNumel, kUnit);
    for (float bad : {INFINITY, NAN}) {
        std::vector<std::vector<Flat>> leaf(1);
        leaf[0] = {RandomFlat(w.layout(), 0, 1), RandomFlat(w.layout(), 0, 2)};
        leaf[0][1][5] = bad;
        std::vector<double> sumsq;
        Reduce(&w, s, leaf, 0, &sumsq);
        for (double sum : sumsq) {
            EXPECT_FALSE(std::isfinite(sum));
        }
    }
    w.Each([&](Rank &rank) {
        for (uint32_t u = 0; u < 2; u++) {
            const shd_range grads = shd_unit_update_grads(&rank.units, u);
            std::fill(F(grads.data), F(grads.data) + (grads.end - grads.begin), 0.0f);
        }
        double sum = 2.5;
        EXPECT_EQ(0, shd_units_sumsq(&rank.units, &sum, nullptr));
        EXPECT_EQ(0.0, sum);
    });
}

// The same gradients of parameters, whatever units these lie in and whoever holds them.
TEST(Sumsq, IsTheSameForEveryCutOfEveryWorld)
{
    const std::vector<std::vector<uint32_t>> cuts = {
        {0, 0, 0, 0, 0}, {0, 1, 2, 3, 4}, {1, 0, 1, 0, 1}, {2, 1, 0, 1, 2}};
    double first = 0;
    for (const std::vector<uint32_t> &cut : cuts) {
        for (uint32_t world : {1u, 2u, 3u, 8u}) {
            for (const char *name : {"ddp", "zero1", "zero3"}) {
                shd_strategy s = {};
                ASSERT_EQ(0, shd_strategy_make(name, nullptr, 0, world, &s, nullptr));
                World w(s, kNumel, cut);
                w.Each([&](Rank &rank) {
                    const auto value = [](size_t i, int64_t k) {
                        return std::sin(static_cast<float>(17 * i) + static_cast<float>(k));
                    };
                    for (uint32_t u = 0; u < w.layout().n_units; u++) {
                        const shd_range part = shd_unit_update_grads(&rank.units, u);
                        std::fill(F(part.data), F(part.data) + (part.end - part.begin), 0.0f);
                        for (size_t i = 0; i < kNumel.size(); i++) {
                            const shd_slot &slot = w.layout().slots[i];
                            int64_t from = 0, at = 0;
                            const int64_t n =
                                slot.unit == u
                                    ? shd_slot_intersect(&slot, part.begin, part.end, &from, &at)
                                    : 0;
                            for (int64_t k = 0; k < n; k++) {
                                F(part.data)[at + k] = value(i, from + k);
                            }
                        }
                    }
                    double sum = 0;
                    ASSERT_EQ(0, shd_units_sumsq(&rank.units, &sum, nullptr));
                    EXPECT_GT(sum, 0);
                    static std::mutex mutex;
                    const std::lock_guard<std::mutex> guard(mutex);
                    first = first == 0 ? sum : first;
                    EXPECT_EQ(first, sum) << Describe(s);
                });
            }
        }
    }
}

// Every rank writes its own o-part; afterwards each has the whole.
TEST(Update, ReachesEveryCopyOfTheParameters)
{
    for (uint32_t world : {1u, 2u, 3u, 4u, 6u, 8u}) {
        for (const shd_strategy &s : Strategies(world)) {
            SCOPED_TRACE(Describe(s));
            World w(s, kNumel, kUnit);
            const Flat want = RandomFlat(w.layout(), 0, 77);
            w.Each([&](Rank &rank) {
                shd_error err = {};
                shd_unit &unit = rank.units.units[0];
                std::fill(F(unit.params.data),
                          F(unit.params.data) + (unit.params.end - unit.params.begin), -5.0f);
                const shd_range range = unit.master;
                EXPECT_EQ(unit.n / s.o, range.end - range.begin);
                std::copy(want.begin() + range.begin, want.begin() + range.end, F(range.data));
                ASSERT_EQ(0, shd_unit_update_finish(&rank.units, 0, &err)) << err.message;
                ASSERT_EQ(0, shd_unit_gather(&rank.units, 0, &err)) << err.message;
                EXPECT_TRUE(Copy(F(unit.full), unit.n) == want);
                shd_unit_reshard(&rank.units, 0);
            });
        }
    }
}

TEST(States, StartAtZero)
{
    shd_strategy s = {};
    ASSERT_EQ(0, shd_strategy_make("zero1", nullptr, 0, 3, &s, nullptr));
    World w(s, kNumel, kUnit);
    w.Each([&](Rank &rank) {
        for (uint32_t u = 0; u < 2; u++) {
            const shd_unit &unit = rank.units.units[u];
            for (int64_t i = 0; i < unit.master.end - unit.master.begin; i++) {
                ASSERT_EQ(0.0f, unit.state[0][i]);
                ASSERT_EQ(0.0f, unit.state[1][i]);
            }
        }
    });
}

// ---- other precisions ----

TEST(Precision, GradientsAreSummedInTheReduceDtype)
{
    for (shd_dtype dtype : {SHD_F32, SHD_BF16, SHD_F16}) {
        for (shd_dtype reduce : {SHD_F32, SHD_BF16, SHD_F16}) {
            for (uint32_t world : {1u, 2u, 3u, 4u}) {
                for (const char *name : {"ddp", "zero2", "zero3"}) {
                    shd_strategy s = {};
                    ASSERT_EQ(0, shd_strategy_make(name, nullptr, 0, world, &s, nullptr));
                    World w(s, kNumel, kUnit, 2 << 20, {dtype, reduce, 1, {}});
                    std::vector<Flat> round[2];
                    for (uint32_t j = 0; j < 2; j++) {
                        for (uint32_t r = 0; r < world; r++) {
                            round[j].push_back(
                                Rounded(RandomFlat(w.layout(), 0, 10 * j + r), dtype));
                        }
                    }
                    std::vector<Flat> sums;
                    for (const std::vector<Flat> &leaves : round) {
                        std::vector<Flat> on_wire;
                        for (const Flat &leaf : leaves) {
                            on_wire.push_back(Rounded(leaf, reduce));
                        }
                        sums.push_back(RoundedTree(on_wire, 0, world, reduce));
                    }
                    const Flat want = RoundedTree(sums, 0, 2, reduce);
                    w.Each([&](Rank &rank) {
                        shd_unit &unit = rank.units.units[0];
                        for (const std::vector<Flat> &leaves : round) {
                            ASSERT_EQ(0, shd_unit_grad_begin(&rank.units, 0, nullptr));
                            Store(&rank, unit.local_grad, dtype, leaves[rank.rank].data(), unit.n);
                            ASSERT_EQ(0, shd_unit_grad_reduce(&rank.units, 0, nullptr));
                            shd_units_round_done(&rank.units);
                        }
                        ASSERT_EQ(0, shd_unit_grad_finish(&rank.units, 0, nullptr));
                        const shd_range range = shd_unit_update_grads(&rank.units, 0);
                        EXPECT_TRUE(Load(&rank, range.data, reduce, range.end - range.begin) ==
                                    Flat(want.begin() + range.begin, want.begin() + range.end))
                            << shd_dtype_name(dtype) << "/" << shd_dtype_name(reduce) << " " << name
                            << " of " << world;
                        shd_units_step_done(&rank.units);
                    });
                }
            }
        }
    }
}

TEST(Precision, TheMasterIsRoundedIntoEveryCopyOfTheParameters)
{
    for (shd_dtype dtype : {SHD_BF16, SHD_F16}) {
        for (uint32_t world : {1u, 3u, 4u}) {
            for (const shd_strategy &s : Strategies(world)) {
                SCOPED_TRACE(Describe(s));
                World w(s, kNumel, kUnit, 2 << 20, {dtype, SHD_F32, 2, {}});
                const Flat master = RandomFlat(w.layout(), 0, 5), want = Rounded(master, dtype);
                w.Each([&](Rank &rank) {
                    shd_unit &unit = rank.units.units[0];
                    EXPECT_EQ(unit.n / s.o, unit.master.end - unit.master.begin);
                    std::copy(master.begin() + unit.master.begin, master.begin() + unit.master.end,
                              F(unit.master.data));
                    ASSERT_EQ(0, shd_unit_update_finish(&rank.units, 0, nullptr));
                    ASSERT_EQ(0, shd_unit_gather(&rank.units, 0, nullptr));
                    EXPECT_TRUE(Load(&rank, unit.full, dtype, unit.n) == want);
                    shd_unit_reshard(&rank.units, 0);
                    EXPECT_TRUE(
                        Copy(F(unit.master.data), unit.master.end - unit.master.begin) ==
                        Flat(master.begin() + unit.master.begin, master.begin() + unit.master.end))
                        << "and stays as it was";
                });
            }
        }
    }
}

// Three units, one of them kept whole; the second does not fit into one exchange.
void CheckBucket(const shd_strategy &s, const shd_units_config &config)
{
    SCOPED_TRACE(Describe(s));
    const std::vector<int64_t> numel = {700, 300000 * static_cast<int64_t>(s.world), 5000, 33};
    const std::vector<uint32_t> unit = {0, 1, 2, 2}, order = {2, 0, 1};
    std::vector<std::vector<std::vector<char>>> got[2];
    for (int together = 0; together < 2; together++) {
        World w(s, numel, unit, 64 << 20, config, {}, {2});
        got[together].resize(s.world);
        w.Each([&](Rank &rank) {
            for (uint32_t round = 0; round < 2; round++) {
                for (uint32_t u : order) {
                    ASSERT_EQ(0, shd_unit_grad_begin(&rank.units, u, nullptr));
                    const Flat leaf = RandomFlat(w.layout(), u, 100 * round + 10 * u + rank.rank);
                    Store(&rank, rank.units.units[u].local_grad, config.dtype, leaf.data(),
                          rank.units.units[u].n);
                    if (!together) {
                        ASSERT_EQ(0, shd_unit_grad_reduce(&rank.units, u, nullptr));
                    }
                }
                if (together) {
                    shd_bucket bucket;
                    ASSERT_EQ(
                        0, shd_units_reduce_begin(&rank.units, order.data(), 3, &bucket, nullptr));
                    ASSERT_EQ(0, shd_units_reduce_run(&rank.units, &bucket, rank.dev, nullptr));
                    shd_units_reduce_end(&rank.units, &bucket);
                }
                shd_units_round_done(&rank.units);
            }
            for (uint32_t u = 0; u < 3; u++) {
                EXPECT_EQ(nullptr, rank.units.units[u].local_grad);
                ASSERT_EQ(0, shd_unit_grad_finish(&rank.units, u, nullptr));
                const shd_range grads = shd_unit_update_grads(&rank.units, u);
                const char *data = static_cast<const char *>(grads.data);
                got[together][rank.rank].emplace_back(
                    data, data + static_cast<size_t>(grads.end - grads.begin) *
                                     shd_dtype_size(config.reduce_dtype));
            }
        });
    }
    EXPECT_TRUE(got[0] == got[1]);
}

TEST(Bucket, GivesEveryUnitTheSumsThatItWouldHaveAlone)
{
    for (uint32_t world : {1u, 2u, 4u}) {
        for (const shd_strategy &s : Strategies(world)) {
            CheckBucket(s, {SHD_F32, SHD_F32, 0, {}});
        }
    }
    shd_strategy s = {};
    ASSERT_EQ(0, shd_strategy_make("zero3", nullptr, 0, 3, &s, nullptr));
    CheckBucket(s, {SHD_BF16, SHD_F32, 0, {}});
    CheckBucket(s, {SHD_BF16, SHD_BF16, 0, {}});
}

TEST(Whole, UnitsAreCompleteAfterEveryUpdateWithoutAGather)
{
    for (const shd_strategy &s : Strategies(4)) {
        SCOPED_TRACE(Describe(s));
        World w(s, kNumel, kUnit, 2 << 20, {SHD_BF16, SHD_F32, 2, {}}, {}, {1});
        const Flat master = RandomFlat(w.layout(), 1, 4), want = Rounded(master, SHD_BF16);
        w.Each([&](Rank &rank) {
            shd_unit &unit = rank.units.units[1];
            EXPECT_EQ(unit.n, unit.params.end - unit.params.begin);
            EXPECT_EQ(unit.n / s.g, unit.grads.end - unit.grads.begin);
            EXPECT_EQ(unit.n / s.o, unit.master.end - unit.master.begin);
            EXPECT_EQ(SHD_UNIT_FULL, unit.memory);
            std::copy(master.begin() + unit.master.begin, master.begin() + unit.master.end,
                      F(unit.master.data));
            ASSERT_EQ(0, shd_unit_update_finish(&rank.units, 1, nullptr));
            shd_unit_reshard(&rank.units, 1); // changes nothing
            EXPECT_TRUE(Load(&rank, unit.full, SHD_BF16, unit.n) == want);
        });
    }
}

TEST(Keep, WhatStaysMakesTheSameCopyAgain)
{
    for (uint32_t parts : {1u, 2u, 4u}) {
        for (shd_dtype dtype : {SHD_F32, SHD_BF16}) {
            shd_strategy s = {};
            ASSERT_EQ(0, shd_strategy_make("zero3", nullptr, 0, 4, &s, nullptr));
            s.regather = parts;
            World w(s, kNumel, kUnit, 2 << 20, {dtype, SHD_F32, 2, {}});
            const Flat want = Rounded(RandomFlat(w.layout(), 0, 3), dtype);
            w.Each([&](Rank &rank) {
                shd_unit &unit = rank.units.units[0];
                Store(&rank, unit.params.data, dtype, want.data() + unit.params.begin,
                      unit.params.end - unit.params.begin);
                const auto gathered = [&] {
                    shd_usage usage[SHD_TAG_COUNT];
                    shd_arena_usage(rank.arena, usage);
                    return usage[SHD_TAG_GATHERED].now;
                };
                const uint64_t full = static_cast<uint64_t>(unit.n) * shd_dtype_size(dtype);
                for (int again = 0; again < 2; again++) {
                    ASSERT_EQ(0, shd_unit_gather(&rank.units, 0, nullptr));
                    EXPECT_TRUE(Load(&rank, unit.full, dtype, unit.n) == want);
                    EXPECT_EQ(full, gathered());
                    ASSERT_EQ(0, shd_unit_keep(&rank.units, 0, nullptr));
                    EXPECT_EQ(SHD_UNIT_SHARDED, unit.memory);
                    EXPECT_EQ(full / parts, gathered());
                }
                shd_unit_reshard(&rank.units, 0);
                EXPECT_EQ(0u, gathered());
                // Without what was kept it is made of the p-parts again.
                ASSERT_EQ(0, shd_unit_gather(&rank.units, 0, nullptr));
                EXPECT_TRUE(Load(&rank, unit.full, dtype, unit.n) == want);
                shd_unit_reshard(&rank.units, 0);
            });
        }
    }
}

TEST(Frozen, UnitsHoldParametersAloneAndTakePartInNothingElse)
{
    shd_strategy s = {};
    ASSERT_EQ(0, shd_strategy_make("zero3", nullptr, 0, 2, &s, nullptr));
    for (shd_dtype dtype : {SHD_F32, SHD_BF16}) {
        World w(s, kNumel, kUnit, 2 << 20, {dtype, SHD_F32, 2, {}}, {1});
        w.Each([&](Rank &rank) {
            shd_unit &unit = rank.units.units[1];
            EXPECT_EQ(nullptr, unit.grads.data);
            EXPECT_EQ(nullptr, unit.master.data);
            EXPECT_EQ(nullptr, unit.state[0]);
            ASSERT_EQ(0, shd_unit_grad_begin(&rank.units, 1, nullptr));
            EXPECT_EQ(nullptr, unit.local_grad);
            ASSERT_EQ(0, shd_unit_grad_reduce(&rank.units, 1, nullptr));
            ASSERT_EQ(0, shd_unit_grad_finish(&rank.units, 1, nullptr));
            const shd_range grads = shd_unit_update_grads(&rank.units, 0);
            std::fill(static_cast<char *>(grads.data),
                      static_cast<char *>(grads.data) + (grads.end - grads.begin) * 4, '\0');
            double sum = 0.5;
            ASSERT_EQ(0, shd_units_sumsq(&rank.units, &sum, nullptr));
            EXPECT_EQ(0.0, sum);
            ASSERT_EQ(0, shd_unit_update_finish(&rank.units, 1, nullptr));
            const Flat mine(static_cast<size_t>(unit.n / 2), 1.0f + static_cast<float>(rank.rank));
            Store(&rank, unit.params.data, dtype, mine.data(), unit.n / 2);
            ASSERT_EQ(0, shd_unit_gather(&rank.units, 1, nullptr));
            const Flat full = Load(&rank, unit.full, dtype, unit.n);
            EXPECT_EQ(1.0f, full.front());
            EXPECT_EQ(2.0f, full.back());
            shd_unit_reshard(&rank.units, 1);
        });
    }
}

TEST(Init, HoldsNothingWhenMemoryDoesNotSuffice)
{
    const int64_t numel[] = {300000};
    const uint32_t unit[] = {0};
    shd_layout layout;
    shd_layout_init(&layout, 1, numel, unit, 1, 1);
    shd_strategy s = {};
    ASSERT_EQ(0, shd_strategy_make("ddp", nullptr, 0, 1, &s, nullptr));
    shd_device *dev = shd_device_create_cpu(1, 0);
    shd_comm *comm = nullptr;
    shd_comm_local_create(1, &comm);
    shd_arena *arena = nullptr;
    shd_error err = {};
    // Four buffers of 1.2 MB; two megabytes are there.
    ASSERT_EQ(0, shd_device_arena(dev, 2 << 20, &arena, &err));
    shd_units units;
    EXPECT_EQ(SHD_ENOMEM, shd_units_init(&units, &layout, &s, &kFp32, dev, arena, comm, &err));
    EXPECT_NE(std::string::npos, std::string(err.message).find("grads")) << err.message;
    EXPECT_EQ(nullptr, units.units);
    shd_usage usage[SHD_TAG_COUNT];
    shd_arena_usage(arena, usage);
    for (int t = 0; t < SHD_TAG_COUNT; t++) {
        EXPECT_EQ(0u, usage[t].now);
    }
    shd_arena_free(arena);
    shd_comm_free(comm);
    shd_device_free(dev);
    shd_layout_fini(&layout);
}

} // namespace

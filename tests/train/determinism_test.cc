// Every strategy gives the same bits: losses, norms and parameters (contract: level `strategy`).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/train/engine.h"

namespace
{

struct Case {
    uint32_t world, accumulation;
};

class Determinism : public testing::TestWithParam<Case>
{
};

TEST_P(Determinism, EveryStrategyGivesTheSameBits)
{
    const Case c = GetParam();
    shd::DataFile file(4000);
    shd::Trace first;
    for (const char *strategy : {"ddp", "zero1", "zero2", "zero3", "shard_grad_op"}) {
        shd_spec spec = shd::SmallSpec(strategy, c.world);
        spec.accumulation = c.accumulation;
        spec.global_batch = spec.micro_batch * c.world * c.accumulation;
        spec.clip = 0.5;
        shd::Engine engine(spec, file.Open());
        const shd::Trace trace = engine.Train(50);
        if (first.losses.empty()) {
            first = trace;
            EXPECT_LT(trace.losses.back(), trace.losses.front() - 0.5) << "it must learn";
            int clipped = 0;
            for (double norm : trace.norms) {
                EXPECT_TRUE(std::isfinite(norm));
                clipped += norm > spec.clip;
            }
            EXPECT_GT(clipped, 0) << "clipping must have been at work";
        } else {
            EXPECT_TRUE(trace.losses == first.losses) << strategy;
            EXPECT_TRUE(trace.norms == first.norms) << strategy;
            EXPECT_TRUE(trace.params == first.params) << strategy;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Determinism,
                         testing::Values(Case{1, 1}, Case{1, 4}, Case{2, 1}, Case{2, 4}, Case{3, 1},
                                         Case{3, 4}, Case{4, 1}, Case{4, 4}, Case{8, 1},
                                         Case{8, 4}),
                         [](const auto &tested) {
                             return "W" + std::to_string(tested.param.world) + "A" +
                                    std::to_string(tested.param.accumulation);
                         });

// Nested degrees other than the presets run the same code path.
TEST(Degrees, EveryTripleOfAWorldGivesTheSameBits)
{
    shd::DataFile file(4000);
    for (uint32_t world : {4u, 6u, 8u}) {
        shd::Trace first;
        for (uint32_t p = 1; p <= world; p++) {
            for (uint32_t g = p; g <= world; g += p) {
                for (uint32_t o = g; o <= world; o += g) {
                    if (world % o != 0) {
                        continue;
                    }
                    shd_spec spec = shd::SmallSpec("ddp", world);
                    const uint32_t degrees[3] = {p, g, o};
                    shd_error err = {};
                    ASSERT_EQ(0, shd_strategy_make("", degrees, 3, world, &spec.strategy, &err))
                        << err.message;
                    shd::Engine engine(spec, file.Open());
                    const shd::Trace trace = engine.Train(4);
                    if (first.losses.empty()) {
                        first = trace;
                    }
                    EXPECT_TRUE(trace == first) << p << "," << g << "," << o << " of " << world;
                }
            }
        }
    }
}

TEST(Threads, TheirNumberChangesNoBit)
{
    shd::DataFile file(4000);
    shd::Trace first;
    for (int threads : {1, 2, 3}) {
        shd::Engine engine(shd::SmallSpec("zero3", 2), file.Open(), nullptr, threads);
        const shd::Trace trace = engine.Train(10);
        if (first.losses.empty()) {
            first = trace;
        }
        EXPECT_TRUE(trace == first) << threads;
    }
}

TEST(Seeds, AnotherSeedIsAnotherRun)
{
    shd::DataFile file(4000);
    shd_spec spec = shd::SmallSpec("zero3", 2);
    shd::Engine a(spec, file.Open());
    spec.seed++;
    shd::Engine b(spec, file.Open());
    EXPECT_FALSE(a.Params() == b.Params());
    EXPECT_FALSE(a.Train(3).losses == b.Train(3).losses);
}

TEST(Init, TheSameBitsForEveryWorld)
{
    std::vector<std::vector<float>> first;
    for (uint32_t world : {1u, 2u, 3u, 5u, 8u}) {
        shd::Engine engine(shd::SmallSpec("zero3", world));
        if (first.empty()) {
            first = engine.Params();
        }
        EXPECT_TRUE(first == engine.Params()) << world;
    }
}

} // namespace

// Levels of determinism: how many rounds make a tree, when ranks exchange.
#include "daemon/shard/reduction.h"

#include <gtest/gtest.h>

namespace
{

shd_strategy Degrees(uint32_t p, uint32_t g, uint32_t o, uint32_t world)
{
    const uint32_t degrees[3] = {p, g, o};
    shd_strategy s = {};
    EXPECT_EQ(0, shd_strategy_make("", degrees, 3, world, &s, nullptr));
    return s;
}

TEST(Rounds, MakeATree)
{
    const shd_strategy s = Degrees(1, 2, 4, 4);
    for (uint32_t k = 0; k < 6; k++) {
        const shd_reduction r = {SHD_DETERMINISM_WORLD, 4u << k};
        EXPECT_EQ(1u << k, shd_reduction_rounds(&r, &s));
        EXPECT_EQ(k, shd_reduction_partials(&r, &s));
        EXPECT_TRUE(shd_reduction_each_round(&r, &s));
    }
    for (shd_determinism level : {SHD_DETERMINISM_STRATEGY, SHD_DETERMINISM_RUN}) {
        const shd_reduction r = {level, 4};
        EXPECT_EQ(1u, shd_reduction_rounds(&r, &s));
        EXPECT_EQ(0u, shd_reduction_partials(&r, &s));
    }
}

TEST(EachRound, ButForWholeGradientsAtLevelRun)
{
    const shd_reduction run = {SHD_DETERMINISM_RUN, 4}, strategy = {SHD_DETERMINISM_STRATEGY, 4};
    const shd_strategy whole = Degrees(1, 1, 4, 4), sharded = Degrees(1, 2, 4, 4),
                       alone = Degrees(1, 1, 1, 1);
    EXPECT_FALSE(shd_reduction_each_round(&run, &whole));
    EXPECT_TRUE(shd_reduction_each_round(&run, &sharded));
    EXPECT_TRUE(shd_reduction_each_round(&run, &alone)) << "there is nobody to exchange with";
    EXPECT_TRUE(shd_reduction_each_round(&strategy, &whole));
}

} // namespace

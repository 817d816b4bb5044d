// Advice: what fits, in the order of what it costs.
#include "daemon/train/advise.h"

#include <map>

#include "tests/train/machines.h"

namespace
{

std::vector<shd_advice> Advise(const shd_spec &spec, const shd_machine &machine, uint64_t memory,
                               uint32_t most = 100)
{
    shd_advice *list = nullptr;
    uint32_t n = 0;
    shd_error err = {};
    EXPECT_EQ(0, shd_advise(&spec, 1, &machine, memory, most, &list, &n, &err)) << err.message;
    std::vector<shd_advice> out(list, list + n);
    free(list);
    return out;
}

// Each is what a plan of its own says, fits, and is in its place.
void Check(const shd_spec &spec, const shd_machine &machine, uint64_t memory,
           const std::vector<shd_advice> &advice)
{
    double before = 0;
    for (const shd_advice &a : advice) {
        EXPECT_TRUE(a.fits);
        EXPECT_LE(a.bytes, memory);
        EXPECT_GE(a.step_s, before);
        before = a.step_s;
        shd_spec one = spec;
        one.strategy = a.strategy;
        one.checkpointing = a.checkpointing;
        shd_plan plan;
        shd_estimate estimate;
        ASSERT_EQ(0, shd_plan_for(&one, 1, &machine, &plan, &estimate, nullptr, nullptr));
        EXPECT_EQ(shd_plan_bytes(&plan), a.bytes);
        EXPECT_EQ(estimate.step_s, a.step_s);
        uint64_t bytes = 0, between = 0;
        for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
            bytes += plan.comm_step[k].bytes;
            between += plan.comm_between[k];
        }
        EXPECT_EQ(bytes, a.comm_bytes);
        EXPECT_EQ(between, a.between);
    }
}

std::map<std::string, const shd_advice *> ByName(const std::vector<shd_advice> &advice)
{
    std::map<std::string, const shd_advice *> names;
    for (const shd_advice &a : advice) {
        names.emplace(shd_strategy_name(&a.strategy), &a);
    }
    return names;
}

TEST(Advise, EverythingFitsInMuchMemory)
{
    const shd_spec spec = shd::SmallSpec("zero3", 8);
    const uint64_t memory = UINT64_C(1) << 40;
    const auto advice = Advise(spec, shd::Nodes(2), memory);
    Check(spec, shd::Nodes(2), memory, advice);
    const auto names = ByName(advice);
    for (const char *name : {"ddp", "zero1", "zero2", "zero3", "shard_grad_op", "hybrid_shard",
                             "hybrid_shard_zero2", "hpz", "megatron"}) {
        EXPECT_EQ(1u, names.count(name)) << name;
    }
    for (const shd_advice &a : advice) {
        EXPECT_EQ(SHD_CHECKPOINT_NONE, a.checkpointing) << "there is no need for more";
    }
    EXPECT_EQ(3u, Advise(spec, shd::Nodes(2), memory, 3).size());
}

// Without rates the cheapest is what sends least, between nodes first.
TEST(Advise, ByBytesWithoutRates)
{
    shd_machine machine = {};
    machine.ranks_per_node = 2;
    const shd_spec spec = shd::SmallSpec("zero3", 8);
    const auto advice = Advise(spec, machine, SHD_ADVISE_ANY);
    ASSERT_GT(advice.size(), 8u);
    for (size_t i = 1; i < advice.size(); i++) {
        EXPECT_EQ(0, advice[i].step_s);
        EXPECT_GE(advice[i].between, advice[i - 1].between);
        if (advice[i].between == advice[i - 1].between) {
            EXPECT_GE(advice[i].comm_bytes, advice[i - 1].comm_bytes);
        }
    }
}

// A model whose states a rank cannot hold whole: what is not sharded enough is left out, and
// activations are computed again where they do not fit.
TEST(Advise, LittleMemoryTakesMoreShards)
{
    shd_model_config model = {};
    ASSERT_EQ(0, shd_model_preset("gpt2-medium", &model, nullptr));
    shd_spec spec = shd::LargeSpec(model, "zero3", 64, 1024);
    spec.micro_batch = 4;
    spec.global_batch = 4 * 64;
    const uint64_t memory = UINT64_C(2500) << 20;
    const auto advice = Advise(spec, shd::Nodes(), memory);
    ASSERT_FALSE(advice.empty());
    Check(spec, shd::Nodes(), memory, advice);
    const auto names = ByName(advice);
    EXPECT_EQ(0u, names.count("ddp")) << "18 bytes of each of 355M parameters";
    ASSERT_EQ(1u, names.count("zero3"));
    EXPECT_NE(SHD_CHECKPOINT_NONE, names.at("zero3")->checkpointing);
}

TEST(Advise, WhatNeedsLeastWhenNothingFits)
{
    const shd_spec spec = shd::SmallSpec("ddp", 4);
    for (uint64_t memory : {UINT64_C(0), UINT64_C(1000)}) {
        const auto advice = Advise(spec, shd::Nodes(4), memory);
        ASSERT_EQ(1u, advice.size());
        EXPECT_FALSE(advice[0].fits);
        EXPECT_GT(advice[0].bytes, memory);
    }
}

TEST(Advise, OnOneRankThereIsOneStrategy)
{
    const auto advice = Advise(shd::SmallSpec("ddp", 1), shd::Nodes(1), SHD_ADVISE_ANY);
    ASSERT_EQ(1u, advice.size());
    EXPECT_STREQ("ddp", shd_strategy_name(&advice[0].strategy));
}

} // namespace

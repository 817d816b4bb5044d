// Memory and communication: the plan is what happens, to the byte, and both are the formulas of
// ZeRO plus padding that the layout states (contract: memory).
#include <gtest/gtest.h>

#include "tests/train/engine.h"

namespace
{

struct Case {
    const char *strategy;
    uint32_t world;
    int model;
};

shd_spec SpecOf(const Case &c)
{
    shd_spec spec = shd::SmallSpec(c.strategy, c.world);
    if (c.model == 1) {
        spec.model = shd_model_config_gpt2(3, 5, 40, 37, 61);
        spec.seq_len = 37;
        spec.micro_batch = 3;
        spec.accumulation = 2;
        spec.global_batch = 3 * c.world * 2;
    }
    return spec;
}

std::vector<Case> Cases()
{
    std::vector<Case> cases;
    for (const char *strategy : {"ddp", "zero1", "zero2", "zero3", "shard_grad_op"}) {
        for (uint32_t world : {1u, 2u, 3u, 4u, 8u}) {
            for (int model : {0, 1}) {
                cases.push_back({strategy, world, model});
            }
        }
    }
    return cases;
}

class Memory : public testing::TestWithParam<Case>
{
};

TEST_P(Memory, PlannedPeakIsMeasuredPeakPerTag)
{
    const shd_spec spec = SpecOf(GetParam());
    shd::DataFile file(8000, 61);
    for (int threads : {1, 2}) {
        shd::Engine engine(spec, file.Open(), nullptr, threads);
        engine.Step();
        for (uint32_t r = 0; r < spec.strategy.world; r++) {
            shd_usage usage[SHD_TAG_COUNT];
            uint64_t total_peak = 0, reserved = 0;
            shd_trainer_usage(engine.trainer(), r, usage, &total_peak, &reserved);
            for (int t = 0; t < SHD_TAG_COUNT; t++) {
                EXPECT_EQ(engine.plan().peak[t], usage[t].peak)
                    << "rank " << r << " " << shd_tag_name(static_cast<shd_tag>(t));
                EXPECT_EQ(engine.plan().steady[t], usage[t].now)
                    << "rank " << r << " " << shd_tag_name(static_cast<shd_tag>(t));
            }
            EXPECT_EQ(engine.plan().total_peak, total_peak);
            EXPECT_EQ(engine.plan().extent, reserved);
        }
    }
}

TEST_P(Memory, ModelStatesAreTheFormulasPlusPadding)
{
    const shd_spec spec = SpecOf(GetParam());
    shd_plan plan;
    shd_error err = {};
    ASSERT_EQ(0, shd_plan_make(&spec, 1, &plan, &err)) << err.message;
    // fp32: 4 bytes of parameters, 4 of gradients, 8 of moments; parts are multiples of 256
    // elements, so that the arena's rounding adds nothing.
    const uint64_t padded = plan.parameters + plan.padding;
    EXPECT_EQ(4 * padded / spec.strategy.p, plan.steady[SHD_TAG_PARAMS]);
    EXPECT_EQ(4 * padded / spec.strategy.g, plan.steady[SHD_TAG_GRADS]);
    EXPECT_EQ(8 * padded / spec.strategy.o, plan.steady[SHD_TAG_OPTIMIZER]);
    EXPECT_EQ(0u, plan.steady[SHD_TAG_GATHERED]);
    EXPECT_EQ(0u, plan.steady[SHD_TAG_ACTIVATIONS]);
    EXPECT_EQ(0u, plan.steady[SHD_TAG_COMM]);
    EXPECT_EQ(0u, plan.steady[SHD_TAG_WORKSPACE]);
    // Padding: below 256 elements a parameter, below 256 W a unit.
    shd_model *model = nullptr;
    ASSERT_EQ(0, shd_model_create(&spec.model, &model, &err));
    EXPECT_LT(plan.padding,
              256u * shd_model_n_params(model) + 256u * spec.strategy.world * plan.units);
    uint64_t numel = 0;
    for (uint32_t i = 0; i < shd_model_n_params(model); i++) {
        numel += static_cast<uint64_t>(shd_param_numel(shd_model_param(model, i)));
    }
    EXPECT_EQ(numel, plan.parameters);
    shd_model_free(model);
}

TEST_P(Memory, CommunicationIsTheClosedForm)
{
    const shd_spec spec = SpecOf(GetParam());
    const uint64_t W = spec.strategy.world;
    shd::DataFile file(8000, 61);
    shd::Engine engine(spec, file.Open());
    const uint64_t padded = engine.plan().parameters + engine.plan().padding;
    const uint64_t once = 4 * padded * (W - 1) / W; // bytes of Ψ(W-1)/W elements
    const uint64_t A = spec.accumulation;
    const std::string s = GetParam().strategy;
    // A reduce-scatter per accumulation round, then: the gathering half of the all-reduce (ddp),
    // updated parameters (zero1, zero2), or parameters for forward and for backward (zero3).
    uint64_t gathers = 0, all_reduce = 0;
    if (s == "ddp") {
        all_reduce = once;
    } else if (s == "zero1" || s == "zero2") {
        gathers = once;
    } else if (s == "shard_grad_op") {
        gathers = A * once;
    } else {
        gathers = 2 * A * once;
    }
    if (A == 1 && s != "shard_grad_op") {
        const uint64_t total = A * once + gathers + all_reduce;
        EXPECT_EQ(total, (s == "zero3" ? 3 : 2) * once) << "the papers' 3Ψ and 2Ψ";
    }
    for (int step = 0; step < 2; step++) {
        std::vector<shd_comm_count> before(SHD_COMM_KIND_COUNT), after(SHD_COMM_KIND_COUNT);
        shd_trainer_comm(engine.trainer(), 0, before.data());
        engine.Step();
        for (uint32_t r = 0; r < W; r++) {
            shd_trainer_comm(engine.trainer(), r, after.data());
            for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
                EXPECT_EQ(engine.plan().comm_step[k].bytes, after[k].bytes - before[k].bytes)
                    << shd_comm_kind_name(static_cast<shd_comm_kind>(k));
                EXPECT_EQ(engine.plan().comm_step[k].calls, after[k].calls - before[k].calls)
                    << shd_comm_kind_name(static_cast<shd_comm_kind>(k));
            }
        }
        EXPECT_EQ(A * once,
                  after[SHD_COMM_REDUCE_SCATTER].bytes - before[SHD_COMM_REDUCE_SCATTER].bytes);
        EXPECT_EQ(gathers, after[SHD_COMM_ALL_GATHER].bytes - before[SHD_COMM_ALL_GATHER].bytes);
        EXPECT_EQ(all_reduce, after[SHD_COMM_ALL_REDUCE].bytes - before[SHD_COMM_ALL_REDUCE].bytes);
    }
}

INSTANTIATE_TEST_SUITE_P(Strategies, Memory, testing::ValuesIn(Cases()), [](const auto &tested) {
    return std::string(tested.param.strategy) + "W" + std::to_string(tested.param.world) + "M" +
           std::to_string(tested.param.model);
});

// Evaluation, generation and small client batches stay within the plan.
TEST(Plan, OtherWorkFitsToo)
{
    shd::DataFile file(4000);
    shd_spec spec = shd::SmallSpec("zero3", 3);
    spec.eval_split = 0.2;
    shd::Engine engine(spec, file.Open());
    engine.Step();
    for (shd_work_kind kind : {SHD_WORK_EVAL, SHD_WORK_NEXT_LOGITS, SHD_WORK_FORWARD}) {
        shd_work work;
        shd_work_init(&work, kind);
        if (kind != SHD_WORK_EVAL) {
            shd::MakeBatch(&work, kind == SHD_WORK_FORWARD ? 5 : 1, 11);
        }
        EXPECT_EQ(0, engine.Run(&work)) << work.err.message;
        shd_work_fini(&work);
    }
    for (uint32_t r = 0; r < 3; r++) {
        shd_usage usage[SHD_TAG_COUNT];
        uint64_t total_peak = 0, reserved = 0;
        shd_trainer_usage(engine.trainer(), r, usage, &total_peak, &reserved);
        for (int t = 0; t < SHD_TAG_COUNT; t++) {
            EXPECT_EQ(engine.plan().peak[t], usage[t].peak);
            EXPECT_EQ(engine.plan().steady[t], usage[t].now);
        }
    }
}

} // namespace

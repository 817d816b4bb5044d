// The plan of steps of many accumulation rounds, which is not made round by round.
#include "daemon/train/plan.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>

#include "tests/train/engine.h"

namespace {

shd_spec SpecOf(const char *strategy, uint32_t world, uint32_t accumulation)
{
    shd_spec spec = shd::SmallSpec(strategy, world);
    spec.accumulation = accumulation;
    spec.global_batch = spec.micro_batch * world * accumulation;
    return spec;
}

TEST(Plan, IsWhatHappensWhateverTheAccumulation)
{
    shd::DataFile file(4000);
    for (const char *strategy : {"ddp", "zero1", "zero2", "zero3", "shard_grad_op"}) {
        for (uint32_t world : {1u, 2u, 3u}) {
            for (uint32_t accumulation : {1u, 2u, 3u, 7u}) {
                const shd_spec spec = SpecOf(strategy, world, accumulation);
                shd::Engine engine(spec, file.Open());
                for (int step = 0; step < 2; step++) {
                    shd_comm_count before[SHD_COMM_KIND_COUNT], after[SHD_COMM_KIND_COUNT];
                    shd_trainer_comm(engine.trainer(), 0, before);
                    engine.Step();
                    shd_trainer_comm(engine.trainer(), 0, after);
                    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
                        const char *kind = shd_comm_kind_name(static_cast<shd_comm_kind>(k));
                        EXPECT_EQ(engine.plan().comm_step[k].bytes, after[k].bytes - before[k].bytes)
                            << strategy << world << " x " << accumulation << " " << kind;
                        EXPECT_EQ(engine.plan().comm_step[k].calls, after[k].calls - before[k].calls)
                            << strategy << world << " x " << accumulation << " " << kind;
                    }
                }
                shd_usage usage[SHD_TAG_COUNT];
                uint64_t peak = 0, reserved = 0;
                shd_trainer_usage(engine.trainer(), 0, usage, &peak, &reserved);
                EXPECT_EQ(engine.plan().total_peak, peak) << strategy << world << accumulation;
                for (int t = 0; t < SHD_TAG_COUNT; t++) {
                    EXPECT_EQ(engine.plan().peak[t], usage[t].peak);
                    EXPECT_EQ(engine.plan().steady[t], usage[t].now);
                }
            }
        }
    }
}

// A daemon plans what anybody submits: no number that a specification may hold makes it slow.
TEST(Plan, OfTheLargestBatchIsMadeAtOnce)
{
    shd_spec spec = SpecOf("zero3", 1, 1 << 20);
    spec.micro_batch = 1;
    spec.global_batch = 1 << 20;
    spec.model = shd_model_config_gpt2(48, 25, 1600, 1024, 50257);
    spec.seq_len = 1024;
    const auto before = std::chrono::steady_clock::now();
    shd_plan plan;
    shd_error err = {};
    ASSERT_EQ(0, shd_plan_make(&spec, 1, &plan, &err)) << err.message;
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
    EXPECT_EQ(1557611200u, plan.parameters);
}

// Every preset at its own context, in every precision.
TEST(Plan, OfEveryPresetIsMadeAtOnce)
{
    const std::string list = std::string(shd_model_presets()) + ", ";
    size_t at = 0;
    for (size_t comma; (comma = list.find(", ", at)) != std::string::npos; at = comma + 2) {
        const std::string name = list.substr(at, comma - at);
        for (shd_dtype dtype : {SHD_F32, SHD_BF16}) {
            shd_spec spec = SpecOf("zero3", 4, 1);
            shd_error err = {};
            ASSERT_EQ(0, shd_model_preset(name.c_str(), &spec.model, &err)) << err.message;
            spec.dtype = dtype;
            spec.micro_batch = 1;
            spec.global_batch = 4;
            spec.seq_len = static_cast<uint32_t>(spec.model.context);
            const auto before = std::chrono::steady_clock::now();
            shd_plan plan;
            ASSERT_EQ(0, shd_plan_make(&spec, 1, &plan, &err)) << name << err.message;
            EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5)) << name;
            // Parameters, and their gradients in fp32, a quarter each.
            const uint64_t wide = dtype == SHD_F32 ? 4 : 2;
            EXPECT_GE(plan.steady[SHD_TAG_PARAMS], plan.parameters * wide / 4) << name;
            EXPECT_LE(plan.steady[SHD_TAG_PARAMS], (plan.parameters + plan.padding) * wide / 4);
        }
    }
}

// Nor does it make it take memory: planning alone must not be what the memory of a machine fails at.
TEST(Plan, OfTheLargestMicroBatchTakesNoMemory)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers need the address space that is limited here";
#else
    shd_spec spec = SpecOf("zero3", 1, 1);
    spec.micro_batch = spec.global_batch = 1 << 20;
    spec.model = shd_model_config_gpt2(2, 2, 24, 1024, 50257);
    spec.seq_len = 1024;
    struct rlimit kept, tight;
    ASSERT_EQ(0, getrlimit(RLIMIT_AS, &kept));
    tight = kept;
    tight.rlim_cur = UINT64_C(1) << 30;
    ASSERT_EQ(0, setrlimit(RLIMIT_AS, &tight));
    shd_plan plan;
    shd_error err = {};
    EXPECT_EQ(0, shd_plan_make(&spec, 1, &plan, &err)) << err.message;
    EXPECT_GT(plan.extent, UINT64_C(1) << 38) << "which no machine grants";
    ASSERT_EQ(0, setrlimit(RLIMIT_AS, &kept));
#endif
}

}  // namespace

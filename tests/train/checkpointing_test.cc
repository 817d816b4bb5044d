// Activation checkpointing: less memory for the same bits (those are in matrix_test), and nothing
// more to communicate.
#include <gtest/gtest.h>

#include "tests/train/drive.h"

namespace
{

shd_plan PlanOf(shd_spec spec, shd_checkpointing checkpointing)
{
    spec.checkpointing = checkpointing;
    shd_plan plan = {};
    shd_error err = {};
    EXPECT_EQ(0, shd_plan_make(&spec, 1, &plan, &err)) << err.message;
    return plan;
}

TEST(Checkpointing, TakesLessMemoryTheMoreIsComputedAgain)
{
    for (shd_dtype dtype : {SHD_F32, SHD_BF16}) {
        for (uint32_t arch : {0u, 1u}) {
            shd_spec spec = shd::SmallSpec("zero3", 2);
            const int64_t layers = 8, d = 64, tokens = 64;
            spec.model = arch == 0 ? shd_model_config_gpt2(layers, 4, d, tokens, 97)
                                   : shd_model_config_llama(layers, 4, d, 4 * d, tokens, 97);
            spec.dtype = dtype;
            spec.seq_len = static_cast<uint32_t>(tokens);
            spec.micro_batch = 4;
            spec.global_batch = 8;
            const shd_plan none = PlanOf(spec, SHD_CHECKPOINT_NONE);
            const shd_plan selective = PlanOf(spec, SHD_CHECKPOINT_SELECTIVE);
            const shd_plan full = PlanOf(spec, SHD_CHECKPOINT_FULL);
            const auto peak = [](const shd_plan &plan) { return plan.peak[SHD_TAG_ACTIVATIONS]; };
            EXPECT_LT(peak(selective), peak(none) * 3 / 4);
            EXPECT_LT(peak(full), peak(none) / 3);
            // Of every block its input, of one block everything, and the gradients that flow.
            const uint64_t input = 4 * static_cast<uint64_t>(tokens * d) * shd_dtype_size(dtype);
            EXPECT_GT(peak(full), static_cast<uint64_t>(layers) * input);
            EXPECT_LT(peak(full), peak(none) / static_cast<uint64_t>(layers) +
                                      (static_cast<uint64_t>(layers) + 4) * input);
            for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
                EXPECT_EQ(none.comm_step[k].bytes, full.comm_step[k].bytes)
                    << shd_comm_kind_name(static_cast<shd_comm_kind>(k));
            }
            for (int t : {SHD_TAG_PARAMS, SHD_TAG_GRADS, SHD_TAG_OPTIMIZER}) {
                EXPECT_EQ(none.peak[t], full.peak[t]);
            }
        }
    }
}

TEST(Checkpointing, OtherWorkBetweenStepsChangesNothing)
{
    shd_spec spec = shd::SmallSpec("zero3", 2);
    spec.checkpointing = SHD_CHECKPOINT_FULL;
    shd::Engine busy(spec), quiet(spec);
    for (uint32_t step = 0; step < 4; step++) {
        const shd::Batch batch = shd::Batch::Random(4, 17, step), other = batch.Part(1, 2);
        const double before = shd::Good(busy, SHD_WORK_FORWARD, &batch).loss;
        shd::Good(busy, SHD_WORK_FORWARD, &other);
        const shd::Result a = shd::Good(busy, SHD_WORK_TRAIN_STEP, &batch);
        const shd::Result b = shd::Good(quiet, SHD_WORK_TRAIN_STEP, &batch);
        EXPECT_EQ(before, a.loss) << "with and without recording";
        EXPECT_EQ(a.loss, b.loss);
        EXPECT_EQ(a.norm, b.norm);
    }
    EXPECT_TRUE(busy.Params() == quiet.Params());
}

} // namespace

// Work in turns: how an item is cut changes no bit, and an item may be dropped between turns.
#include <gtest/gtest.h>

#include "tests/train/engine.h"

namespace {

void FillBatch(shd_work *work, uint32_t sequences, uint32_t length)
{
    shd::MakeBatch(work, sequences, length);
    for (uint32_t i = 0; i < sequences * length; i++) {
        work->batch.tokens[i] = static_cast<int32_t>(i * 7 % 97);
        work->batch.targets[i] = static_cast<int32_t>((i * 7 + 5) % 97);
    }
}

struct Answer {
    int turns = 0;
    double loss = 0;
    std::vector<float> logprobs;
};

Answer Forward(shd::Engine *engine, uint32_t sequences)
{
    shd_work work;
    shd_work_init(&work, SHD_WORK_FORWARD);
    work.want_logprobs = 1;
    FillBatch(&work, sequences, 17);
    Answer answer;
    do {
        engine->Turn(&work);
        answer.turns++;
    } while (work.more);
    EXPECT_EQ(0, work.rc) << work.err.message;
    EXPECT_EQ(sequences * 17, work.valid_tokens);
    answer.loss = work.loss;
    answer.logprobs.assign(work.logprobs, work.logprobs + sequences * 17);
    shd_work_fini(&work);
    return answer;
}

TEST(Turns, TheCutChangesNoBit)
{
    for (uint32_t world : {1u, 2u}) {
        shd::Engine engine(shd::SmallSpec("zero3", world));
        // How long a round takes is not known at first: the first turn has one round.
        const Answer first = Forward(&engine, 37);
        EXPECT_GE(first.turns, 2);
        const Answer second = Forward(&engine, 37);
        EXPECT_EQ(first.loss, second.loss);
        EXPECT_EQ(first.logprobs, second.logprobs);
    }
}

TEST(Turns, ADroppedItemLeavesNoTrace)
{
    for (uint32_t world : {1u, 3u}) {
        shd::Engine engine(shd::SmallSpec("zero2", world));
        const auto params = engine.Params();
        shd_work work;
        shd_work_init(&work, SHD_WORK_FORWARD);
        work.want_logprobs = 1;
        FillBatch(&work, 50, 17);
        engine.Turn(&work);
        ASSERT_EQ(0, work.rc) << work.err.message;
        ASSERT_TRUE(work.more);
        shd_trainer_drop(engine.trainer());
        shd_work_fini(&work);
        EXPECT_TRUE(params == engine.Params());
        shd::Engine fresh(shd::SmallSpec("zero2", world));
        const Answer got = Forward(&engine, 11), want = Forward(&fresh, 11);
        EXPECT_EQ(want.loss, got.loss);
        EXPECT_EQ(want.logprobs, got.logprobs);
    }
}

// A job may be freed between two turns of its work.
TEST(Turns, AnUnfinishedItemDiesWithItsJob)
{
    shd::DataFile file(4000);
    shd_spec spec = shd::SmallSpec("zero3", 2);
    spec.accumulation = 5;
    spec.global_batch = 20;
    shd::Engine engine(spec, file.Open());
    shd_work work;
    shd_work_init(&work, SHD_WORK_DATA_STEP);
    engine.Turn(&work);
    EXPECT_EQ(0, work.rc) << work.err.message;
    EXPECT_TRUE(work.more);
    EXPECT_EQ(0u, work.step);
    shd_work_fini(&work);
}

} // namespace

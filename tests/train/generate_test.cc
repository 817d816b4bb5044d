// Generation with caches: the logits of a full pass, the same bits whoever else generates, and new
// weights at once.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/train/drive.h"

namespace
{

using shd::Batch;

// What the service keeps of a generation.
struct Stream {
    uint64_t id;
    std::vector<int32_t> tokens;
    uint32_t prefill = 0;
    uint64_t cache_step = UINT64_MAX;

    std::vector<float> Next(shd::Engine *engine, int *passes = nullptr)
    {
        shd_work work;
        shd_work_init(&work, SHD_WORK_NEXT_LOGITS);
        shd::MakeBatch(&work, 1, static_cast<uint32_t>(tokens.size()));
        std::copy(tokens.begin(), tokens.end(), work.batch.tokens);
        work.stream = id;
        work.prefill = prefill;
        work.cache_step = cache_step;
        int turns = 0;
        do {
            engine->Turn(&work);
            turns++;
        } while (work.more);
        EXPECT_EQ(0, work.rc) << work.err.message;
        if (passes != nullptr) {
            *passes = turns;
        }
        std::vector<float> logits;
        if (work.rc == 0 && work.logits != nullptr) {
            logits.assign(work.logits, work.logits + engine->spec().model.vocab);
        }
        if (cache_step != work.step) {
            cache_step = work.step;
            prefill = static_cast<uint32_t>(tokens.size());
        }
        shd_work_fini(&work);
        return logits;
    }
    // The likeliest token, appended.
    std::vector<float> Greedy(shd::Engine *engine)
    {
        const std::vector<float> logits = Next(engine);
        tokens.push_back(
            static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
        return logits;
    }
};

std::vector<float> Full(shd::Engine *engine, const std::vector<int32_t> &tokens)
{
    Stream plain = {0, tokens};
    return plain.Next(engine);
}

shd_spec Spec(uint32_t i, const char *strategy, uint32_t world)
{
    shd_spec spec = shd::SmallSpec(strategy, world);
    if (i == 1) {
        spec.model = shd_model_config_llama(2, 4, 32, 44, 19, 97);
        spec.model.n_kv_head = 2;
    }
    if (i == 2) {
        spec.model = shd_model_config_llama(2, 4, 32, 44, 19, 97);
        spec.model.arch = SHD_ARCH_MISTRAL;
        spec.model.sliding_window = 5;
        spec.model.windowed[0] = 3;
    }
    return spec;
}

class Generate : public testing::TestWithParam<uint32_t>
{
};

TEST_P(Generate, TokenByTokenGivesTheLogitsOfAFullPass)
{
    for (shd_dtype dtype : {SHD_F32, SHD_BF16}) {
        for (const char *strategy : {"ddp", "zero3"}) {
            shd_spec spec = Spec(GetParam(), strategy, 2);
            spec.dtype = dtype;
            shd::Engine engine(spec);
            Stream s = {7, {5, 1, 90, 33}};
            while (s.tokens.size() < spec.seq_len) {
                const std::vector<float> want = Full(&engine, s.tokens);
                const std::vector<float> got = s.Greedy(&engine);
                // Products of one row and of many are summed in another order: a few ulp of the
                // operands in fp32 (1e-5 of the largest logit), of the 8 bits of bf16 otherwise.
                double most = 0, diff = 0;
                for (size_t i = 0; i < want.size(); i++) {
                    most = std::max(most, std::fabs(static_cast<double>(want[i])));
                    diff = std::max(diff, std::fabs(static_cast<double>(want[i]) - got[i]));
                }
                EXPECT_LE(diff, (dtype == SHD_F32 ? 1e-5 : 3e-2) * most) << s.tokens.size();
            }
        }
    }
}

TEST_P(Generate, TheBitsDoNotDependOnWhoElseGenerates)
{
    const shd_spec spec = Spec(GetParam(), "zero3", 2);
    std::vector<std::vector<std::vector<float>>> alone;
    const uint32_t n = SHD_GENERATE_CACHES + 2;
    const auto prompt = [](uint32_t i) {
        return std::vector<int32_t>{static_cast<int32_t>(i), 3, static_cast<int32_t>(10 * i)};
    };
    shd::Engine quiet(spec), busy(spec);
    for (uint32_t i = 0; i < n; i++) {
        Stream s = {100 + i, prompt(i)};
        alone.emplace_back();
        for (int t = 0; t < 8; t++) {
            alone.back().push_back(s.Greedy(&quiet));
        }
    }
    // More streams than caches, in turns, with evaluations and gradients between.
    std::vector<Stream> streams;
    for (uint32_t i = 0; i < n; i++) {
        streams.push_back({200 + i, prompt(i)});
    }
    const Batch batch = Batch::Random(4, 17, 1);
    for (size_t t = 0; t < 8; t++) {
        for (uint32_t i = 0; i < n; i++) {
            EXPECT_TRUE(alone[i][t] == streams[i].Greedy(&busy))
                << "stream " << i << " token " << t;
        }
        shd::Good(busy, t % 2 ? SHD_WORK_FORWARD : SHD_WORK_FORWARD_BACKWARD, &batch);
    }
}

TEST_P(Generate, NewWeightsAreUsedAtOnce)
{
    shd::Engine engine(Spec(GetParam(), "zero1", 2));
    Stream s = {1, {1, 2, 3}};
    const Batch batch = Batch::Random(4, 17, 1);
    for (int t = 0; t < 5; t++) {
        s.Greedy(&engine);
        shd::Good(engine, SHD_WORK_TRAIN_STEP, &batch);
        const std::vector<int32_t> tokens = s.tokens;
        Stream again = s;
        EXPECT_TRUE(Full(&engine, tokens) == again.Next(&engine)) << "one pass over all, the same";
        s = again;
    }
}

// A step on accumulated gradients while generations keep what they have: its scratch is planned on
// top of theirs.
TEST_P(Generate, AStepMayComeBetweenTokens)
{
    for (shd_dtype reduce : {SHD_F32, SHD_BF16}) {
        shd_spec spec = Spec(GetParam(), "ddp", 1);
        spec.reduce_dtype = reduce;
        spec.micro_batch = spec.global_batch = 1;
        spec.checkpointing = SHD_CHECKPOINT_FULL;
        shd::Engine engine(spec);
        const Batch batch = Batch::Random(1, 17, 1);
        shd::Good(engine, SHD_WORK_FORWARD_BACKWARD, &batch);
        for (uint32_t i = 0; i < engine.plan().generate_caches; i++) {
            Stream s = {1 + i, {1, 2, 3}};
            s.Greedy(&engine);
        }
        shd::Good(engine, SHD_WORK_OPTIM_STEP, nullptr);
        shd_usage usage[SHD_TAG_COUNT];
        uint64_t total = 0, reserved = 0;
        shd_trainer_usage(engine.trainer(), 0, usage, &total, &reserved);
        EXPECT_LE(total, engine.plan().total_peak);
    }
}

INSTANTIATE_TEST_SUITE_P(Models, Generate, testing::Range(0u, 3u));

} // namespace

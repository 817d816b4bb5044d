// Work that clients drive: what equals what bit for bit, and what leaves the state alone.
#include "daemon/train/trainer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/train/drive.h"

namespace
{

using shd::Batch;
using shd::Case;
using shd::Do;
using shd::Good;
using shd::kCases;
using shd::Result;

// ---- what equals what ----

TEST(ClientDriven, TrainStepIsForwardBackwardAndOptimStep)
{
    for (const Case &s : kCases) {
        const shd_spec spec = shd::SmallSpec(s.strategy, s.world);
        shd::Engine a(spec), b(spec);
        for (uint32_t i = 0; i < 3; i++) {
            const Batch batch = Batch::Random(2 * s.world, 17, i);
            const Result whole = Good(a, SHD_WORK_TRAIN_STEP, &batch);
            const Result first = Good(b, SHD_WORK_FORWARD_BACKWARD, &batch);
            EXPECT_EQ(i, first.step);
            const Result second = Good(b, SHD_WORK_OPTIM_STEP);
            EXPECT_EQ(whole.loss, first.loss);
            EXPECT_EQ(whole.valid, first.valid);
            EXPECT_EQ(whole.norm, second.norm);
            EXPECT_EQ(whole.lr, second.lr);
            EXPECT_EQ(i + 1, second.step);
            EXPECT_EQ(whole.step, second.step);
            EXPECT_EQ(2 * s.world * (i + 1), whole.samples);
            EXPECT_EQ(whole.samples, second.samples);
        }
        EXPECT_TRUE(a.Params() == b.Params()) << s.strategy;
    }
}

TEST(ClientDriven, OneBatchIsSeveralOfWholeRounds)
{
    for (const Case &s : kCases) {
        const shd_spec spec = shd::SmallSpec(s.strategy, s.world);
        const uint32_t round = spec.micro_batch * s.world;
        shd::Engine a(spec), b(spec);
        for (uint32_t i = 0; i < 2; i++) {
            const Batch batch = Batch::Random(3 * round, 11, i);
            const Result whole = Good(a, SHD_WORK_TRAIN_STEP, &batch);
            double loss = 0;
            for (uint32_t part = 0; part < 3; part++) {
                const Batch piece = batch.Part(part * round, round);
                loss += Good(b, SHD_WORK_FORWARD_BACKWARD, &piece).loss / 3;
            }
            const Result step = Good(b, SHD_WORK_OPTIM_STEP);
            EXPECT_EQ(whole.norm, step.norm) << s.strategy;
            EXPECT_NEAR(whole.loss, loss, 1e-12);
        }
        EXPECT_TRUE(a.Params() == b.Params()) << s.strategy;
    }
}

// Batches that leave ranks without work, or with less of it, are the same batch on one rank. The
// leaves are the same, so losses are equal to the bit; the gradient is the same sum of at most four
// leaves in another order, so its norm moves by some units of 2^-24.
TEST(ClientDriven, BatchesThatDoNotFillTheRanks)
{
    for (uint32_t sequences : {1u, 2u, 3u, 5u, 7u}) {
        for (uint32_t length : {1u, 9u, 17u}) {
            const Batch batch = Batch::Random(sequences, length, sequences);
            shd::Engine one(shd::SmallSpec("ddp", 1));
            const Result want = Good(one, SHD_WORK_TRAIN_STEP, &batch);
            EXPECT_EQ(sequences * length, want.valid);
            for (uint32_t world : {2u, 3u, 5u}) {
                shd::Engine engine(shd::SmallSpec("zero3", world));
                const Result got = Good(engine, SHD_WORK_TRAIN_STEP, &batch);
                EXPECT_EQ(want.loss, got.loss) << sequences << " on " << world;
                EXPECT_EQ(want.valid, got.valid);
                EXPECT_EQ(sequences, got.samples);
                EXPECT_NEAR(want.norm, got.norm, 2e-6 * want.norm);
            }
        }
    }
}

// Loss and gradient are means over valid tokens, not over micro-batches.
TEST(ClientDriven, MaskedTokensDoNotCount)
{
    for (uint32_t world : {1u, 3u}) {
        const shd_spec spec = shd::SmallSpec("zero3", world);
        // Five sequences of which two are masked altogether and one for the most part.
        Batch masked = Batch::Random(5, 8, 3);
        for (uint32_t i = 0; i < 40; i++) {
            if (i / 8 == 1 || i / 8 == 4 || (i / 8 == 2 && i % 8 > 1)) {
                masked.targets[i] = SHD_IGNORE_INDEX;
            }
        }
        shd::Engine engine(spec);
        const Result r = Good(engine, SHD_WORK_FORWARD, &masked, {NAN, NAN, NAN, true});
        EXPECT_EQ(18u, r.valid);
        double sum = 0;
        for (uint32_t i = 0; i < 40; i++) {
            sum += static_cast<double>(r.logprobs[i]);
            EXPECT_EQ(masked.targets[i] < 0, r.logprobs[i] == 0.0f);
            EXPECT_TRUE(r.logprobs[i] < 0 || !std::signbit(r.logprobs[i])) << "no -0";
        }
        EXPECT_NEAR(-sum / 18, r.loss, 1e-12);
    }
}

TEST(ClientDriven, ABatchOfMaskedTokensAloneDoesNoHarm)
{
    for (const Case &s : kCases) {
        const shd_spec spec = shd::SmallSpec(s.strategy, s.world);
        shd::Engine engine(spec);
        const auto before = engine.Params();
        Batch batch = Batch::Random(3, 9, 1);
        batch.targets.assign(batch.targets.size(), SHD_IGNORE_INDEX);
        const Result r = Good(engine, SHD_WORK_TRAIN_STEP, &batch);
        EXPECT_EQ(0.0, r.loss);
        EXPECT_EQ(0u, r.valid);
        EXPECT_EQ(0.0, r.norm);
        EXPECT_EQ(0, r.skipped);
        EXPECT_EQ(1u, r.step);
        // The gradient is zero: the step is weight decay and nothing else.
        const auto after = engine.Params();
        shd_model *model = nullptr;
        ASSERT_EQ(0, shd_model_create(&spec.model, &model, nullptr));
        const float factor =
            1.0f - static_cast<float>(r.lr) * static_cast<float>(spec.weight_decay);
        for (uint32_t i = 0; i < before.size(); i++) {
            const int decay = shd_model_param(model, i)->decay;
            for (size_t k = 0; k < before[i].size(); k++) {
                if (decay) {
                    ASSERT_NEAR(before[i][k] * factor, after[i][k], 2e-7 * std::fabs(before[i][k]));
                } else {
                    ASSERT_EQ(before[i][k], after[i][k]);
                }
            }
        }
        shd_model_free(model);
        // And the job goes on.
        batch = Batch::Random(3, 9, 1);
        EXPECT_TRUE(std::isfinite(Good(engine, SHD_WORK_TRAIN_STEP, &batch).norm));
    }
}

TEST(Forward, GivesTheLossThatForwardBackwardReports)
{
    for (const Case &s : kCases) {
        shd::Engine engine(shd::SmallSpec(s.strategy, s.world));
        for (uint32_t sequences : {1u, 5u, 8u}) {
            Batch batch = Batch::Random(sequences, 13, sequences);
            batch.targets[3] = SHD_IGNORE_INDEX;
            const Result f = Good(engine, SHD_WORK_FORWARD, &batch, {NAN, NAN, NAN, true});
            const Result fb =
                Good(engine, SHD_WORK_FORWARD_BACKWARD, &batch, {NAN, NAN, NAN, true});
            EXPECT_EQ(f.loss, fb.loss);
            EXPECT_EQ(f.valid, fb.valid);
            EXPECT_EQ(batch.Valid(), f.valid);
            EXPECT_EQ(f.logprobs, fb.logprobs);
            EXPECT_EQ(sequences * 13u, f.logprobs.size());
        }
    }
}

TEST(Forward, LeavesTheStateUntouched)
{
    shd::DataFile file(3000);
    for (const Case &s : kCases) {
        shd_spec spec = shd::SmallSpec(s.strategy, s.world);
        spec.eval_split = 0.2;
        shd::Engine quiet(spec, file.Open()), busy(spec, file.Open());
        const Batch other = Batch::Random(5, 7, 99), prompt = Batch::Random(1, 6, 98);
        const auto disturb = [&] {
            const uint64_t step = Good(busy, SHD_WORK_FORWARD, &other).step;
            Good(busy, SHD_WORK_NEXT_LOGITS, &prompt);
            Good(busy, SHD_WORK_EVAL);
            EXPECT_EQ(step, Good(busy, SHD_WORK_FORWARD, &other).step);
        };
        for (uint32_t i = 0; i < 3; i++) {
            const Batch batch = Batch::Random(2 * s.world + 1, 17, i);
            const auto before = busy.Params();
            disturb();
            EXPECT_TRUE(before == busy.Params());
            Good(quiet, SHD_WORK_FORWARD_BACKWARD, &batch);
            Good(busy, SHD_WORK_FORWARD_BACKWARD, &batch);
            disturb(); // between accumulation and step
            Good(quiet, SHD_WORK_FORWARD_BACKWARD, &batch);
            Good(busy, SHD_WORK_FORWARD_BACKWARD, &batch);
            const Result want = Good(quiet, SHD_WORK_OPTIM_STEP);
            const Result got = Good(busy, SHD_WORK_OPTIM_STEP);
            EXPECT_EQ(want.norm, got.norm);
            EXPECT_EQ(want.samples, got.samples) << "forward consumes no samples";
        }
        EXPECT_TRUE(quiet.Params() == busy.Params()) << s.strategy;
    }
}

// The logits after a prefix are those that Forward scores its next token with. Other rows in the
// same product change its rounding: a few units of 2^-24 of logits of size 1.
TEST(NextLogits, AgreeWithForward)
{
    for (const Case &s : kCases) {
        shd::Engine engine(shd::SmallSpec(s.strategy, s.world));
        for (uint32_t i = 0; i < 8; i++) {
            const Batch batch = Batch::Random(2 * s.world, 17, i);
            Good(engine, SHD_WORK_TRAIN_STEP, &batch);
        }
        const Batch text = Batch::Random(1, 17, 50);
        for (uint32_t length : {1u, 2u, 9u, 17u}) {
            Batch prefix = {1,
                            length,
                            {text.tokens.begin(), text.tokens.begin() + length},
                            std::vector<int32_t>(length, SHD_IGNORE_INDEX)};
            const Result r = Good(engine, SHD_WORK_NEXT_LOGITS, &prefix);
            ASSERT_EQ(97u, r.logits.size());
            double sum = 0;
            size_t best = 0;
            for (size_t v = 0; v < r.logits.size(); v++) {
                sum += std::exp(static_cast<double>(r.logits[v]));
                best = r.logits[v] > r.logits[best] ? v : best;
            }
            float largest = -INFINITY;
            int32_t likeliest = -1;
            for (int32_t v = 0; v < 97; v++) {
                prefix.targets.back() = v;
                const Result f = Good(engine, SHD_WORK_FORWARD, &prefix, {NAN, NAN, NAN, true});
                EXPECT_NEAR(static_cast<double>(r.logits[static_cast<size_t>(v)]) - std::log(sum),
                            static_cast<double>(f.logprobs.back()), 1e-5);
                if (f.logprobs.back() > largest) {
                    largest = f.logprobs.back();
                    likeliest = v;
                }
            }
            EXPECT_EQ(best, static_cast<size_t>(likeliest)) << "length " << length;
        }
    }
}

// ---- the optimizer step ----

TEST(OptimStep, WithoutGradientsIsRefusedAndChangesNothing)
{
    for (const Case &s : kCases) {
        const shd_spec spec = shd::SmallSpec(s.strategy, s.world);
        shd::Engine refused(spec), plain(spec);
        for (uint32_t i = 0; i < 2; i++) {
            const auto before = refused.Params();
            const Result r = Do(refused, SHD_WORK_OPTIM_STEP);
            EXPECT_EQ(SHD_EINVAL, r.rc);
            EXPECT_NE(std::string::npos, r.error.find("ForwardBackward")) << r.error;
            EXPECT_EQ(i, r.step);
            EXPECT_TRUE(before == refused.Params());
            const Batch batch = Batch::Random(4, 17, i);
            Good(refused, SHD_WORK_TRAIN_STEP, &batch);
            Good(plain, SHD_WORK_TRAIN_STEP, &batch);
        }
        EXPECT_TRUE(refused.Params() == plain.Params()) << s.strategy;
    }
}

TEST(OptimStep, OverridesStandForWhatTheSpecSays)
{
    struct {
        shd::Overrides overrides;
        void (*change)(shd_spec *);
    } const cases[] = {
        {{0.005, NAN, NAN},
         [](shd_spec *s) { s->schedule = {SHD_SCHEDULE_CONSTANT, 0.005, 0, 0, 0, 0}; }},
        {{NAN, 0.01, NAN}, [](shd_spec *s) { s->clip = 0.01; }},
        {{NAN, 0, NAN}, [](shd_spec *s) { s->clip = 0; }},
        {{NAN, NAN, 0}, [](shd_spec *s) { s->weight_decay = 0; }},
        {{NAN, NAN, 0.5}, [](shd_spec *s) { s->weight_decay = 0.5; }},
    };
    shd_spec spec = shd::SmallSpec("zero2", 2);
    for (const auto &c : cases) {
        shd_spec changed = spec;
        c.change(&changed);
        shd::Engine by_override(spec), by_spec(changed), by_default(spec);
        for (uint32_t i = 0; i < 3; i++) {
            const Batch batch = Batch::Random(4, 17, i);
            const Result a = Good(by_override, SHD_WORK_TRAIN_STEP, &batch, c.overrides);
            const Result b = Good(by_spec, SHD_WORK_TRAIN_STEP, &batch);
            Good(by_default, SHD_WORK_TRAIN_STEP, &batch);
            EXPECT_EQ(a.lr, b.lr);
            EXPECT_EQ(a.norm, b.norm) << "reported before clipping";
        }
        EXPECT_TRUE(by_override.Params() == by_spec.Params());
        EXPECT_FALSE(by_override.Params() == by_default.Params());
    }
}

TEST(OptimStep, ALearningRateOfZeroMovesNothing)
{
    shd::Engine engine(shd::SmallSpec("zero3", 2));
    const auto before = engine.Params();
    const Batch batch = Batch::Random(4, 17, 1);
    const Result r = Good(engine, SHD_WORK_TRAIN_STEP, &batch, {0, NAN, NAN});
    EXPECT_EQ(0.0, r.lr);
    EXPECT_TRUE(before == engine.Params());
}

TEST(OptimStep, TheNormIsThatOfTheMeanGradient)
{
    for (const Case &s : kCases) {
        const shd_spec spec = shd::SmallSpec(s.strategy, s.world);
        shd::Engine engine(spec);
        const Batch batch = Batch::Random(2 * s.world + 1, 17, 4);
        const Result fb = Good(engine, SHD_WORK_FORWARD_BACKWARD, &batch);
        double sum = 0;
        shd_model *model = nullptr;
        ASSERT_EQ(0, shd_model_create(&spec.model, &model, nullptr));
        for (uint32_t i = 0; i < shd_model_n_params(model); i++) {
            std::vector<float> grad(shd_param_numel(shd_model_param(model, i)));
            ASSERT_EQ(0, shd_trainer_read_grad(engine.trainer(), i, grad.data(), nullptr));
            for (float g : grad) {
                sum += static_cast<double>(g) * static_cast<double>(g);
            }
        }
        shd_model_free(model);
        const Result r = Good(engine, SHD_WORK_OPTIM_STEP);
        const double want = std::sqrt(sum) / static_cast<double>(fb.valid);
        EXPECT_NEAR(want, r.norm, 1e-12 * want) << s.strategy;
    }
}

// One step on a poisoned model is skipped: neither parameters nor moments nor the optimizer's
// count of steps move, so the job goes on as if it had not been.
TEST(OptimStep, AGradientThatIsNotFiniteIsSkipped)
{
    for (const Case &s : kCases) {
        for (float poison : {INFINITY, NAN}) {
            const shd_spec spec = shd::SmallSpec(s.strategy, s.world);
            shd::Engine poisoned(spec), plain(spec);
            for (uint32_t i = 0; i < 4; i++) {
                if (i == 0 || i == 2) {
                    const auto before = poisoned.Params();
                    std::vector<float> gain = before[2];
                    gain[5] = poison;
                    ASSERT_EQ(0,
                              shd_trainer_write_param(poisoned.trainer(), 2, gain.data(), nullptr));
                    const auto with_poison = poisoned.Params();
                    const Batch batch = Batch::Random(4, 17, 1000 + i);
                    const Result r = Good(poisoned, SHD_WORK_TRAIN_STEP, &batch);
                    EXPECT_EQ(1, r.skipped);
                    EXPECT_FALSE(std::isfinite(r.norm));
                    EXPECT_EQ(i + 1 + i / 2, r.step) << "skipped steps are counted";
                    const auto after = poisoned.Params();
                    for (size_t p = 0; p < after.size(); p++) {
                        EXPECT_EQ(0, std::memcmp(with_poison[p].data(), after[p].data(),
                                                 after[p].size() * sizeof(float)));
                    }
                    ASSERT_EQ(0, shd_trainer_write_param(poisoned.trainer(), 2, before[2].data(),
                                                         nullptr));
                    // The poisoned gradient is gone, too.
                    EXPECT_EQ(SHD_EINVAL, Do(poisoned, SHD_WORK_OPTIM_STEP).rc);
                }
                const Batch batch = Batch::Random(4, 17, i);
                const Result want = Good(plain, SHD_WORK_TRAIN_STEP, &batch);
                const Result got = Good(poisoned, SHD_WORK_TRAIN_STEP, &batch);
                EXPECT_EQ(0, got.skipped);
                EXPECT_EQ(want.loss, got.loss);
                EXPECT_EQ(want.norm, got.norm);
                EXPECT_EQ(want.lr, got.lr);
            }
            EXPECT_TRUE(plain.Params() == poisoned.Params()) << s.strategy << " " << poison;
        }
    }
}

// A rate that throws the weights to infinity does no worse than that: every later step is skipped.
TEST(OptimStep, AfterAnAbsurdRateStepsAreSkipped)
{
    shd::Engine engine(shd::SmallSpec("zero3", 2));
    const Batch batch = Batch::Random(4, 17, 1);
    EXPECT_EQ(0, Good(engine, SHD_WORK_TRAIN_STEP, &batch, {1e38, NAN, 0}).skipped);
    for (int i = 0; i < 2; i++) {
        const Result r = Good(engine, SHD_WORK_TRAIN_STEP, &batch);
        EXPECT_EQ(1, r.skipped);
        EXPECT_FALSE(std::isfinite(r.norm));
    }
}

// ---- data ----

// Samples are a function of the cursor. One rank that accumulates four micro-batches sees those
// that four ranks see at once: the loss of the first step is the same to the bit (the same leaves,
// added in double in leaf order). Afterwards the gradients differ in how four terms were added,
// relative 3 * 2^-24 of their absolute sum; AdamW turns that into at most that part of a step of
// size lr, or, where an element's gradient nearly cancels, into a step of another sign: elements
// that hardly matter for the loss. Ten steps of 0.01 keep losses of 4 within 1e-4.
TEST(Data, TheCursorDoesNotKnowRanks)
{
    shd::DataFile file(3000);
    shd_spec one = shd::SmallSpec("ddp", 1), four = shd::SmallSpec("zero3", 4);
    one.accumulation = 4;
    one.global_batch = four.global_batch;
    shd::Engine a(one, file.Open()), b(four, file.Open());
    for (int i = 0; i < 10; i++) {
        const shd_work wa = a.Step(), wb = b.Step();
        if (i == 0) {
            EXPECT_EQ(wa.loss, wb.loss);
        }
        EXPECT_NEAR(wa.loss, wb.loss, 1e-4);
        EXPECT_EQ(wa.samples, wb.samples);
        EXPECT_EQ(8u * static_cast<uint64_t>(i + 1), wa.samples);
    }
}

// The evaluation windows of a file, as a batch.
Batch Windows(const shd::DataFile &file, uint64_t begin, uint64_t end, uint32_t length,
              uint64_t most)
{
    Batch b = {0, length, {}, {}};
    for (uint64_t at = begin; at + length + 1 <= end && b.sequences < most; at += length) {
        std::vector<unsigned char> bytes(length + 1);
        EXPECT_EQ(static_cast<ssize_t>(bytes.size()),
                  pread(file.fd(), bytes.data(), bytes.size(), static_cast<off_t>(at)));
        b.tokens.insert(b.tokens.end(), bytes.begin(), bytes.end() - 1);
        b.targets.insert(b.targets.end(), bytes.begin() + 1, bytes.end());
        b.sequences++;
    }
    return b;
}

TEST(Eval, IsTheLossOverTheHeldOutWindowsForEveryWorld)
{
    shd::DataFile file(2000);
    // 311 tokens at the end are 18 windows of 17; whole evaluations have 9 leaves of 2.
    for (uint32_t batches : {0u, 1u, 4u, 9u, 100u}) {
        for (const Case &s : {Case{"ddp", 1}, Case{"zero3", 2}, Case{"zero2", 3}, Case{"zero3", 5},
                              Case{"zero3", 8}}) {
            shd_spec spec = shd::SmallSpec(s.strategy, s.world);
            spec.eval_split = 311.0 / 2000;
            spec.eval_batches = batches;
            shd::Engine engine(spec, file.Open());
            const uint64_t windows = batches == 0 ? 18 : std::min<uint64_t>(2 * batches, 18);
            const Batch held_out = Windows(file, 2000 - 311, 2000, 17, windows);
            EXPECT_EQ(windows, held_out.sequences);
            for (int again = 0; again < 2; again++) {
                const Result want = Good(engine, SHD_WORK_FORWARD, &held_out);
                const Result got = Good(engine, SHD_WORK_EVAL);
                EXPECT_EQ(want.loss, got.loss) << batches << " on " << s.world;
                EXPECT_EQ(want.valid, got.valid);
                EXPECT_EQ(got.loss, Good(engine, SHD_WORK_EVAL).loss) << "twice the same";
                if (again == 0) {
                    engine.Step();
                }
            }
        }
    }
}

TEST(Eval, OddWindowsFillTheLastMicroBatchInPart)
{
    shd::DataFile train(500), held_out(7 * 17 + 1 + 5);
    for (uint32_t world : {1u, 2u, 3u}) {
        shd_spec spec = shd::SmallSpec("zero3", world);
        spec.eval_batches = 0;
        shd::Engine engine(spec, train.Open(), held_out.Open());
        const Batch all = Windows(held_out, 0, 7 * 17 + 6, 17, 100);
        EXPECT_EQ(7u, all.sequences);
        const Result got = Good(engine, SHD_WORK_EVAL);
        EXPECT_EQ(7u * 17, got.valid);
        EXPECT_EQ(Good(engine, SHD_WORK_FORWARD, &all).loss, got.loss);
    }
}

} // namespace

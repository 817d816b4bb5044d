// bf16 and fp16: what is held in which precision, fp32 masters, and dynamic loss scaling.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/train/drive.h"

namespace
{

using shd::Batch;
using shd::Do;
using shd::Good;
using shd::Result;

TEST(Precision, ModelStatesAreTheTableOfThePapers)
{
    for (const char *strategy : {"ddp", "zero1", "zero2", "zero3"}) {
        for (shd_dtype dtype : {SHD_F32, SHD_BF16, SHD_F16}) {
            for (shd_dtype reduce : {SHD_F32, SHD_BF16, SHD_F16}) {
                shd_spec spec = shd::SmallSpec(strategy, 4);
                spec.dtype = dtype;
                spec.reduce_dtype = reduce;
                for (double momentum : {-1.0, 0.9, 0.0}) { // below 0: AdamW
                    uint64_t states = 8;
                    if (momentum >= 0) {
                        spec.optim = {SHD_OPTIM_SGD, 0, 0, 0, momentum, 0};
                        states = momentum > 0 ? 4 : 0;
                    }
                    shd_plan plan;
                    ASSERT_EQ(0, shd_plan_make(&spec, 1, &plan, nullptr));
                    const uint64_t psi = plan.parameters + plan.padding;
                    const uint64_t master = dtype == SHD_F32 ? 0 : 4;
                    EXPECT_EQ(shd_dtype_size(dtype) * psi / spec.strategy.p,
                              plan.steady[SHD_TAG_PARAMS]);
                    EXPECT_EQ(shd_dtype_size(reduce) * psi / spec.strategy.g,
                              plan.steady[SHD_TAG_GRADS]);
                    EXPECT_EQ((states + master) * psi / spec.strategy.o,
                              plan.steady[SHD_TAG_OPTIMIZER]);
                    // What is exact in two bytes travels in two bytes.
                    const uint64_t wire = reduce == SHD_F32 ? shd_dtype_size(dtype) : 2;
                    EXPECT_EQ(wire * psi * 3 / 4, plan.comm_step[SHD_COMM_REDUCE_SCATTER].bytes);
                }
            }
        }
    }
}

// An update too small for the compute dtype is not lost: it moves the master.
TEST(Precision, ARelativeUpdateOfOneTenThousandthMovesTheMaster)
{
    for (shd_dtype dtype : {SHD_BF16, SHD_F16}) {
        for (const char *strategy : {"ddp", "zero2", "zero3"}) {
            shd_spec spec = shd::SmallSpec(strategy, 2);
            spec.dtype = dtype;
            if (dtype == SHD_F16) {
                spec.scaler = {1, 1024.0, 0, 0, 0, 0};
            }
            // Lion moves every element by the rate, whatever the gradient's size.
            spec.optim = {SHD_OPTIM_LION, 0.9, 0.99, 0, 0, 0};
            spec.schedule = {SHD_SCHEDULE_CONSTANT, 1e-4, 0, 0, 0, 0};
            spec.weight_decay = 0;
            shd::Engine engine(spec);
            const uint32_t gain = 2; // ln_f.weight: ones
            const std::vector<float> before = engine.Params()[gain];
            ASSERT_EQ(1.0f, before[0]);
            for (int step = 1; step <= 3; step++) {
                const Batch batch = Batch::Random(4, 17, 1);
                Good(engine, SHD_WORK_TRAIN_STEP, &batch);
                const std::vector<float> after = engine.Params()[gain];
                for (float x : after) {
                    const double moved = std::fabs(static_cast<double>(x) - 1.0) / 1e-4;
                    if (step == 1) {
                        EXPECT_GT(moved, 0.99) << "a master in two bytes would have stayed at 1";
                    }
                    EXPECT_NEAR(std::round(moved), moved, 5e-3);
                    EXPECT_LE(moved, step + 5e-3);
                }
            }
        }
    }
}

TEST(Precision, TrainsInEveryPrecisionNearFp32)
{
    shd::DataFile file(4000);
    std::vector<double> fp32;
    for (shd_dtype dtype : {SHD_F32, SHD_BF16, SHD_F16}) {
        for (shd_dtype reduce : {SHD_F32, dtype}) {
            shd_spec spec = shd::SmallSpec("zero3", 2);
            spec.dtype = dtype;
            spec.reduce_dtype = reduce;
            if (dtype == SHD_F16) {
                spec.scaler = {1, 0, 16, 1000, 2, 1};
            }
            shd::Engine engine(spec, file.Open());
            const std::vector<double> losses = engine.Train(50).losses;
            if (fp32.empty()) {
                fp32 = losses;
                EXPECT_LT(losses.back(), losses.front() - 0.5) << "it must learn";
            }
            for (size_t i = 0; i < losses.size(); i++) {
                EXPECT_NEAR(fp32[i], losses[i], 0.02 * fp32[i])
                    << shd_dtype_name(dtype) << " step " << i;
            }
            EXPECT_EQ(dtype == SHD_F32, losses == fp32);
        }
    }
}

/* ---- fp16 ---- */

shd_spec Fp16(const shd_scaler_config &scaler, const char *strategy = "zero2", uint32_t world = 2)
{
    shd_spec spec = shd::SmallSpec(strategy, world);
    spec.dtype = SHD_F16;
    spec.scaler = scaler;
    return spec;
}

// A parameter that fp16 cannot hold makes one step's gradient infinite; afterwards it is put back.
class Overflow
{
  public:
    explicit Overflow(shd::Engine *engine) : engine_(engine), saved_(engine->Params()[0])
    {
        std::vector<float> huge(saved_.size(), 1e30f);
        EXPECT_EQ(0, shd_trainer_write_param(engine->trainer(), 0, huge.data(), nullptr));
    }
    ~Overflow()
    {
        EXPECT_EQ(0, shd_trainer_write_param(engine_->trainer(), 0, saved_.data(), nullptr));
    }
    Overflow(const Overflow &) = delete;
    Overflow &operator=(const Overflow &) = delete;

  private:
    shd::Engine *engine_;
    std::vector<float> saved_;
};

shd_work TrainStep(shd::Engine *engine, uint32_t seed, int want_rc = 0)
{
    shd_work work;
    shd_work_init(&work, SHD_WORK_TRAIN_STEP);
    const Batch batch = Batch::Random(4, 17, seed);
    shd::Set(&work, batch);
    EXPECT_EQ(want_rc, engine->Run(&work)) << work.err.message;
    shd_work_fini(&work);
    return work;
}

TEST(Fp16, AnOverflowSkipsExactlyThatStepAndAdamsCountStands)
{
    for (const char *strategy : {"ddp", "zero2", "zero3"}) {
        // A static scale, so that both runs have the same bits but for what is under test.
        shd::Engine plain(Fp16({1, 512.0, 0, 0, 0, 0}, strategy));
        shd::Engine hit(Fp16({1, 512.0, 0, 0, 0, 0}, strategy));
        for (uint32_t step = 1; step <= 8; step++) {
            const shd_work want = TrainStep(&plain, step);
            if (step == 3 || step == 6) {
                const std::vector<std::vector<float>> before = hit.Params();
                {
                    Overflow overflow(&hit);
                    const shd_work skipped = TrainStep(&hit, 99);
                    EXPECT_TRUE(skipped.skipped);
                    EXPECT_FALSE(skipped.overflow) << "a static scale is told nothing";
                    EXPECT_EQ(512.0, skipped.loss_scale);
                    EXPECT_EQ(512.0, skipped.next_loss_scale);
                }
                EXPECT_TRUE(before == hit.Params());
            }
            const shd_work got = TrainStep(&hit, step);
            EXPECT_FALSE(got.skipped);
            EXPECT_EQ(want.loss, got.loss);
            EXPECT_EQ(want.grad_norm, got.grad_norm);
            EXPECT_EQ(want.lr_used, got.lr_used) << "the schedule goes by applied steps";
            EXPECT_EQ(step + (step >= 3) + (step >= 6), got.step) << "the skipped ones are counted";
            EXPECT_TRUE(plain.Params() == hit.Params()) << "and so does Adam's t";
        }
    }
}

TEST(Fp16, TheScaleFollowsTheRules)
{
    const shd_scaler_config config = {1, 0, 8, 4, 2, 1};
    shd::Engine engine(Fp16(config));
    shd_scaler rules;
    shd_scaler_init(&rules, &config);
    EXPECT_EQ(256.0, shd_trainer_loss_scale(engine.trainer()));
    const int overflows[] = {0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0};
    uint32_t seed = 0;
    for (int overflow : overflows) {
        shd_work work;
        if (overflow) {
            Overflow injected(&engine);
            work = TrainStep(&engine, ++seed);
        } else {
            work = TrainStep(&engine, ++seed);
        }
        EXPECT_EQ(overflow, work.skipped) << seed;
        EXPECT_EQ(overflow, work.overflow);
        EXPECT_EQ(rules.scale, work.loss_scale) << seed;
        EXPECT_EQ(0, shd_scaler_update(&rules, overflow, nullptr));
        EXPECT_EQ(rules.scale, work.next_loss_scale) << seed;
        EXPECT_EQ(rules.scale, shd_trainer_loss_scale(engine.trainer()));
    }
    EXPECT_NE(256.0, rules.scale);
}

TEST(Fp16, ATooLargeFirstScaleComesDownByItself)
{
    shd::Engine engine(Fp16({1, 0, 32, 1000, 1, 1}));
    int skipped = 0, applied = 0;
    for (uint32_t step = 1; step <= 40; step++) {
        const shd_work work = TrainStep(&engine, step);
        skipped += work.skipped;
        applied += !work.skipped;
        EXPECT_EQ(std::ldexp(1.0, 32 - skipped), work.next_loss_scale);
    }
    EXPECT_GT(skipped, 3);
    EXPECT_GT(applied, 3);
}

TEST(Fp16, AnOverflowAtTheSmallestScaleFailsTheJobWithTheReason)
{
    shd::Engine engine(Fp16({1, 0, 3, 1000, 1, 4}));
    Overflow overflow(&engine);
    EXPECT_EQ(4.0, TrainStep(&engine, 1).next_loss_scale);
    const Batch batch = Batch::Random(4, 17, 2);
    const Result r = Do(engine, SHD_WORK_TRAIN_STEP, &batch);
    EXPECT_EQ(SHD_ENONFINITE, r.rc);
    EXPECT_NE(std::string::npos, r.error.find("--min-loss-scale 4")) << r.error;
}

TEST(Fp16, GradientsComeOutWithoutTheScale)
{
    shd::Engine small(Fp16({1, 256.0, 0, 0, 0, 0})), large(Fp16({1, 4096.0, 0, 0, 0, 0}));
    shd::Engine fp32(shd::SmallSpec("zero2", 2));
    const Batch batch = Batch::Random(4, 17, 3);
    for (shd::Engine *engine : {&small, &large, &fp32}) {
        Good(*engine, SHD_WORK_FORWARD_BACKWARD, &batch);
    }
    std::vector<float> a(97 * 24), b(97 * 24), c(97 * 24);
    ASSERT_EQ(0, shd_trainer_read_grad(small.trainer(), 0, a.data(), nullptr));
    ASSERT_EQ(0, shd_trainer_read_grad(large.trainer(), 0, b.data(), nullptr));
    ASSERT_EQ(0, shd_trainer_read_grad(fp32.trainer(), 0, c.data(), nullptr));
    double most = 0;
    for (float x : c) {
        most = std::max(most, std::fabs(static_cast<double>(x)));
    }
    // fp16 has 11 bits; a gradient here is a sum of about a hundred rounded products.
    for (size_t i = 0; i < c.size(); i++) {
        ASSERT_NEAR(c[i], a[i], 0.01 * most);
        ASSERT_NEAR(c[i], b[i], 0.01 * most);
    }
}

// fp32 and bf16 keep the old rule: skipped, counted, nothing scaled.
TEST(OtherPrecisions, SkipWithoutAScale)
{
    for (shd_dtype dtype : {SHD_F32, SHD_BF16}) {
        shd_spec spec = shd::SmallSpec("zero2", 2);
        spec.dtype = dtype;
        shd::Engine engine(spec);
        std::vector<float> bad(97 * 24, INFINITY);
        const std::vector<float> saved = engine.Params()[0];
        ASSERT_EQ(0, shd_trainer_write_param(engine.trainer(), 0, bad.data(), nullptr));
        const shd_work work = TrainStep(&engine, 1);
        EXPECT_TRUE(work.skipped);
        EXPECT_FALSE(work.overflow);
        EXPECT_EQ(0.0, work.loss_scale);
        ASSERT_EQ(0, shd_trainer_write_param(engine.trainer(), 0, saved.data(), nullptr));
        EXPECT_FALSE(TrainStep(&engine, 2).skipped);
    }
}

} // namespace

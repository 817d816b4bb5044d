// Work that fails or is refused, and jobs that share ranks: each ends for itself, with a reason, on
// all its ranks, and no other job notices.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "daemon/train/trainer.h"
#include "tests/train/drive.h"

namespace
{

using shd::Batch;
using shd::Case;
using shd::Do;
using shd::Good;
using shd::kCases;
using shd::Result;
using shd::Set;

// Like shd::Engine, on ranks and with a plan that the test gives; work may be left in flight.
class Job
{
  public:
    Job(const shd_spec &spec, const shd_plan &plan, std::vector<shd_rank *> ranks,
        shd_source *data = nullptr, shd_source *eval = nullptr)
        : spec_(spec)
    {
        shd_error err = {};
        EXPECT_EQ(
            0, shd_trainer_create(&spec, &plan, ranks.data(), data, eval, nullptr, &trainer_, &err))
            << err.message;
    }
    ~Job()
    {
        shd_trainer_free(trainer_);
    }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;

    void Start(shd_work *work)
    {
        finished_ = false;
        work->done = [](shd_work *, void *arg) {
            Job *self = static_cast<Job *>(arg);
            std::lock_guard<std::mutex> guard(self->mutex_);
            self->finished_ = true;
            self->cond_.notify_one();
        };
        work->done_arg = this;
        shd_trainer_submit(trainer_, work);
    }
    int Wait(shd_work *work)
    {
        for (;;) {
            std::unique_lock<std::mutex> lock(mutex_);
            cond_.wait(lock, [this] { return finished_; });
            if (!work->more) {
                return work->rc;
            }
            lock.unlock();
            Start(work);
        }
    }
    int Run(shd_work *work)
    {
        Start(work);
        return Wait(work);
    }
    shd_trainer *trainer()
    {
        return trainer_;
    }
    const shd_spec &spec() const
    {
        return spec_;
    }

  private:
    shd_spec spec_;
    shd_trainer *trainer_ = nullptr;
    std::mutex mutex_;
    std::condition_variable cond_;
    bool finished_ = false;
};

class Ranks
{
  public:
    explicit Ranks(uint32_t n, bool stream_threads = false)
    {
        for (uint32_t r = 0; r < n; r++) {
            shd_device *dev = shd_device_create_cpu(1, 0);
            shd_device_set_streams(dev, stream_threads);
            all.push_back(shd_rank_create(r, dev));
        }
    }
    ~Ranks()
    {
        for (shd_rank *rank : all) {
            shd_rank_free(rank);
        }
    }
    Ranks(const Ranks &) = delete;
    Ranks &operator=(const Ranks &) = delete;
    std::vector<shd_rank *> all;
};

shd_plan Plan(const shd_spec &spec)
{
    shd_plan plan = {};
    shd_error err = {};
    EXPECT_EQ(0, shd_plan_make(&spec, 1, &plan, &err)) << err.message;
    return plan;
}

// Large enough that arenas, which come in steps of 2 MiB, can be made too small.
shd_spec LargerSpec(const char *strategy, uint32_t world)
{
    shd_spec spec = shd::SmallSpec(strategy, world);
    spec.model = shd_model_config_gpt2(3, 4, 128, 64, 2000);
    spec.seq_len = 64;
    return spec;
}

TEST(Failure, WorkBeforeInit)
{
    const shd_spec spec = shd::SmallSpec("zero3", 2);
    Ranks ranks(2);
    Job job(spec, Plan(spec), ranks.all);
    shd_usage usage[SHD_TAG_COUNT];
    uint64_t peak = 1, reserved = 1;
    shd_trainer_usage(job.trainer(), 1, usage, &peak, &reserved);
    EXPECT_EQ(0u, peak);
    EXPECT_EQ(0u, reserved);
    const Result r = Do(job, SHD_WORK_OPTIM_STEP);
    EXPECT_EQ(SHD_EINTERNAL, r.rc);
    EXPECT_NE(std::string::npos, r.error.find("not initialised")) << r.error;
}

class Overlap : public testing::TestWithParam<bool>
{
  protected:
    // Everything in flight that can be, or one thing after another.
    shd_spec Spec(const char *strategy, uint32_t world)
    {
        shd_spec spec = LargerSpec(strategy, world);
        if (GetParam()) {
            spec.pipeline.prefetch = 2;
            spec.pipeline.overlap = 1;
        }
        return spec;
    }
};

INSTANTIATE_TEST_SUITE_P(OffAndOn, Overlap, testing::Bool());

TEST_P(Overlap, AnArenaThatIsTooSmallFailsTheJobWithNumbersAndNoHang)
{
    for (const Case &s : kCases) {
        const shd_spec spec = Spec(s.strategy, s.world);
        const shd_plan plan = Plan(spec);
        ASSERT_GT(plan.extent, 6u << 20);
        int at_init = 0, at_work = 0;
        for (uint64_t extent = 0; extent + (2 << 20) < plan.extent; extent += 2 << 20) {
            Ranks ranks(s.world, GetParam());
            shd_plan small = plan;
            small.extent = extent;
            Job job(spec, small, ranks.all);
            Result r = Do(job, SHD_WORK_INIT);
            const bool init_failed = r.rc != 0;
            if (!init_failed) {
                const Batch batch = Batch::Random(2 * s.world, 64, 1);
                r = Do(job, SHD_WORK_TRAIN_STEP, &batch);
            }
            EXPECT_EQ(SHD_ENOMEM, r.rc) << extent;
            at_init += init_failed;
            at_work += !init_failed;
            EXPECT_NE(std::string::npos, r.error.find("bytes")) << r.error;
            EXPECT_NE(std::string::npos, r.error.find_first_of("0123456789")) << r.error;
            // The job is lost for good and says why.
            const Batch batch = Batch::Random(2, 8, 1);
            const Result again = Do(job, SHD_WORK_FORWARD, &batch);
            EXPECT_NE(0, again.rc);
        }
        EXPECT_GT(at_init, 0) << s.strategy;
        EXPECT_GT(at_work, 0) << s.strategy;
    }
}

// On one rank the first gradient of a step is made in place and the second beside it.
TEST(Plan, HoldsForClientsThatAccumulate)
{
    for (const Case &s : kCases) {
        shd::Engine engine(LargerSpec(s.strategy, s.world));
        const Batch batch = Batch::Random(2 * s.world, 64, 1);
        for (int step = 0; step < 2; step++) {
            for (int i = 0; i < 3; i++) {
                Good(engine, SHD_WORK_FORWARD_BACKWARD, &batch);
            }
            Good(engine, SHD_WORK_OPTIM_STEP);
        }
        for (uint32_t r = 0; r < s.world; r++) {
            shd_usage usage[SHD_TAG_COUNT];
            uint64_t peak = 0, reserved = 0;
            shd_trainer_usage(engine.trainer(), r, usage, &peak, &reserved);
            EXPECT_EQ(engine.plan().total_peak, peak) << s.strategy;
            for (int t = 0; t < SHD_TAG_COUNT; t++) {
                EXPECT_EQ(engine.plan().peak[t], usage[t].peak)
                    << s.strategy << " " << shd_tag_name(static_cast<shd_tag>(t));
                EXPECT_EQ(engine.plan().steady[t], usage[t].now);
            }
        }
    }
}

// Batches of other shapes than the planned one take what was planned, not more.
TEST(Plan, HoldsForBatchesOfEveryShape)
{
    for (const Case &s : {Case{"ddp", 1}, Case{"zero3", 2}}) {
        shd_spec spec = LargerSpec(s.strategy, s.world);
        spec.micro_batch = 3;
        spec.global_batch = 3 * s.world;
        for (uint32_t length : {1u, 20u, 40u, 63u}) {
            for (uint32_t sequences : {1u, 3u * s.world - 1, 3u * s.world}) {
                shd::Engine engine(spec);
                const Batch batch = Batch::Random(sequences, length, 1);
                for (shd_work_kind kind :
                     {SHD_WORK_FORWARD_BACKWARD, SHD_WORK_TRAIN_STEP, SHD_WORK_FORWARD}) {
                    Good(engine, kind, &batch);
                }
                for (uint32_t r = 0; r < s.world; r++) {
                    shd_usage usage[SHD_TAG_COUNT];
                    uint64_t peak = 0, reserved = 0;
                    shd_trainer_usage(engine.trainer(), r, usage, &peak, &reserved);
                    EXPECT_EQ(engine.plan().total_peak, peak) << length << " x " << sequences;
                }
            }
        }
    }
}

TEST_P(Overlap, AbortEndsWorkInFlight)
{
    for (uint32_t world : {1u, 2u, 3u}) {
        const shd_spec spec = Spec("zero3", world);
        Ranks ranks(world, GetParam());
        Job job(spec, Plan(spec), ranks.all);
        ASSERT_EQ(0, Do(job, SHD_WORK_INIT).rc);
        const Batch batch = Batch::Random(3000, 64, 1); // would take minutes
        shd_work work;
        shd_work_init(&work, SHD_WORK_TRAIN_STEP);
        Set(&work, batch);
        job.Start(&work);
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        const auto before = std::chrono::steady_clock::now();
        shd_trainer_abort(job.trainer());
        EXPECT_EQ(SHD_ECANCELLED, job.Wait(&work));
        EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(20));
        EXPECT_STREQ("cancelled", work.err.message);
        shd_work_fini(&work);
        EXPECT_EQ(SHD_ECANCELLED, Do(job, SHD_WORK_TRAIN_STEP, &batch).rc) << "and stays so";
        // ~Job frees it.
    }
}

TEST(Failure, ADataFileThatChangesFailsTheJobOnAllRanks)
{
    for (const Case &s : kCases) {
        shd::DataFile file(3000);
        shd::Engine engine(shd::SmallSpec(s.strategy, s.world), file.Open());
        engine.Step();
        ASSERT_EQ(1, pwrite(file.fd(), "x", 1, 5));
        const struct timespec times[2] = {{0, UTIME_OMIT}, {12345, 678}};
        ASSERT_EQ(0, futimens(file.fd(), times));
        const Result r = Do(engine, SHD_WORK_DATA_STEP);
        EXPECT_EQ(SHD_EDATA, r.rc);
        EXPECT_NE(std::string::npos, r.error.find(file.path())) << r.error;
        EXPECT_NE(std::string::npos, r.error.find("changed")) << r.error;
        EXPECT_EQ(SHD_EDATA, Do(engine, SHD_WORK_DATA_STEP).rc) << "the job is lost";
    }
}

TEST(Failure, ATokenOutsideTheVocabularyIsFoundBeforeTraining)
{
    for (uint32_t world : {1u, 3u}) {
        for (bool in_eval : {false, true}) {
            shd::DataFile good(3000, 60), bad(70001, 60);
            ASSERT_EQ(1, pwrite(bad.fd(), "\x61", 1, 70000)); // 97
            const shd_spec spec = shd::SmallSpec("zero3", world);
            Ranks ranks(world);
            Job job(spec, Plan(spec), ranks.all, in_eval ? good.Open() : bad.Open(),
                    in_eval ? bad.Open() : nullptr);
            const Result r = Do(job, SHD_WORK_INIT);
            EXPECT_EQ(SHD_EDATA, r.rc);
            for (const std::string &part :
                 {std::string("token 97"), std::string("position 70000"), bad.path()}) {
                EXPECT_NE(std::string::npos, r.error.find(part)) << r.error;
            }
            EXPECT_NE(0, Do(job, SHD_WORK_DATA_STEP).rc);
        }
    }
}

TEST(Failure, DataTooShortIsRefusedAtOnce)
{
    Ranks ranks(2);
    shd_spec spec = shd::SmallSpec("zero3", 2);
    const shd_plan plan = Plan(spec);
    const auto create = [&](size_t train, size_t eval, double split) {
        shd::DataFile data(train), held_out(eval > 0 ? eval : 1);
        spec.eval_split = split;
        shd_trainer *trainer = nullptr;
        shd_error err = {};
        const int rc =
            shd_trainer_create(&spec, &plan, ranks.all.data(), data.Open(),
                               eval > 0 ? held_out.Open() : nullptr, nullptr, &trainer, &err);
        if (rc < 0) {
            EXPECT_NE(std::string::npos, std::string(err.message).find("18")) << err.message;
        }
        shd_trainer_free(trainer);
        return rc;
    };
    EXPECT_EQ(0, create(18, 0, 0));
    EXPECT_EQ(SHD_EDATA, create(17, 0, 0));
    EXPECT_EQ(0, create(36, 0, 0.5));
    EXPECT_EQ(SHD_EDATA, create(36, 0, 0.25)) << "nothing to evaluate on";
    EXPECT_EQ(SHD_EDATA, create(36, 0, 0.75)) << "nothing to train on";
    EXPECT_EQ(SHD_EDATA, create(36, 17, 0));
    EXPECT_EQ(0, create(36, 18, 0));
}

TEST(CheckBatch, NamesSequencePositionAndValue)
{
    shd::Engine engine(shd::SmallSpec("zero3", 2));
    const auto check = [&](const Batch &batch, const std::vector<std::string> &says) {
        shd_work work;
        shd_work_init(&work, SHD_WORK_FORWARD);
        Set(&work, batch);
        shd_error err = {};
        EXPECT_EQ(SHD_EINVAL, shd_trainer_check_batch(engine.trainer(), &work, &err));
        for (const std::string &part : says) {
            EXPECT_NE(std::string::npos, std::string(err.message).find(part)) << err.message;
        }
        shd_work_fini(&work);
    };
    check({0, 5, {}, {}}, {"empty"});
    check({5, 0, {}, {}}, {"empty"});
    check(Batch::Random(1, 18, 1), {"18", "17", "--seq-len"});
    for (int32_t token : {97, -1, INT32_MAX, INT32_MIN, -100}) {
        Batch batch = Batch::Random(3, 6, 1);
        batch.tokens[2 * 6 + 4] = token;
        check(batch, {"sequence 2", "position 4", "token id " + std::to_string(token), "97"});
    }
    for (int32_t target : {97, -1, INT32_MAX, INT32_MIN, -101}) {
        Batch batch = Batch::Random(3, 6, 1);
        batch.targets[1 * 6 + 5] = target;
        check(batch, {"sequence 1", "position 5", "target " + std::to_string(target), "-100"});
    }
}

TEST(Params, OutOfRangeIsRefused)
{
    shd::Engine engine(shd::SmallSpec("zero3", 2));
    float x = 0;
    shd_error err = {};
    EXPECT_EQ(SHD_EINVAL, shd_trainer_read_param(engine.trainer(), 28, &x, &err));
    EXPECT_NE(std::string::npos, std::string(err.message).find("28")) << err.message;
    EXPECT_EQ(SHD_EINVAL, shd_trainer_write_param(engine.trainer(), UINT32_MAX, &x, nullptr));
    EXPECT_EQ(SHD_EINVAL, shd_trainer_read_grad(engine.trainer(), 28, &x, nullptr));
}

TEST(Params, WhatIsWrittenIsReadAndUsed)
{
    for (const Case &s : kCases) {
        shd_spec spec = shd::SmallSpec(s.strategy, s.world);
        shd::Engine from(spec);
        spec.seed++;
        shd::Engine to(spec);
        const Batch batch = Batch::Random(5, 17, 1);
        EXPECT_NE(Good(from, SHD_WORK_FORWARD, &batch).loss,
                  Good(to, SHD_WORK_FORWARD, &batch).loss);
        const auto params = from.Params();
        for (uint32_t i = 0; i < params.size(); i++) {
            ASSERT_EQ(0, shd_trainer_write_param(to.trainer(), i, params[i].data(), nullptr));
        }
        EXPECT_TRUE(params == to.Params());
        EXPECT_EQ(Good(from, SHD_WORK_TRAIN_STEP, &batch).norm,
                  Good(to, SHD_WORK_TRAIN_STEP, &batch).norm);
        EXPECT_TRUE(from.Params() == to.Params());
    }
}

// ---- several jobs on the same ranks ----

shd::Trace Alone(const shd_spec &spec, const std::vector<Batch> &batches)
{
    shd::Engine engine(spec);
    shd::Trace trace;
    for (const Batch &batch : batches) {
        const Result r = Good(engine, SHD_WORK_TRAIN_STEP, &batch);
        trace.losses.push_back(r.loss);
        trace.norms.push_back(r.norm);
    }
    trace.params = engine.Params();
    return trace;
}

TEST(SharedRanks, JobsHaveNoInfluenceOnEachOthersBits)
{
    const shd_spec spec_a = shd::SmallSpec("zero3", 3);
    shd_spec spec_b = shd::SmallSpec("zero1", 2);
    spec_b.seed = 99;
    spec_b.model = shd_model_config_gpt2(1, 3, 36, 17, 61);
    std::vector<Batch> batches_a, batches_b;
    for (uint32_t i = 0; i < 8; i++) {
        batches_a.push_back(Batch::Random(6 + i % 2, 17, i));
        batches_b.push_back(Batch::Random(4 - i % 3, 13, 50 + i, 61));
    }
    const shd::Trace want_a = Alone(spec_a, batches_a), want_b = Alone(spec_b, batches_b);
    Ranks ranks(3);
    Job a(spec_a, Plan(spec_a), ranks.all), b(spec_b, Plan(spec_b), ranks.all);
    ASSERT_EQ(0, Do(a, SHD_WORK_INIT).rc);
    ASSERT_EQ(0, Do(b, SHD_WORK_INIT).rc);
    shd::Trace got_a, got_b;
    for (uint32_t i = 0; i < 8; i++) {
        shd_work wa, wb;
        shd_work_init(&wa, SHD_WORK_TRAIN_STEP);
        shd_work_init(&wb, SHD_WORK_TRAIN_STEP);
        Set(&wa, batches_a[i]);
        Set(&wb, batches_b[i]);
        if (i % 3 == 0) { // one after the other, or both in flight, either first
            EXPECT_EQ(0, a.Run(&wa));
            EXPECT_EQ(0, b.Run(&wb));
        } else {
            Job &first = i % 3 == 1 ? a : b, &second = i % 3 == 1 ? b : a;
            first.Start(i % 3 == 1 ? &wa : &wb);
            second.Start(i % 3 == 1 ? &wb : &wa);
            EXPECT_EQ(0, a.Wait(&wa));
            EXPECT_EQ(0, b.Wait(&wb));
        }
        got_a.losses.push_back(wa.loss);
        got_a.norms.push_back(wa.grad_norm);
        got_b.losses.push_back(wb.loss);
        got_b.norms.push_back(wb.grad_norm);
        shd_work_fini(&wa);
        shd_work_fini(&wb);
    }
    for (size_t i = 0; i < want_a.params.size(); i++) {
        got_a.params.emplace_back(want_a.params[i].size());
        ASSERT_EQ(0, shd_trainer_read_param(a.trainer(), static_cast<uint32_t>(i),
                                            got_a.params.back().data(), nullptr));
    }
    for (size_t i = 0; i < want_b.params.size(); i++) {
        got_b.params.emplace_back(want_b.params[i].size());
        ASSERT_EQ(0, shd_trainer_read_param(b.trainer(), static_cast<uint32_t>(i),
                                            got_b.params.back().data(), nullptr));
    }
    EXPECT_TRUE(want_a == got_a);
    EXPECT_TRUE(want_b == got_b);
}

TEST(SharedRanks, AJobThatFailsLeavesTheOtherAlone)
{
    const shd_spec spec = shd::SmallSpec("zero3", 2);
    std::vector<Batch> batches;
    for (uint32_t i = 0; i < 4; i++) {
        batches.push_back(Batch::Random(4, 17, i));
    }
    const shd::Trace want = Alone(spec, batches);
    Ranks ranks(2);
    Job good(spec, Plan(spec), ranks.all);
    auto bad = std::make_unique<Job>(spec, Plan(spec), ranks.all);
    ASSERT_EQ(0, Do(good, SHD_WORK_INIT).rc);
    ASSERT_EQ(0, Do(*bad, SHD_WORK_INIT).rc);
    for (uint32_t i = 0; i < 4; i++) {
        const Result r = Good(good, SHD_WORK_TRAIN_STEP, &batches[i]);
        EXPECT_EQ(want.losses[i], r.loss);
        EXPECT_EQ(want.norms[i], r.norm);
        if (i == 1) {
            shd_trainer_abort(bad->trainer());
            EXPECT_EQ(SHD_ECANCELLED, Do(*bad, SHD_WORK_TRAIN_STEP, &batches[i]).rc);
        }
        if (i == 2) {
            bad.reset();
        }
    }
}

} // namespace

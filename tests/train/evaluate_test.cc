// Evaluation of a file: to the bit what Forward gives on the same windows, however it is cut, and
// nothing of the job changes.
#include <gtest/gtest.h>

#include "tests/train/drive.h"

namespace
{

struct Found {
    double loss = 0;
    uint64_t valid = 0, bytes = 0, step = 0;
    bool operator==(const Found &o) const
    {
        return loss == o.loss && valid == o.valid && bytes == o.bytes && step == o.step;
    }
};

class Evaluate : public ::testing::Test
{
  protected:
    Evaluate() : file_(811), source_(file_.Open()) {}
    ~Evaluate() override
    {
        shd_windows_free(windows_);
        shd_source_free(source_);
    }
    void Cut(uint32_t stride, uint64_t limit = 0)
    {
        shd_windows_free(windows_);
        shd_windows_options options = {};
        options.seq_len = 17;
        options.packing = options.whole = 1;
        options.stride = stride;
        options.limit = limit;
        shd_error err = {};
        ASSERT_EQ(0, shd_windows_create(source_, &options, &windows_, &err)) << err.message;
    }
    // In items of at most `part` windows.
    int Run(shd::Engine *engine, uint64_t part, Found *out, shd_error *err = nullptr)
    {
        const uint64_t all = shd_windows_count(windows_);
        double sum = 0;
        *out = {};
        for (uint64_t at = 0; at < all; at += part) {
            const shd_eval_part range = {windows_, at, std::min(part, all - at), bytes_.data()};
            shd_work work;
            shd_work_init(&work, SHD_WORK_EVAL);
            work.part = &range;
            work.loss_sum = sum;
            work.valid_tokens = out->valid;
            work.text_bytes = out->bytes;
            const int rc = engine->Run(&work);
            if (rc < 0) {
                if (err != nullptr) {
                    *err = work.err;
                }
                return rc;
            }
            sum = work.loss_sum;
            *out = {work.loss, work.valid_tokens, work.text_bytes, work.step};
            shd_work_fini(&work);
        }
        return 0;
    }
    // All windows as a client's batch.
    Found Forward(shd::Engine *engine)
    {
        const uint64_t all = shd_windows_count(windows_);
        shd_work work;
        shd_work_init(&work, SHD_WORK_FORWARD);
        shd::MakeBatch(&work, static_cast<uint32_t>(all), 17);
        shd_error err = {};
        for (uint64_t i = 0; i < all; i++) {
            EXPECT_EQ(0, shd_windows_read(windows_, i, 97, work.batch.tokens + i * 17,
                                          work.batch.targets + i * 17, &err))
                << err.message;
        }
        EXPECT_EQ(0, engine->Run(&work)) << work.err.message;
        Found found = {work.loss, work.valid_tokens, 0, work.step};
        for (uint64_t i = 0; i < all * 17; i++) {
            found.bytes +=
                work.batch.targets[i] >= 0 ? bytes_[static_cast<size_t>(work.batch.targets[i])] : 0;
        }
        shd_work_fini(&work);
        return found;
    }

    shd::DataFile file_;
    shd_source *source_;
    shd_windows *windows_ = nullptr;
    std::vector<uint32_t> bytes_ = [] {
        std::vector<uint32_t> bytes;
        for (uint32_t id = 0; id < 97; id++) {
            bytes.push_back(id % 5);
        }
        return bytes;
    }();
};

TEST_F(Evaluate, IsForwardToTheBit)
{
    for (const auto &[strategy, world] :
         std::vector<std::pair<std::string, uint32_t>>{{"ddp", 1}, {"zero3", 2}, {"zero2", 3}}) {
        shd::Engine engine(shd::SmallSpec(strategy, world));
        for (uint32_t stride : {17u, 5u}) {
            Cut(stride);
            const Found forward = Forward(&engine);
            EXPECT_EQ(810u, forward.valid);
            for (uint64_t part : {2u, 4u, 10u, 1000u}) {
                Found found;
                ASSERT_EQ(0, Run(&engine, part, &found));
                EXPECT_TRUE(found == forward) << strategy << ", stride " << stride << ", parts of "
                                              << part << ": " << found.loss;
            }
        }
    }
}

TEST_F(Evaluate, EveryStrategyGivesTheSameBits)
{
    Cut(8);
    std::vector<Found> found;
    for (const char *strategy : {"ddp", "zero1", "zero3"}) {
        shd::Engine engine(shd::SmallSpec(strategy, 2));
        Found one;
        ASSERT_EQ(0, Run(&engine, 8, &one));
        EXPECT_TRUE(found.empty() || one == found.front());
        found.push_back(one);
    }
}

// Between steps, beside generations that keep their caches: no bit of the training changes, and no
// byte is taken that was not planned.
TEST_F(Evaluate, TheJobIsAsIfItHadNotBeen)
{
    shd::DataFile data(3000);
    for (const bool driven : {false, true}) {
        shd_spec spec = shd::SmallSpec("zero3", 2);
        shd::Trace traces[2];
        for (const bool evaluated : {false, true}) {
            shd::Engine engine(spec, driven ? nullptr : data.Open());
            for (int i = 0; i < 4; i++) {
                if (driven) {
                    shd_work work;
                    shd_work_init(&work, SHD_WORK_TRAIN_STEP);
                    shd::MakeBatch(&work, 4, 17);
                    for (int k = 0; k < 4 * 17; k++) {
                        work.batch.tokens[k] = (k * 7 + i) % 97;
                        work.batch.targets[k] = (k * 7 + 7 + i) % 97;
                    }
                    ASSERT_EQ(0, engine.Run(&work)) << work.err.message;
                    traces[evaluated].losses.push_back(work.loss);
                    traces[evaluated].norms.push_back(work.grad_norm);
                    shd_work_fini(&work);
                } else {
                    engine.Step(&traces[evaluated]);
                }
                if (evaluated) {
                    Cut(17);
                    Found found;
                    ASSERT_EQ(0, Run(&engine, 12, &found));
                    EXPECT_EQ(static_cast<uint64_t>(i) + 1, found.step);
                }
            }
            traces[evaluated].params = engine.Params();
            for (uint32_t r = 0; r < 2; r++) {
                shd_usage usage[SHD_TAG_COUNT];
                uint64_t peak = 0, reserved = 0;
                shd_trainer_usage(engine.trainer(), r, usage, &peak, &reserved);
                EXPECT_LE(peak, engine.plan().total_peak);
                for (int tag = 0; tag < SHD_TAG_COUNT; tag++) {
                    EXPECT_LE(usage[tag].peak, engine.plan().peak[tag]) << tag;
                    EXPECT_EQ(usage[tag].now, engine.plan().steady[tag]) << tag;
                }
            }
        }
        EXPECT_TRUE(traces[0] == traces[1]);
    }
}

// A rank that cannot read its windows takes part in what the others do, and the job goes on.
TEST_F(Evaluate, AFileThatChangesLeavesTheJobAsItWas)
{
    shd::DataFile data(3000);
    for (uint32_t world : {1u, 3u}) {
        shd::Engine engine(shd::SmallSpec("zero3", world), data.Open());
        engine.Step();
        const auto params = engine.Params();
        shd::DataFile other(900);
        shd_source *kept = source_;
        source_ = other.Open();
        Cut(17);
        Found found;
        ASSERT_EQ(0, Run(&engine, 1000, &found));
        ASSERT_EQ(5, pwrite(other.fd(), "abcde", 5, 900));
        shd_error err = {};
        EXPECT_EQ(SHD_EINVAL, Run(&engine, 1000, &found, &err));
        EXPECT_EQ(SHD_EDATA, err.code);
        EXPECT_NE(std::string(err.message).find("has changed"), std::string::npos) << err.message;
        EXPECT_TRUE(params == engine.Params());
        EXPECT_EQ(2u, engine.Step().step);
        shd_windows_free(windows_);
        windows_ = nullptr;
        shd_source_free(source_);
        source_ = kept;
    }
}

// Only the rank that reads the bad token knows of it.
TEST_F(Evaluate, ATokenOutsideTheVocabularyIsNamed)
{
    const char high = 98; // the vocabulary is 97
    ASSERT_EQ(1, pwrite(file_.fd(), &high, 1, 500));
    shd_source_free(source_);
    source_ = file_.Open();
    Cut(17);
    shd::Engine engine(shd::SmallSpec("zero2", 3));
    Found found;
    shd_error err = {};
    EXPECT_EQ(SHD_EINVAL, Run(&engine, 1000, &found, &err));
    EXPECT_EQ(SHD_EDATA, err.code);
    EXPECT_NE(std::string(err.message).find("token 98 at position 500"), std::string::npos)
        << err.message;
    Cut(17, 400); // before it
    EXPECT_EQ(0, Run(&engine, 1000, &found, &err)) << err.message;
    EXPECT_EQ(400u, found.valid);
}

} // namespace

// First values of parameters from outside: every rank asks for its own parts alone, and all of a
// parameter arrives, in every precision, frozen or not.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/train/drive.h"

namespace
{

// Exact in every precision.
float Value(uint32_t index, int64_t i)
{
    return static_cast<float>((i * 7 + index * 13) % 128) / 64.0f - 1.0f;
}

struct Source {
    std::atomic<int64_t> elements{0}, largest{0};
    uint32_t fail_at = UINT32_MAX;
    int fail_with = SHD_EIO;
    shd_param_source from;

    Source() : from{Load, this} {}
    static int Load(void *arg, shd_device *dev, uint32_t index, int64_t first, int64_t n,
                    float *dst, shd_error *err)
    {
        Source *self = static_cast<Source *>(arg);
        if (index == self->fail_at) {
            return shd_fail(err, self->fail_with, "tensor %u is torn", index);
        }
        self->elements += n;
        self->largest = std::max<int64_t>(self->largest, n);
        std::vector<float> host(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; i++) {
            host[static_cast<size_t>(i)] = Value(index, first + i);
        }
        shd_device_from_host(dev, dst, host.data(), host.size() * sizeof(float));
        return 0;
    }
};

TEST(Source, GivesEveryParameterItsValuesAndEveryRankItsOwnPart)
{
    for (const char *strategy : {"ddp", "zero1", "zero2", "zero3"}) {
        for (shd_dtype dtype : {SHD_F32, SHD_BF16, SHD_F16}) {
            for (bool frozen : {false, true}) {
                shd_spec spec = shd::SmallSpec(strategy, 3);
                spec.dtype = dtype;
                std::string pattern = "*.h.*";
                char *patterns[] = {&pattern[0]};
                spec.freeze = patterns;
                spec.n_freeze = frozen;
                Source source;
                shd::Engine engine(spec, nullptr, nullptr, 1, &source.from);
                ASSERT_EQ(0, engine.init_rc()) << engine.init_error();
                const std::vector<std::vector<float>> params = engine.Params();
                int64_t all = 0, still = 0;
                for (uint32_t i = 0; i < params.size(); i++) {
                    for (size_t k = 0; k < params[i].size(); k++) {
                        ASSERT_EQ(Value(i, static_cast<int64_t>(k)), params[i][k]) << i << " " << k;
                    }
                    // The root's four come first.
                    (frozen && i >= 4 ? still : all) += static_cast<int64_t>(params[i].size());
                }
                // Trained ones once for all who share a master; frozen ones by every holder.
                EXPECT_EQ(3 / spec.strategy.o * all + 3 / spec.strategy.p * still, source.elements);
                EXPECT_LE(source.largest, SHD_LOAD_PIECE);
                // What was rounded into the p-parts is what computes: same loss as after writing.
                const shd::Batch batch = shd::Batch::Random(6, 17, 1);
                const double loss = shd::Good(engine, SHD_WORK_FORWARD, &batch).loss;
                shd::Engine written(spec);
                for (uint32_t i = 0; i < params.size(); i++) {
                    ASSERT_EQ(0, shd_trainer_write_param(written.trainer(), i, params[i].data(),
                                                         nullptr));
                }
                EXPECT_EQ(loss, shd::Good(written, SHD_WORK_FORWARD, &batch).loss);
            }
        }
    }
}

TEST(Source, AFailureFailsTheInitialisationWithItsMessage)
{
    for (int code : {SHD_EIO, SHD_EINVAL}) {
        Source source;
        source.fail_at = 5;
        source.fail_with = code;
        shd::Engine engine(shd::SmallSpec("zero3", 2), nullptr, nullptr, 1, &source.from);
        EXPECT_LT(engine.init_rc(), 0);
        EXPECT_NE(SHD_EINVAL, engine.init_rc()) << "the job is lost, not as it was";
        EXPECT_EQ("tensor 5 is torn", engine.init_error());
    }
}

} // namespace

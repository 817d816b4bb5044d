// Mixed precision against PyTorch: 100 steps in bf16 and fp16 with an fp32 master, as FSDP does
// them (tests/golden). The two curves stay within 1% of each other, and both near the one in fp32.
// The loss scale of fp16 is PyTorch's at every step, and so are the steps that are skipped.
#include <cmath>
#include <tuple>

#include "daemon/model/hf_config.h"
#include "tests/golden/golden.h"
#include "tests/train/engine.h"

namespace
{

using Case = std::tuple<const char *, const char *, uint32_t>; // file, strategy, world

class Mixed : public testing::TestWithParam<Case>
{
  protected:
    Mixed() : file_(std::string("tests/golden/") + std::get<0>(GetParam()) + ".golden")
    {
        const auto &[name, strategy, world] = GetParam();
        spec_ = shd::SmallSpec(strategy, world);
        const std::string &json = file_.text("config");
        shd_error err = {};
        EXPECT_EQ(0, shd_hf_config_parse(json.data(), json.size(), &spec_.model, nullptr, &err))
            << err.message;
        batch_ = static_cast<uint32_t>(file_.integer("batch"));
        length_ = static_cast<uint32_t>(file_.integer("length"));
        spec_.global_batch = batch_;
        spec_.micro_batch = batch_ / world;
        spec_.accumulation = 1;
        spec_.seq_len = length_;
        spec_.steps = static_cast<uint64_t>(file_.integer("steps"));
        spec_.schedule = {};
        spec_.schedule.kind = SHD_SCHEDULE_CONSTANT;
        spec_.schedule.lr = file_.number("lr");
        spec_.schedule.warmup = static_cast<uint64_t>(file_.integer("warmup"));
        spec_.schedule.steps = spec_.steps;
        spec_.optim.beta1 = file_.number("beta1");
        spec_.optim.beta2 = file_.number("beta2");
        spec_.optim.eps = file_.number("eps");
        spec_.weight_decay = file_.number("weight_decay");
        spec_.clip = file_.number("clip");
    }

    // `kind` names the rules of loss scaling in the file; empty: none. `scales` gets the scale of
    // every step.
    std::vector<double> Train(shd_dtype dtype, const std::string &kind = "",
                              std::vector<double> *scales = nullptr)
    {
        spec_.dtype = dtype;
        spec_.scaler = {};
        uint64_t steps = spec_.steps;
        if (!kind.empty()) {
            const auto rule = [&](const char *name) {
                return static_cast<uint32_t>(file_.number(kind + "_" + name));
            };
            spec_.scaler.enabled = 1;
            spec_.scaler.initial_scale_power = rule("initial_scale_power");
            spec_.scaler.loss_scale_window = rule("loss_scale_window");
            spec_.scaler.hysteresis = rule("hysteresis");
            spec_.scaler.min_loss_scale = rule("min_loss_scale");
            steps = rule("steps");
        }
        shd::Engine engine(spec_);
        shd_model *model = nullptr;
        shd_error err = {};
        EXPECT_EQ(0, shd_model_create(&spec_.model, &model, &err)) << err.message;
        for (uint32_t i = 0; i < shd_model_n_params(model); i++) {
            const std::string name = std::string("init/") + shd_model_param(model, i)->name;
            EXPECT_EQ(0,
                      shd_trainer_write_param(engine.trainer(), i, file_.f32(name).data(), &err));
        }
        shd_model_free(model);
        std::vector<double> losses;
        const size_t n = static_cast<size_t>(batch_) * length_;
        const size_t batches = static_cast<size_t>(file_.integer("batches"));
        for (uint64_t step = 0; step < steps; step++) {
            shd_work work;
            shd_work_init(&work, SHD_WORK_TRAIN_STEP);
            shd::MakeBatch(&work, batch_, length_);
            const size_t from = step % batches * n;
            std::copy_n(file_.i32("tokens").begin() + from, n, work.batch.tokens);
            std::copy_n(file_.i32("targets").begin() + from, n, work.batch.targets);
            EXPECT_EQ(0, engine.Run(&work)) << work.err.message;
            losses.push_back(work.loss);
            if (scales != nullptr) {
                scales->push_back(work.loss_scale);
            }
            shd_work_fini(&work);
        }
        return losses;
    }

    void ExpectWithin(const std::vector<double> &got, const std::string &curve, double limit) const
    {
        const std::vector<double> &want = file_.f64(curve);
        ASSERT_EQ(want.size(), got.size());
        double most = 0;
        for (size_t i = 0; i < got.size(); i++) {
            const double apart = std::fabs(got[i] - want[i]) / want[i];
            most = std::max(most, apart);
            EXPECT_LT(apart, limit) << curve << ", step " << i + 1 << ": " << got[i];
        }
        printf("%s: at most %.2e apart\n", curve.c_str(), most);
    }

    golden::File file_;
    shd_spec spec_;
    uint32_t batch_, length_;
};

TEST_P(Mixed, HundredSteps)
{
    ExpectWithin(Train(SHD_F32), "loss/fp32", 1e-4);
    const std::vector<double> bf16 = Train(SHD_BF16);
    ExpectWithin(bf16, "loss/bf16", 1e-2);
    ExpectWithin(bf16, "loss/fp32", 1e-2);
    std::vector<double> scales;
    const std::vector<double> fp16 = Train(SHD_F16, "fp16", &scales);
    ExpectWithin(fp16, "loss/fp16", 1e-2);
    ExpectWithin(fp16, "loss/fp32", 1e-2);
    EXPECT_EQ(file_.f64("scale/fp16"), scales);
    scales.clear();
    ExpectWithin(Train(SHD_F16, "fp16_overflow", &scales), "loss/fp16_overflow", 1e-2);
    EXPECT_EQ(file_.f64("scale/fp16_overflow"), scales);
    EXPECT_GT(scales.front(), 16 * scales.back()) << "steps were skipped";
}

INSTANTIATE_TEST_SUITE_P(Curves, Mixed,
                         testing::Values(Case{"mixed_gpt2", "zero2", 2},
                                         Case{"mixed_gpt2", "zero3", 4},
                                         Case{"mixed_llama", "zero3", 2},
                                         Case{"mixed_llama", "ddp", 1}),
                         [](const auto &tested) {
                             return std::string(std::get<0>(tested.param)) + "_" +
                                    std::get<1>(tested.param) + "_W" +
                                    std::to_string(std::get<2>(tested.param));
                         });

} // namespace

// Forward code of every architecture against transformers: logits after each token, with and
// without a cache of keys and values, losses and gradients (tests/golden).
#include <cmath>

#include "tests/model/run.h"

namespace
{

class Forward : public testing::TestWithParam<const char *>
{
  protected:
    Forward() : file_(std::string("tests/golden/") + GetParam() + ".golden")
    {
        const auto &shape = file_.tensor("tokens").shape; // [steps, batch, length]
        batch_ = shape[1];
        length_ = shape[2];
        vocab_ = static_cast<size_t>(file_.tensor("logits").shape[1]);
        tokens_.assign(file_.i32("tokens").begin(), file_.i32("tokens").begin() + batch_ * length_);
        targets_.assign(file_.i32("targets").begin(),
                        file_.i32("targets").begin() + batch_ * length_);
    }

    std::vector<int32_t> Ids(int64_t first, int64_t end) const
    {
        return std::vector<int32_t>(tokens_.begin() + first, tokens_.begin() + end);
    }

    // Within `limit` of the largest element of all rows.
    void ExpectLogits(const std::vector<float> &got, int64_t row, const std::string &where,
                      double limit = 1e-5) const
    {
        const std::vector<float> &want = file_.f32("logits");
        double most = 0, apart = 0;
        for (float v : want) {
            most = std::max(most, std::fabs(static_cast<double>(v)));
        }
        for (size_t i = 0; i < vocab_; i++) {
            const double w = want[static_cast<size_t>(row) * vocab_ + i];
            apart = std::max(apart, std::fabs(got[i] - w));
        }
        EXPECT_LT(apart / most, limit) << where << ", after " << row + 1 << " tokens";
    }

    golden::File file_;
    int64_t batch_, length_;
    size_t vocab_;
    std::vector<int32_t> tokens_, targets_;
};

TEST_P(Forward, LogitsAfterEveryToken)
{
    model::Run run(file_);
    for (int64_t n = 1; n <= length_; n++) {
        ExpectLogits(run.Logits(Ids(0, n)), n - 1, "one pass");
    }
}

TEST_P(Forward, LogitsFromTheCache)
{
    model::Run run(file_);
    for (int64_t prefill : {int64_t{1}, length_ / 2, length_ - 1}) {
        std::vector<std::vector<uint8_t>> memory;
        std::vector<shd_kv_cache> cache = run.Cache(length_, &memory);
        ExpectLogits(run.Logits(Ids(0, prefill), &cache), prefill - 1, "prefill");
        for (int64_t n = prefill; n < length_; n++) {
            ExpectLogits(run.Logits(Ids(n, n + 1), &cache), n, "token by token");
        }
    }
    // Several at once behind what is held.
    std::vector<std::vector<uint8_t>> memory;
    std::vector<shd_kv_cache> cache = run.Cache(length_, &memory);
    run.Logits(Ids(0, 3), &cache);
    ExpectLogits(run.Logits(Ids(3, length_), &cache), length_ - 1, "in two parts");
}

// A rounding of bf16 is off by at most u = 2^-8 of its value, of fp16 by 2^-11. A logit comes out
// of about 8 roundings a layer, of parameters and of activations, whose errors are independent and
// add as their squares: u * sqrt(8 L) of the largest. Three times that.
TEST_P(Forward, LogitsInHalfPrecision)
{
    const double roundings = 8.0 * static_cast<double>(model::ConfigOf(file_).n_layer);
    for (const auto &[dtype, u] : {std::pair{SHD_BF16, 0x1p-8}, std::pair{SHD_F16, 0x1p-11}}) {
        const double limit = 3 * u * std::sqrt(roundings);
        model::Run run(file_, 1, dtype);
        ExpectLogits(run.Logits(Ids(0, length_)), length_ - 1, shd_dtype_name(dtype), limit);
        std::vector<std::vector<uint8_t>> memory;
        std::vector<shd_kv_cache> cache = run.Cache(length_, &memory);
        run.Logits(Ids(0, length_ / 2), &cache);
        for (int64_t n = length_ / 2; n < length_; n++) {
            ExpectLogits(run.Logits(Ids(n, n + 1), &cache), n, "cached", limit);
        }
    }
}

TEST_P(Forward, LossAndEveryGradient)
{
    model::Run run(file_, 2);
    const std::vector<float> losses = run.Losses(tokens_, targets_, length_, 1);
    double sum = 0, valid = 0;
    for (size_t i = 0; i < losses.size(); i++) {
        sum += losses[i];
        valid += targets_[i] >= 0;
    }
    const double want = file_.f64("loss")[0];
    EXPECT_LT(std::fabs(sum / valid - want) / want, 1e-5);
    for (uint32_t i = 0; i < shd_model_n_params(run.get()); i++) {
        const std::string name = shd_model_param(run.get(), i)->name;
        const std::vector<float> &grad = file_.f32("grad/" + name);
        double most = 0, apart = 0;
        for (size_t j = 0; j < grad.size(); j++) {
            most = std::max(most, std::fabs(static_cast<double>(grad[j])));
            apart = std::max(apart, std::fabs(run.grad(i)[j] / valid - grad[j]));
        }
        EXPECT_LT(apart / most, 1e-5) << name;
    }
    const std::vector<float> again = run.Losses(tokens_, targets_, length_, 0);
    for (size_t i = 0; i < losses.size(); i++) {
        EXPECT_EQ(losses[i], again[i]) << "evaluation gives the same bits, position " << i;
    }
}

TEST_P(Forward, DropoutIsAFunctionOfTheSample)
{
    model::Run run(file_);
    const shd_model_dropout drop = {0.25f, 11, 3, 40};
    const std::vector<float> plain = run.Losses(tokens_, targets_, length_);
    const std::vector<float> first = run.Losses(tokens_, targets_, length_, 0, drop);
    EXPECT_EQ(first, run.Losses(tokens_, targets_, length_, 0, drop));
    EXPECT_EQ(first, run.Losses(tokens_, targets_, length_, 1, drop)) << "training";
    EXPECT_NE(first, plain);
    shd_model_dropout other = drop;
    other.step = 4;
    EXPECT_NE(first, run.Losses(tokens_, targets_, length_, 0, other));
    other = drop;
    other.seed = 12;
    EXPECT_NE(first, run.Losses(tokens_, targets_, length_, 0, other));
    // The same sequences, one at a time.
    for (int64_t s = 0; s < batch_; s++) {
        other = drop;
        other.first_sample = drop.first_sample + static_cast<uint64_t>(s);
        const std::vector<int32_t> wanted(targets_.begin() + s * length_,
                                          targets_.begin() + (s + 1) * length_);
        const std::vector<float> one =
            run.Losses(Ids(s * length_, (s + 1) * length_), wanted, length_, 0, other);
        for (int64_t i = 0; i < length_; i++) {
            const double whole = first[static_cast<size_t>(s * length_ + i)];
            EXPECT_NEAR(whole, one[static_cast<size_t>(i)], 1e-4 * (1 + whole)) << s << " " << i;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Forward,
                         testing::Values("gpt2_a", "gpt2_b", "gpt2_c", "gpt2_d", "gpt2_e",
                                         "llama_a", "llama_b", "llama_c", "smollm2", "mistral",
                                         "qwen2", "qwen2_b", "qwen3", "qwen3_b"),
                         [](const auto &tested) { return std::string(tested.param); });

} // namespace

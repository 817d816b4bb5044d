#include "daemon/service/sampling.h"

#include <gtest/gtest.h>
#include <jansson.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

static int pick(const shd_sampling &s, const std::vector<float> &logits, uint64_t index,
                int32_t *token, float *logprob, shd_error *err = nullptr,
                const std::vector<int32_t> &context = {})
{
    const shd_sampling_input in = {logits.data(), (uint32_t)logits.size(), context.data(),
                                   context.size()};
    return shd_sampling_pick(&s, &in, index, token, logprob, err);
}

static const std::vector<float> kLogits = {std::log(0.1f), std::log(0.4f), std::log(0.2f),
                                           std::log(0.3f)};

static std::vector<double> shares(shd_sampling s, const std::vector<float> &logits, int n = 20000)
{
    std::vector<double> out(logits.size());
    for (int i = 0; i < n; i++) {
        int32_t token = -1;
        float logprob;
        EXPECT_EQ(pick(s, logits, (uint64_t)i, &token, &logprob), 0);
        out.at((size_t)token) += 1.0 / n;
        EXPECT_NEAR(logprob, logits[(size_t)token], 1e-6) << "the untempered probability";
    }
    return out;
}

TEST(Sampling, DrawsByProbability)
{
    const auto p = shares(SHD_SAMPLING_DEFAULT, kLogits);
    EXPECT_NEAR(p[0], 0.1, 0.01);
    EXPECT_NEAR(p[1], 0.4, 0.015);
    EXPECT_NEAR(p[2], 0.2, 0.015);
    EXPECT_NEAR(p[3], 0.3, 0.015);
}

TEST(Sampling, TemperatureSharpensAndZeroIsTheLikeliest)
{
    shd_sampling s = SHD_SAMPLING_DEFAULT;
    s.temperature = 0.5; // squares the probabilities: 1 16 4 9 of 30
    const auto p = shares(s, kLogits);
    EXPECT_NEAR(p[1], 16.0 / 30, 0.015);
    EXPECT_NEAR(p[0], 1.0 / 30, 0.01);
    s.temperature = 0;
    EXPECT_DOUBLE_EQ(std::round(shares(s, kLogits, 100)[1]), 1);
    int32_t token;
    float logprob;
    ASSERT_EQ(pick(s, {1, 3, 3, 2}, 0, &token, &logprob), 0);
    EXPECT_EQ(token, 1) << "ties go to the lowest id";
}

TEST(Sampling, TopKAndTopPCutTheTail)
{
    shd_sampling s = SHD_SAMPLING_DEFAULT;
    s.top_k = 2;
    auto p = shares(s, kLogits);
    EXPECT_EQ(p[0] + p[2], 0);
    EXPECT_NEAR(p[1], 4.0 / 7, 0.015);
    s.top_k = 0;
    s.top_p = 0.75; // 0.4 + 0.3 is not enough: 0.2 is taken too
    p = shares(s, kLogits);
    EXPECT_EQ(p[0], 0);
    EXPECT_NEAR(p[2], 0.2 / 0.9, 0.015);
    s.top_p = 1e-9;
    EXPECT_NEAR(shares(s, kLogits, 100)[1], 1, 1e-9) << "at least one token";
    s.top_k = 2;
    s.top_p = 0.6; // within the two: 4/7 is not enough
    p = shares(s, kLogits);
    EXPECT_NEAR(p[1], 4.0 / 7, 0.015);
    s.top_p = 0.5;
    EXPECT_NEAR(shares(s, kLogits, 100)[1], 1, 1e-9);
    s = SHD_SAMPLING_DEFAULT;
    s.top_k = 2;
    const std::vector<float> flat(5, std::log(0.2f));
    p = shares(s, flat);
    EXPECT_NEAR(p[0] + p[1], 1, 1e-9) << "ties go to the lower ids";
    s.top_k = 100;
    EXPECT_NEAR(shares(s, kLogits)[0], 0.1, 0.01) << "more than there are is all";
}

TEST(Sampling, IsAFunctionOfSeedAndIndex)
{
    shd_sampling s = SHD_SAMPLING_DEFAULT;
    std::vector<float> flat(1000, 0);
    std::vector<int32_t> first, second, other;
    for (uint64_t i = 0; i < 20; i++) {
        int32_t token;
        float logprob;
        s.seed = 1;
        pick(s, flat, i, &token, &logprob);
        first.push_back(token);
        pick(s, flat, i, &token, &logprob);
        second.push_back(token);
        s.seed = 2;
        pick(s, flat, i, &token, &logprob);
        other.push_back(token);
    }
    EXPECT_EQ(first, second);
    EXPECT_NE(first, other);
}

TEST(Sampling, ImpossibleTokensAreNeverDrawn)
{
    const float inf = std::numeric_limits<float>::infinity();
    std::vector<float> logits = {-inf, 0, -inf, 0, -inf};
    shd_sampling s = SHD_SAMPLING_DEFAULT;
    for (double p : {1.0, 0.999999}) {
        s.top_p = p;
        for (uint64_t i = 0; i < 1000; i++) {
            int32_t token;
            float logprob;
            ASSERT_EQ(pick(s, logits, i, &token, &logprob), 0);
            EXPECT_TRUE(token == 1 || token == 3) << token;
        }
    }
}

TEST(Sampling, RefusesWhatIsNoDistribution)
{
    const float inf = std::numeric_limits<float>::infinity();
    shd_sampling s = SHD_SAMPLING_DEFAULT;
    shd_error err;
    int32_t token;
    float logprob;
    EXPECT_EQ(pick(s, {0, NAN}, 0, &token, &logprob, &err), SHD_ENONFINITE);
    EXPECT_EQ(pick(s, {inf, 0}, 0, &token, &logprob, &err), SHD_ENONFINITE);
    EXPECT_EQ(pick(s, {-inf, -inf}, 0, &token, &logprob, &err), SHD_ENONFINITE);
    s.temperature = NAN;
    EXPECT_EQ(shd_sampling_check(&s, &err), SHD_EINVAL);
    s = SHD_SAMPLING_DEFAULT;
    for (double p : {0.0, 1.1, -1.0, (double)NAN}) {
        s.top_p = p;
        EXPECT_EQ(shd_sampling_check(&s, &err), SHD_EINVAL) << p;
    }
    s = SHD_SAMPLING_DEFAULT;
    for (double p : {0.0, 101.0, -1.0, (double)NAN}) {
        s.repetition_penalty = p;
        EXPECT_EQ(shd_sampling_check(&s, &err), SHD_EINVAL) << p;
        EXPECT_NE(std::string(err.message).find("repetition_penalty"), std::string::npos);
    }
}

TEST(Sampling, PenaltyMakesWhatWasSaidLessLikely)
{
    shd_sampling s = SHD_SAMPLING_DEFAULT;
    s.temperature = 0;
    s.repetition_penalty = 2;
    int32_t token;
    float logprob;
    ASSERT_EQ(pick(s, {3, 2, -1}, 0, &token, &logprob, nullptr, {0, 0, 0}), 0);
    EXPECT_EQ(token, 1) << "once, not thrice";
    EXPECT_NEAR(logprob, 2 - std::log(std::exp(3.0) + std::exp(2.0) + std::exp(-1.0)), 1e-6)
        << "the model's own";
    ASSERT_EQ(pick(s, {5, 2, -1}, 0, &token, &logprob, nullptr, {0, 0, 0}), 0);
    EXPECT_EQ(token, 0) << "once: 2.5 is still above 2";
    ASSERT_EQ(pick(s, {-1, -1.5}, 0, &token, &logprob, nullptr, {0}), 0);
    EXPECT_EQ(token, 1) << "negative logits become more negative";
    s.repetition_penalty = 0.01;
    ASSERT_EQ(pick(s, {1, 3e38f, 2e38f}, 0, &token, &logprob, nullptr, {0, 1, 2}), 0);
    EXPECT_EQ(token, 1);
}

// sampling_golden.py: the distributions that transformers draws from.
TEST(Sampling, IsThatOfTransformers)
{
    const std::string path = std::string(getenv("TEST_SRCDIR")) + "/" + getenv("TEST_WORKSPACE") +
                             "/tests/service/sampling_golden.json";
    json_error_t error;
    json_t *root = json_load_file(path.c_str(), 0, &error);
    ASSERT_NE(root, nullptr) << error.text;
    ASSERT_GE(json_array_size(root), 10u);
    size_t n, i;
    const json_t *c, *item;
    json_array_foreach(root, n, c)
    {
        shd_sampling s = SHD_SAMPLING_DEFAULT;
        s.temperature = json_number_value(json_object_get(c, "temperature"));
        s.top_k = (uint32_t)json_integer_value(json_object_get(c, "top_k"));
        s.top_p = json_number_value(json_object_get(c, "top_p"));
        s.repetition_penalty = json_number_value(json_object_get(c, "repetition_penalty"));
        std::vector<float> logits;
        std::vector<int32_t> context;
        json_array_foreach(json_object_get(c, "logits"), i, item)
        {
            logits.push_back((float)json_number_value(item));
        }
        json_array_foreach(json_object_get(c, "context"), i, item)
        {
            context.push_back((int32_t)json_integer_value(item));
        }
        const shd_sampling_input in = {logits.data(), (uint32_t)logits.size(), context.data(),
                                       context.size()};
        std::vector<double> p(logits.size());
        ASSERT_EQ(shd_sampling_distribution(&s, &in, p.data(), nullptr), 0);
        const json_t *expected = json_object_get(c, "probabilities");
        ASSERT_EQ(json_array_size(expected), p.size());
        for (size_t k = 0; k < p.size(); k++) {
            const double want = json_number_value(json_array_get(expected, k));
            // transformers works in float32: a few roundings of the exponent and of the sum.
            EXPECT_NEAR(p[k], want, 2e-6) << "case " << n << " token " << k;
            EXPECT_EQ(p[k] == 0, want == 0) << "case " << n << " token " << k;
        }
        int32_t token;
        float logprob;
        s.temperature = 0;
        ASSERT_EQ(shd_sampling_pick(&s, &in, 0, &token, &logprob, nullptr), 0);
        EXPECT_EQ(token, json_integer_value(json_object_get(c, "greedy"))) << "case " << n;
    }
    json_decref(root);
}

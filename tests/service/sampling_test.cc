#include "daemon/service/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

static const std::vector<float> kLogits = {std::log(0.1f), std::log(0.4f), std::log(0.2f),
                                           std::log(0.3f)};

static std::vector<double> shares(shd_sampling s, const std::vector<float> &logits, int n = 20000)
{
    std::vector<double> out(logits.size());
    for (int i = 0; i < n; i++) {
        int32_t token = -1;
        float logprob;
        EXPECT_EQ(shd_sampling_pick(&s, logits.data(), (uint32_t)logits.size(), (uint64_t)i, &token,
                                    &logprob, nullptr),
                  0);
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
    const float tie[] = {1, 3, 3, 2};
    ASSERT_EQ(shd_sampling_pick(&s, tie, 4, 0, &token, &logprob, nullptr), 0);
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
        shd_sampling_pick(&s, flat.data(), 1000, i, &token, &logprob, nullptr);
        first.push_back(token);
        shd_sampling_pick(&s, flat.data(), 1000, i, &token, &logprob, nullptr);
        second.push_back(token);
        s.seed = 2;
        shd_sampling_pick(&s, flat.data(), 1000, i, &token, &logprob, nullptr);
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
            ASSERT_EQ(shd_sampling_pick(&s, logits.data(), 5, i, &token, &logprob, nullptr), 0);
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
    const float nan_logits[] = {0, NAN}, inf_logits[] = {inf, 0}, none[] = {-inf, -inf};
    EXPECT_EQ(shd_sampling_pick(&s, nan_logits, 2, 0, &token, &logprob, &err), SHD_ENONFINITE);
    EXPECT_EQ(shd_sampling_pick(&s, inf_logits, 2, 0, &token, &logprob, &err), SHD_ENONFINITE);
    EXPECT_EQ(shd_sampling_pick(&s, none, 2, 0, &token, &logprob, &err), SHD_ENONFINITE);
    s.temperature = NAN;
    EXPECT_EQ(shd_sampling_check(&s, &err), SHD_EINVAL);
    s = SHD_SAMPLING_DEFAULT;
    for (double p : {0.0, 1.1, -1.0, (double)NAN}) {
        s.top_p = p;
        EXPECT_EQ(shd_sampling_check(&s, &err), SHD_EINVAL) << p;
    }
}

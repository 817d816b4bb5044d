// AdamW against the algorithm in double precision.
#include "daemon/optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace
{

// Loshchilov & Hutter 2019, algorithm 2, in the form of torch.optim.AdamW.
struct Reference {
    double p, m = 0, v = 0;
    void Step(double g, const shd_adamw_hyper &h, bool decay)
    {
        g *= h.grad_scale;
        if (decay) {
            p *= 1 - h.lr * h.weight_decay;
        }
        m = h.beta1 * m + (1 - h.beta1) * g;
        v = h.beta2 * v + (1 - h.beta2) * g * g;
        const double t = static_cast<double>(h.t);
        const double mhat = m / (1 - std::pow(h.beta1, t)), vhat = v / (1 - std::pow(h.beta2, t));
        p -= h.lr * mhat / (std::sqrt(vhat) + h.eps);
    }
};

class AdamW : public testing::TestWithParam<bool>
{
};

TEST_P(AdamW, HundredStepsStayWithTheReference)
{
    const bool decay = GetParam();
    constexpr int64_t n = 1003;
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    std::vector<float> p(n), m(n), v(n), g(n);
    std::vector<Reference> want(n);
    for (int64_t i = 0; i < n; i++) {
        p[i] = normal(random);
        want[i].p = p[i];
    }
    shd_device *dev = shd_device_create_cpu(1, 0);
    shd_adamw_hyper hyper = {1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0, 0};
    for (uint64_t t = 1; t <= 100; t++) {
        hyper.t = t;
        hyper.lr = 1e-2 / static_cast<double>(t);
        hyper.grad_scale = t % 3 == 0 ? 0.125 : 1.7;
        for (int64_t i = 0; i < n; i++) {
            g[i] = normal(random) * (i % 5 == 0 ? 1e-4f : 1.0f);
            want[i].Step(g[i], hyper, decay);
        }
        shd_adamw_apply(dev, p.data(), g.data(), m.data(), v.data(), n, &hyper, decay);
    }
    shd_device_free(dev);
    // A step rounds p to half an ulp (6e-8 of |p| <= 4), and its own size (at most about lr, which
    // sums to 0.052 here) to a few: 100 steps stay below 100 * 2.4e-7 + 0.052 * 1e-6.
    for (int64_t i = 0; i < n; i++) {
        ASSERT_NEAR(want[i].p, p[i], 2.5e-5) << i;
        ASSERT_NEAR(want[i].m, m[i], 1e-6 + 1e-5 * std::fabs(want[i].m)) << i;
        ASSERT_NEAR(want[i].v, v[i], 1e-5 * want[i].v) << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Decay, AdamW, testing::Bool());

TEST(AdamWApply, DecayIsLeftOutWhereAsked)
{
    shd_device *dev = shd_device_create_cpu(1, 0);
    for (int decay : {0, 1}) {
        // No gradient, no moments: only decay moves anything.
        std::vector<float> p = {1.0f, -2.0f, 0.5f}, g(3), m(3), v(3);
        const shd_adamw_hyper hyper = {0.5, 0.9, 0.95, 1e-8, 0.25, 1.0, 1};
        shd_adamw_apply(dev, p.data(), g.data(), m.data(), v.data(), 3, &hyper, decay);
        const float factor = decay ? 0.875f : 1.0f;
        EXPECT_EQ(factor * 1.0f, p[0]);
        EXPECT_EQ(factor * -2.0f, p[1]);
        EXPECT_EQ(factor * 0.5f, p[2]);
    }
    shd_device_free(dev);
}

TEST(AdamWApply, FirstStepIsOfTheSizeOfTheRateWhateverTheGradient)
{
    // Bias correction makes mhat / sqrt(vhat) the sign of the first gradient.
    shd_device *dev = shd_device_create_cpu(1, 0);
    for (float g0 : {1e-3f, -4.0f, 1e5f}) {
        std::vector<float> p(17, 0.0f), g(17, g0), m(17), v(17);
        const shd_adamw_hyper hyper = {0.01, 0.9, 0.999, 1e-12, 0.0, 1.0, 1};
        shd_adamw_apply(dev, p.data(), g.data(), m.data(), v.data(), 17, &hyper, 1);
        for (float x : p) {
            EXPECT_NEAR(g0 > 0 ? -0.01 : 0.01, x, 1e-7);
        }
    }
    shd_device_free(dev);
}

} // namespace

// Every optimizer against its algorithm in double precision.
#include "daemon/optim/optim.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace
{

// One element, as the papers and torch.optim have it.
struct Reference {
    double p, a = 0, b = 0;
    void Step(const shd_optim &o, const shd_optim_step &s, double g, bool decay)
    {
        const double wd = decay ? s.weight_decay : 0, t = static_cast<double>(s.t);
        g *= s.grad_scale;
        switch (o.kind) {
        case SHD_OPTIM_ADAMW:
        case SHD_OPTIM_ADAM:
            if (o.kind == SHD_OPTIM_ADAMW) {
                p *= 1 - s.lr * wd;
            } else {
                g += wd * p;
            }
            a = o.beta1 * a + (1 - o.beta1) * g;
            b = o.beta2 * b + (1 - o.beta2) * g * g;
            p -= s.lr * (a / (1 - std::pow(o.beta1, t))) /
                 (std::sqrt(b / (1 - std::pow(o.beta2, t))) + o.eps);
            break;
        case SHD_OPTIM_SGD:
            g += wd * p;
            a = o.momentum * a + g;
            p -= s.lr * (o.momentum == 0 ? g : o.nesterov ? g + o.momentum * a : a);
            break;
        case SHD_OPTIM_LION: {
            const double c = o.beta1 * a + (1 - o.beta1) * g;
            p -= s.lr * ((c > 0) - (c < 0) + wd * p);
            a = o.beta2 * a + (1 - o.beta2) * g;
            break;
        }
        }
    }
};

struct Case {
    const char *name;
    shd_optim optim;
    uint32_t states;
};

const Case kCases[] = {
    {"adamw", {SHD_OPTIM_ADAMW, 0.9, 0.95, 1e-8, 0, 0}, 2},
    {"adam", {SHD_OPTIM_ADAM, 0.9, 0.999, 1e-8, 0, 0}, 2},
    {"sgd", {SHD_OPTIM_SGD, 0, 0, 0, 0, 0}, 0},
    {"momentum", {SHD_OPTIM_SGD, 0, 0, 0, 0.9, 0}, 1},
    {"nesterov", {SHD_OPTIM_SGD, 0, 0, 0, 0.9, 1}, 1},
    {"lion", {SHD_OPTIM_LION, 0.9, 0.99, 0, 0, 0}, 1},
};

class Optim : public testing::TestWithParam<std::tuple<Case, bool>>
{
};

TEST_P(Optim, HundredStepsStayWithTheReference)
{
    const Case c = std::get<0>(GetParam());
    const bool decay = std::get<1>(GetParam());
    constexpr int64_t n = 1003;
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    std::vector<float> p(n), a(n), b(n), g(n);
    std::vector<Reference> want(n);
    for (int64_t i = 0; i < n; i++) {
        p[i] = normal(random);
        want[i].p = p[i];
    }
    EXPECT_EQ(c.states, shd_optim_states(&c.optim));
    shd_device *dev = shd_device_create_cpu(1, 0);
    float *const states[SHD_OPTIM_STATES] = {c.states > 0 ? a.data() : nullptr,
                                             c.states > 1 ? b.data() : nullptr};
    shd_optim_step step = {};
    step.weight_decay = 0.1;
    for (uint64_t t = 1; t <= 100; t++) {
        step.t = t;
        step.lr = 1e-2 / static_cast<double>(t);
        step.grad_scale = t % 3 == 0 ? 0.125 : 1.7;
        for (int64_t i = 0; i < n; i++) {
            g[i] = normal(random) * (i % 5 == 0 ? 1e-4f : 1.0f);
            want[i].Step(c.optim, step, g[i], decay);
        }
        shd_optim_apply(dev, &c.optim, &step, p.data(), g.data(), states, n, decay);
    }
    shd_device_free(dev);
    // A step rounds p to half an ulp (6e-8 of |p| <= 4), and its own size (at most about lr, which
    // sums to 0.052 here; with momentum ten times that, over gradients of up to 8) to a few: 100
    // steps stay below 100 * 2.4e-7 + 0.52 * 8 * 1e-6.
    for (int64_t i = 0; i < n; i++) {
        ASSERT_NEAR(want[i].p, p[i], 3e-5) << i;
        if (c.states > 0) {
            ASSERT_NEAR(want[i].a, a[i], 1e-5 + 1e-5 * std::fabs(want[i].a)) << i;
        }
        if (c.states > 1) {
            // Adam's L2 term carries the error of p into the square.
            ASSERT_NEAR(want[i].b, b[i], 1e-9 + 1e-5 * want[i].b) << i;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, Optim, testing::Combine(testing::ValuesIn(kCases), testing::Bool()),
                         [](const auto &tested) {
                             return std::string(std::get<0>(tested.param).name) +
                                    (std::get<1>(tested.param) ? "Decay" : "");
                         });

TEST(Apply, DecayIsLeftOutWhereAsked)
{
    shd_device *dev = shd_device_create_cpu(1, 0);
    for (const Case &c : kCases) {
        for (int decay : {0, 1}) {
            // No gradient, no states: only decay moves anything.
            std::vector<float> p = {1.0f, -2.0f, 0.5f}, g(3), a(3), b(3);
            float *const states[SHD_OPTIM_STATES] = {a.data(), b.data()};
            const shd_optim_step step = {0.5, 0.25, 1.0, 1};
            shd_optim_apply(dev, &c.optim, &step, p.data(), g.data(), states, 3, decay);
            if (!decay) {
                EXPECT_EQ((std::vector<float>{1.0f, -2.0f, 0.5f}), p) << c.name;
            } else if (c.optim.kind == SHD_OPTIM_ADAM) {
                // The L2 term is all of the gradient: a first step of the size of the rate.
                EXPECT_NEAR(0.5, p[0], 1e-6);
                EXPECT_NEAR(-1.5, p[1], 1e-6);
            } else {
                const float by = c.optim.nesterov ? 1.9f * 0.125f : 0.125f;
                EXPECT_FLOAT_EQ(1.0f - by, p[0]) << c.name;
                EXPECT_FLOAT_EQ(-2.0f * (1.0f - by), p[1]) << c.name;
            }
        }
    }
    shd_device_free(dev);
}

TEST(AdamW, FirstStepIsOfTheSizeOfTheRateWhateverTheGradient)
{
    // Bias correction makes mhat / sqrt(vhat) the sign of the first gradient.
    const shd_optim optim = {SHD_OPTIM_ADAMW, 0.9, 0.999, 1e-12, 0, 0};
    shd_device *dev = shd_device_create_cpu(1, 0);
    for (float g0 : {1e-3f, -4.0f, 1e5f}) {
        std::vector<float> p(17, 0.0f), g(17, g0), m(17), v(17);
        float *const states[SHD_OPTIM_STATES] = {m.data(), v.data()};
        const shd_optim_step step = {0.01, 0.0, 1.0, 1};
        shd_optim_apply(dev, &optim, &step, p.data(), g.data(), states, 17, 1);
        for (float x : p) {
            EXPECT_NEAR(g0 > 0 ? -0.01 : 0.01, x, 1e-7);
        }
    }
    shd_device_free(dev);
}

TEST(Lion, MovesByTheRateAndNotAtAllWithoutAGradient)
{
    const shd_optim optim = {SHD_OPTIM_LION, 0.9, 0.99, 0, 0, 0};
    shd_device *dev = shd_device_create_cpu(1, 0);
    std::vector<float> p(3, 1.0f), g = {1e-20f, -7.0f, 0.0f}, m(3);
    float *const states[SHD_OPTIM_STATES] = {m.data(), nullptr};
    const shd_optim_step step = {0.25, 0.0, 1.0, 1};
    shd_optim_apply(dev, &optim, &step, p.data(), g.data(), states, 3, 1);
    EXPECT_EQ((std::vector<float>{0.75f, 1.25f, 1.0f}), p);
    shd_device_free(dev);
}

TEST(Parse, KnowsItsWords)
{
    shd_optim_kind kind = SHD_OPTIM_LION;
    EXPECT_EQ(0, shd_optim_parse("", &kind, nullptr));
    EXPECT_EQ(SHD_OPTIM_ADAMW, kind);
    for (shd_optim_kind k : {SHD_OPTIM_ADAMW, SHD_OPTIM_ADAM, SHD_OPTIM_SGD, SHD_OPTIM_LION}) {
        EXPECT_EQ(0, shd_optim_parse(shd_optim_name(k), &kind, nullptr));
        EXPECT_EQ(k, kind);
    }
    for (const char *word : {"AdamW", "adafactor", "sgd "}) {
        shd_error err = {};
        EXPECT_EQ(SHD_EINVAL, shd_optim_parse(word, &kind, &err));
        for (const char *part : {"--optimizer", word, "adamw", "adam", "sgd", "lion"}) {
            EXPECT_NE(std::string::npos, std::string(err.message).find(part)) << err.message;
        }
    }
}

} // namespace

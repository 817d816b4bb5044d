// Learning rate as a function of the step alone.
#include "daemon/optim/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace
{

TEST(Parse, KnowsItsWords)
{
    struct {
        const char *word;
        shd_schedule_kind kind;
    } const cases[] = {
        {"", SHD_SCHEDULE_COSINE},       {"cosine", SHD_SCHEDULE_COSINE},
        {"linear", SHD_SCHEDULE_LINEAR}, {"constant", SHD_SCHEDULE_CONSTANT},
        {"wsd", SHD_SCHEDULE_WSD},       {"inverse_sqrt", SHD_SCHEDULE_INVERSE_SQRT}};
    for (const auto &c : cases) {
        shd_schedule_kind kind = SHD_SCHEDULE_LINEAR;
        EXPECT_EQ(0, shd_schedule_parse(c.word, &kind, nullptr));
        EXPECT_EQ(c.kind, kind);
        if (c.word[0] != '\0') {
            EXPECT_STREQ(c.word, shd_schedule_name(kind));
        }
    }
    for (const char *word : {"Cosine", "step", "cosine ", "lin"}) {
        shd_schedule_kind kind;
        shd_error err = {};
        EXPECT_EQ(SHD_EINVAL, shd_schedule_parse(word, &kind, &err));
        for (const char *part :
             {"--schedule", word, "cosine", "linear", "constant", "wsd", "inverse_sqrt"}) {
            EXPECT_NE(std::string::npos, std::string(err.message).find(part)) << err.message;
        }
    }
}

// The formulas of the header, written down once more.
double Expected(const shd_schedule &s, uint64_t step)
{
    const double at = static_cast<double>(step), warm = static_cast<double>(s.warmup);
    if (at <= warm && warm > 0) {
        return s.lr * at / warm;
    }
    if (s.kind == SHD_SCHEDULE_CONSTANT) {
        return s.lr;
    }
    if (s.kind == SHD_SCHEDULE_INVERSE_SQRT) {
        return s.lr * std::sqrt(std::max(warm, 1.0)) / std::sqrt(at);
    }
    if (s.kind == SHD_SCHEDULE_WSD) {
        const double left = static_cast<double>(s.steps) - at,
                     last = static_cast<double>(s.decay_steps);
        return left <= 0      ? s.lr_min
               : left >= last ? s.lr
                              : s.lr_min + (s.lr - s.lr_min) * left / last;
    }
    double x = (at - warm) / (static_cast<double>(s.steps) - warm);
    x = x > 1 ? 1 : x;
    if (s.kind == SHD_SCHEDULE_LINEAR) {
        return s.lr * (1 - x) + s.lr_min * x;
    }
    return s.lr_min + (s.lr - s.lr_min) * (1 + std::cos(std::acos(-1.0) * x)) / 2;
}

TEST(Lr, FollowsTheFormulas)
{
    for (shd_schedule_kind kind : {SHD_SCHEDULE_COSINE, SHD_SCHEDULE_LINEAR, SHD_SCHEDULE_CONSTANT,
                                   SHD_SCHEDULE_WSD, SHD_SCHEDULE_INVERSE_SQRT}) {
        for (uint64_t warmup : {0u, 1u, 7u, 80u}) {
            const shd_schedule s = {kind, 3e-3, 1e-4, warmup, 100, 20};
            for (uint64_t step = 1; step <= 130; step++) {
                EXPECT_NEAR(Expected(s, step), shd_schedule_lr(&s, step), 1e-15)
                    << shd_schedule_name(kind) << " warmup " << warmup << " step " << step;
            }
        }
    }
}

TEST(Lr, Landmarks)
{
    shd_schedule s = {SHD_SCHEDULE_COSINE, 1.0, 0.25, 10, 110, 40};
    EXPECT_EQ(0.1, shd_schedule_lr(&s, 1));
    EXPECT_EQ(1.0, shd_schedule_lr(&s, 10)) << "warm-up ends at the peak";
    EXPECT_LT(shd_schedule_lr(&s, 11), 1.0);
    EXPECT_DOUBLE_EQ(0.625, shd_schedule_lr(&s, 60)) << "half way";
    EXPECT_DOUBLE_EQ(0.25, shd_schedule_lr(&s, 110));
    EXPECT_EQ(0.25, shd_schedule_lr(&s, 111)) << "and stays there";
    EXPECT_EQ(0.25, shd_schedule_lr(&s, UINT64_MAX));
    s.kind = SHD_SCHEDULE_LINEAR;
    EXPECT_DOUBLE_EQ(0.625, shd_schedule_lr(&s, 60));
    EXPECT_DOUBLE_EQ(0.25, shd_schedule_lr(&s, 110));
    s.kind = SHD_SCHEDULE_WSD;
    EXPECT_EQ(1.0, shd_schedule_lr(&s, 70)) << "stable to here";
    EXPECT_DOUBLE_EQ(0.625, shd_schedule_lr(&s, 90)) << "half way down";
    EXPECT_DOUBLE_EQ(0.25, shd_schedule_lr(&s, 110));
    s.kind = SHD_SCHEDULE_INVERSE_SQRT;
    EXPECT_DOUBLE_EQ(0.5, shd_schedule_lr(&s, 40)) << "a quarter of the steps, half the rate";
    EXPECT_DOUBLE_EQ(0.1, shd_schedule_lr(&s, 1000)) << "without an end";
    s.kind = SHD_SCHEDULE_CONSTANT;
    EXPECT_EQ(0.5, shd_schedule_lr(&s, 5));
    EXPECT_EQ(1.0, shd_schedule_lr(&s, 11));
    EXPECT_EQ(1.0, shd_schedule_lr(&s, 1000));
}

TEST(Lr, NeverRisesAfterWarmUp)
{
    for (shd_schedule_kind kind :
         {SHD_SCHEDULE_COSINE, SHD_SCHEDULE_LINEAR, SHD_SCHEDULE_WSD, SHD_SCHEDULE_INVERSE_SQRT}) {
        const shd_schedule s = {kind, 1e-3, 1e-5, 20, 1000, 980};
        for (uint64_t step = 20; step < 1000; step++) {
            EXPECT_GT(shd_schedule_lr(&s, step), shd_schedule_lr(&s, step + 1));
        }
    }
}

TEST(Lr, WarmUpOfAllSteps)
{
    for (shd_schedule_kind kind :
         {SHD_SCHEDULE_COSINE, SHD_SCHEDULE_LINEAR, SHD_SCHEDULE_CONSTANT}) {
        const shd_schedule s = {kind, 2.0, 0.5, 8, 8, 0};
        for (uint64_t step = 1; step <= 8; step++) {
            EXPECT_EQ(2.0 * static_cast<double>(step) / 8, shd_schedule_lr(&s, step));
        }
        EXPECT_EQ(kind == SHD_SCHEDULE_CONSTANT ? 2.0 : 0.5, shd_schedule_lr(&s, 9));
    }
}

TEST(Lr, OneStepAndNoEnd)
{
    const shd_schedule one = {SHD_SCHEDULE_COSINE, 2.0, 0.5, 0, 1, 0};
    EXPECT_EQ(0.5, shd_schedule_lr(&one, 1));
    const shd_schedule endless = {SHD_SCHEDULE_CONSTANT, 2.0, 0.5, 4, 0, 0};
    EXPECT_EQ(0.5, shd_schedule_lr(&endless, 1));
    EXPECT_EQ(2.0, shd_schedule_lr(&endless, 4));
    EXPECT_EQ(2.0, shd_schedule_lr(&endless, UINT64_C(1) << 40));
}

} // namespace

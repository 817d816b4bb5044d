// Loss scaling against DeepSpeed's rules, written down once more.
#include "daemon/optim/scaler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

namespace
{

shd_scaler_config Config(uint32_t power, uint32_t window, uint32_t hysteresis, double least)
{
    shd_scaler_config c = {};
    c.enabled = 1;
    c.initial_scale_power = power;
    c.loss_scale_window = window;
    c.hysteresis = hysteresis;
    c.min_loss_scale = least;
    return c;
}

TEST(Scaler, OffAndStaticNeverChange)
{
    shd_scaler_config c = {};
    shd_scaler s;
    shd_scaler_init(&s, &c);
    EXPECT_EQ(0.0, s.scale);
    EXPECT_EQ(0, shd_scaler_update(&s, 1, nullptr));
    EXPECT_EQ(0.0, s.scale);
    c.enabled = 1;
    c.loss_scale = 128;
    shd_scaler_init(&s, &c);
    for (int i = 0; i < 5000; i++) {
        EXPECT_EQ(0, shd_scaler_update(&s, i % 2, nullptr));
        ASSERT_EQ(128.0, s.scale);
    }
}

TEST(Scaler, DoublesAfterEveryWindowOfGoodSteps)
{
    const shd_scaler_config c = Config(4, 3, 1, 1);
    shd_scaler s;
    shd_scaler_init(&s, &c);
    const double want[] = {16, 16, 32, 32, 32, 64, 64, 64, 128};
    for (double scale : want) {
        EXPECT_EQ(0, shd_scaler_update(&s, 0, nullptr));
        EXPECT_EQ(scale, s.scale);
    }
    EXPECT_EQ(0, shd_scaler_update(&s, 1, nullptr));
    EXPECT_EQ(64.0, s.scale) << "halves at once with a hysteresis of 1";
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(0, shd_scaler_update(&s, 0, nullptr));
        EXPECT_EQ(64.0, s.scale) << "the window starts anew";
    }
    EXPECT_EQ(0, shd_scaler_update(&s, 0, nullptr));
    EXPECT_EQ(128.0, s.scale);
}

TEST(Scaler, HysteresisIsUsedUpOnceAndFilledWhenTheScaleGrows)
{
    const shd_scaler_config c = Config(10, 4, 3, 1);
    shd_scaler s;
    shd_scaler_init(&s, &c);
    const struct {
        int overflow;
        double scale;
    } steps[] = {
        {1, 1024}, {1, 1024}, {1, 512}, {1, 256}, // no credit left: each one halves
        {0, 256},  {0, 256},  {0, 256}, {1, 128}, // a good step in between gives none back
        {0, 128},  {0, 128},  {0, 128}, {0, 256}, // the window is full: doubled, credit back
        {1, 256},  {1, 256},  {1, 128},
    };
    for (const auto &step : steps) {
        EXPECT_EQ(0, shd_scaler_update(&s, step.overflow, nullptr));
        EXPECT_EQ(step.scale, s.scale) << &step - steps;
    }
}

TEST(Scaler, AnOverflowAtTheFloorFails)
{
    const shd_scaler_config c = Config(2, 1000, 2, 1.5);
    shd_scaler s;
    shd_scaler_init(&s, &c);
    EXPECT_EQ(0, shd_scaler_update(&s, 1, nullptr));
    EXPECT_EQ(4.0, s.scale);
    EXPECT_EQ(0, shd_scaler_update(&s, 1, nullptr));
    EXPECT_EQ(2.0, s.scale);
    EXPECT_EQ(0, shd_scaler_update(&s, 1, nullptr));
    EXPECT_EQ(1.5, s.scale) << "the floor, not half";
    shd_error err = {};
    EXPECT_EQ(SHD_ENONFINITE, shd_scaler_update(&s, 1, &err));
    for (const char *part : {"--min-loss-scale 1.5", "overflow", "bf16"}) {
        EXPECT_NE(std::string::npos, std::string(err.message).find(part)) << err.message;
    }
}

// DeepSpeed's variables under their own names, over random histories.
TEST(Scaler, FollowsTheReferenceOverRandomHistories)
{
    std::mt19937 random(3);
    for (int run = 0; run < 200; run++) {
        const shd_scaler_config c = Config(random() % 20, 1 + random() % 6, 1 + random() % 4, 1.0);
        shd_scaler s;
        shd_scaler_init(&s, &c);
        double cur_scale = std::pow(2.0, c.initial_scale_power);
        int64_t cur_iter = 0, last_overflow_iter = -1;
        uint32_t cur_hysteresis = c.hysteresis;
        for (int i = 0; i < 200; i++) {
            const bool overflow = random() % 5 == 0;
            bool raise = false;
            if (overflow) {
                if (c.hysteresis == 1 || cur_hysteresis == 1) {
                    raise = cur_scale == c.min_loss_scale;
                    cur_scale = std::max(cur_scale / 2, c.min_loss_scale);
                } else {
                    cur_hysteresis -= 1;
                }
                last_overflow_iter = cur_iter;
            } else if ((cur_iter - last_overflow_iter) % c.loss_scale_window == 0) {
                cur_hysteresis = c.hysteresis;
                cur_scale *= 2;
            }
            cur_iter += 1;
            ASSERT_EQ(raise ? SHD_ENONFINITE : 0, shd_scaler_update(&s, overflow, nullptr));
            if (raise) {
                break;
            }
            ASSERT_EQ(std::min(cur_scale, 0x1p100), s.scale);
            if (cur_scale > 0x1p99) {
                break;
            }
        }
    }
}

} // namespace

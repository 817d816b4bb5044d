#include "client/progress.h"

#include <string>

#include "client/units.h"
#include "gtest/gtest.h"

static Shard__V1__StepResult result(uint64_t step)
{
    Shard__V1__StepResult r = SHARD__V1__STEP_RESULT__INIT;
    r.step = step;
    r.loss = 2.34567;
    r.grad_norm = 0.5123;
    r.lr = 3e-4;
    r.tokens_per_s = 12345;
    return r;
}

static std::string plain(const Shard__V1__StepResult &r, uint64_t total, double eta)
{
    shc_buf buf{};
    shc_progress_plain(&buf, &r, total, eta);
    std::string out = shc_buf_str(&buf);
    shc_buf_fini(&buf);
    return out;
}

static std::string bar(const Shard__V1__StepResult &r, uint64_t total, double eta, int width,
                       int utf8 = 0)
{
    shc_term term{};
    term.width = width;
    term.utf8 = utf8;
    shc_buf buf{};
    shc_progress_bar(&buf, &r, total, eta, &term);
    std::string out = shc_buf_str(&buf);
    shc_buf_fini(&buf);
    return out;
}

TEST(Progress, PlainLine)
{
    EXPECT_EQ(
        plain(result(12), 300, 83),
        "step 12/300  loss 2.3457  grad norm 0.512  lr 3.00e-04  12.3k tokens/s  ETA 0:01:23");
    EXPECT_EQ(plain(result(12), 0, -1),
              "step 12  loss 2.3457  grad norm 0.512  lr 3.00e-04  12.3k tokens/s");
    Shard__V1__StepResult skipped = result(3);
    skipped.skipped = 1;
    EXPECT_NE(plain(skipped, 0, -1).find("  skipped: gradient not finite"), std::string::npos);
}

TEST(Progress, BarLine)
{
    EXPECT_EQ(bar(result(150), 300, 83, 120),
              "[###############...............]  step 150/300  loss 2.3457  norm 0.512  lr 3.00e-04"
              "  12.3k tokens/s  ETA 0:01:23");
    EXPECT_EQ(bar(result(150), 0, -1, 120),
              "step 150  loss 2.3457  norm 0.512  lr 3.00e-04  12.3k tokens/s");
}

TEST(Progress, BarLineFitsEveryWidth)
{
    for (int width = 12; width < 200; width++)
        for (int utf8 = 0; utf8 < 2; utf8++) {
            const std::string line = bar(result(150), 300, 83, width, utf8);
            EXPECT_LT(shc_text_width(line.c_str()), static_cast<size_t>(width)) << line;
        }
    EXPECT_EQ(bar(result(150), 300, 83, 30), "step 150/300  loss 2.3457");
}

TEST(Progress, BarFills)
{
    shc_term term{};
    auto cells = [&](double share) {
        shc_buf buf{};
        shc_bar(&buf, share, 4, &term);
        std::string out = shc_buf_str(&buf);
        shc_buf_fini(&buf);
        return out;
    };
    EXPECT_EQ(cells(0), "[....]");
    EXPECT_EQ(cells(0.5), "[##..]");
    EXPECT_EQ(cells(1), "[####]");
    EXPECT_EQ(cells(7), "[####]");
    EXPECT_EQ(cells(-1), "[....]");
    EXPECT_EQ(cells(0.0 / 0.0), "[....]");
    term.utf8 = 1;
    EXPECT_EQ(shc_text_width(cells(0.3).c_str()), 6u);
}

TEST(Rhythm, FewStepsAllShow)
{
    shc_rhythm r{};
    for (uint64_t step = 1; step <= 50; step++)
        EXPECT_TRUE(shc_rhythm_due(&r, step, 50, 0.0));
}

TEST(Rhythm, ManyStepsOneASecondOrEachPercent)
{
    shc_rhythm slow{};
    int shown = 0;
    for (uint64_t step = 1; step <= 1000; step++) // 100 a second, 1000 of a million
        shown += shc_rhythm_due(&slow, step, 1000000, static_cast<double>(step) / 100);
    EXPECT_EQ(shown, 10);

    shc_rhythm fast{};
    shown = 0;
    for (uint64_t step = 1; step <= 10000; step++) // all at once: history
        shown += shc_rhythm_due(&fast, step, 10000, 5.0);
    EXPECT_EQ(shown, 101);
    EXPECT_EQ(fast.step, 10000u);

    shc_rhythm endless{};
    EXPECT_TRUE(shc_rhythm_due(&endless, 1, 0, 0));
    EXPECT_FALSE(shc_rhythm_due(&endless, 2, 0, 0.5));
    EXPECT_TRUE(shc_rhythm_due(&endless, 3, 0, 1.0));
}

TEST(Rate, UsesStepTimeForHistoryAndArrivalForSharedRanks)
{
    shc_rate history{};
    EXPECT_EQ(shc_rate_eta(&history, 100), -1);
    for (uint64_t step = 1; step <= 50; step++)
        shc_rate_add(&history, step, 100, 7.0); // all at once, each took 0.1 s
    EXPECT_NEAR(shc_rate_eta(&history, 100), 5.0, 1e-9);

    shc_rate shared{};
    for (uint64_t step = 1; step <= 200; step++)
        shc_rate_add(&shared, step, 100, static_cast<double>(step) * 0.3); // other jobs between
    EXPECT_NEAR(shc_rate_eta(&shared, 300), 30.0, 1e-6);
    EXPECT_EQ(shc_rate_eta(&shared, 200), 0);
    EXPECT_EQ(shc_rate_eta(&shared, 100), -1);
}

TEST(Preparing, TextAndBar)
{
    Shard__V1__Progress p = SHARD__V1__PROGRESS__INIT;
    const shc_term wide{true, false, true, 100, 40}, narrow{true, false, false, 45, 40};
    shc_buf out{};
    p.what = const_cast<char *>("tokenizing");
    p.done = 5 << 20;
    p.total = 20 << 20;
    EXPECT_EQ(shc_preparing_share(&p), 0.25);
    shc_preparing_plain(&out, &p);
    EXPECT_STREQ(shc_buf_str(&out), "tokenizing 5.0 MiB of 20.0 MiB (25%)");
    shc_buf_clear(&out);
    shc_preparing_bar(&out, &p, &wide);
    EXPECT_NE(std::string(shc_buf_str(&out)).find("tokenizing 5.0 MiB of 20.0 MiB (25%)"),
              std::string::npos);
    EXPECT_NE(std::string(shc_buf_str(&out)).find("\xE2\x96\x88"), std::string::npos);
    shc_buf_clear(&out);
    shc_preparing_bar(&out, &p, &narrow); // no room for a bar
    EXPECT_STREQ(shc_buf_str(&out), "tokenizing 5.0 MiB of 20.0 MiB (25%)");
    shc_buf_clear(&out);
    p.done = 25 << 20; // never beyond all of it
    EXPECT_EQ(shc_preparing_share(&p), 1);
    p.what = const_cast<char *>("");
    p.done = 17;
    p.total = 0;
    shc_preparing_plain(&out, &p);
    EXPECT_STREQ(shc_buf_str(&out), "preparing 17 B");
    shc_buf_fini(&out);
}

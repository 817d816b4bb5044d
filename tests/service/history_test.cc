#include "daemon/service/history.h"

#include <gtest/gtest.h>

#include <string>

static shd_event step_event(uint64_t step)
{
    shd_event e{};
    e.kind = SHD_EVENT_STEP;
    e.step = step;
    e.result.loss = (double)step;
    return e;
}

TEST(History, KeepsEventsInOrderAndFindsSteps)
{
    EXPECT_LE(sizeof(shd_event), 80u);
    shd_history *h = shd_history_create(100000);
    char reason[] = "why";
    shd_event e{};
    e.kind = SHD_EVENT_STATE;
    e.change.reason = reason;
    shd_history_append(h, &e);
    reason[0] = 'X'; // it was copied
    for (uint64_t s = 1; s <= 5000; s++) {
        e = step_event(s);
        shd_history_append(h, &e);
        if (s % 10 == 0) {
            e.kind = SHD_EVENT_EVAL;
            e.eval.loss = 1;
            shd_history_append(h, &e);
        }
    }
    EXPECT_EQ(shd_history_first(h), 0u);
    EXPECT_EQ(shd_history_end(h), 5501u);
    EXPECT_STREQ(shd_history_get(h, 0)->change.reason, "why");
    uint64_t index;
    for (uint64_t s = 1; s <= 5000; s++) {
        ASSERT_EQ(shd_history_seek(h, s, &index, nullptr), 0);
        ASSERT_EQ(shd_history_get(h, index)->step, s);
        ASSERT_EQ(shd_history_get(h, index)->kind, SHD_EVENT_STEP);
        ASSERT_LT(shd_history_get(h, index - 1)->step, s);
    }
    ASSERT_EQ(shd_history_seek(h, 0, &index, nullptr), 0);
    EXPECT_EQ(index, 0u);
    ASSERT_EQ(shd_history_seek(h, 5001, &index, nullptr), 0);
    EXPECT_EQ(index, 5501u);
    shd_history_free(h);
}

TEST(History, DropsTheOldestAndSaysSo)
{
    shd_history *h = shd_history_create(1000);
    shd_event e;
    for (uint64_t s = 1; s <= 100000; s++) {
        e = step_event(s);
        shd_history_append(h, &e);
    }
    const uint64_t first = shd_history_first(h);
    EXPECT_EQ(shd_history_end(h), 100000u);
    EXPECT_GE(100000 - first, 1000u) << "what was promised is kept";
    EXPECT_LE(100000 - first, 1000u + 256);
    EXPECT_LE(shd_history_bytes(h), 2u * 1256 * 80);
    uint64_t index;
    shd_error err;
    EXPECT_EQ(shd_history_seek(h, first, &index, &err), SHD_ENOTFOUND);
    EXPECT_NE(std::string(err.message).find(std::to_string(first + 1)), std::string::npos)
        << err.message;
    ASSERT_EQ(shd_history_seek(h, first + 1, &index, &err), 0);
    EXPECT_EQ(index, first);
    EXPECT_EQ(shd_history_get(h, index)->step, first + 1);
    shd_history_free(h);
    shd_history_free(nullptr);
}

TEST(History, StateChangesWithoutEndTakeNoMemoryWithoutEnd)
{
    shd_history *h = shd_history_create(1000000);
    shd_event e = step_event(1);
    shd_history_append(h, &e);
    char reason[] = "why";
    e = shd_event{};
    e.step = 1;
    e.kind = SHD_EVENT_STATE;
    e.change.reason = reason;
    uint64_t bytes = 0;
    for (uint64_t i = 1; i <= 10 * SHD_HISTORY_STATES; i++) {
        shd_history_append(h, &e);
        if (i == 2 * SHD_HISTORY_STATES) {
            bytes = shd_history_bytes(h);
        }
    }
    EXPECT_EQ(shd_history_bytes(h), bytes);
    const uint64_t kept = shd_history_end(h) - shd_history_first(h);
    EXPECT_GE(kept, SHD_HISTORY_STATES - 256);
    EXPECT_LE(kept, SHD_HISTORY_STATES + 256);
    shd_history_free(h);
}

#include "daemon/service/answers.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

static void put(shd_answers *a, uint64_t seq, size_t size)
{
    auto *data = (uint8_t *)malloc(size);
    memset(data, (int)seq, size);
    shd_answers_put(a, seq, 1, nullptr, data, size);
}

TEST(Answers, KeepsTheLast)
{
    shd_answers *a = shd_answers_create(4, 1000);
    EXPECT_EQ(shd_answers_get(a, 1), nullptr);
    EXPECT_EQ(shd_answers_oldest(a), 0u);
    for (uint64_t seq = 1; seq <= 10; seq++) {
        put(a, seq, 10);
    }
    EXPECT_EQ(shd_answers_oldest(a), 7u);
    EXPECT_EQ(shd_answers_latest(a), 10u);
    EXPECT_EQ(shd_answers_get(a, 6), nullptr);
    EXPECT_EQ(shd_answers_get(a, 11), nullptr);
    ASSERT_NE(shd_answers_get(a, 7), nullptr);
    EXPECT_EQ(shd_answers_get(a, 7)->data[9], 7);
    shd_answers_free(a);
}

TEST(Answers, KeepsErrors)
{
    shd_answers *a = shd_answers_create(4, 1000);
    shd_error err;
    shd_fail(&err, SHD_EINVAL, "token %d", 9);
    shd_answers_put(a, 5, 2, &err, nullptr, 0);
    const shd_answer *got = shd_answers_get(a, 5);
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(got->rc, SHD_EINVAL);
    EXPECT_EQ(got->kind, 2);
    EXPECT_STREQ(got->error, "token 9");
    shd_answers_free(a);
}

TEST(Answers, BytesAreBoundedButTheLatestStays)
{
    shd_answers *a = shd_answers_create(100, 1000);
    for (uint64_t seq = 1; seq <= 10; seq++) {
        put(a, seq, 400);
    }
    EXPECT_EQ(shd_answers_oldest(a), 9u);
    put(a, 11, 5000);
    EXPECT_EQ(shd_answers_oldest(a), 11u);
    shd_answers_free(a);
    shd_answers_free(nullptr);
}

#include "daemon/service/requests.h"

#include <gtest/gtest.h>

#include <string>

TEST(Requests, RemembersTheLatestOfEachUser)
{
    shd_requests *r = shd_requests_create();
    shd_requests_put(r, 7, "first", "aaaaaaaa");
    for (unsigned i = 0; i < SHD_REQUESTS_PER_USER; i++) {
        shd_requests_put(r, 8, std::to_string(i).c_str(), "bbbbbbbb");
    }
    EXPECT_STREQ(shd_requests_get(r, 7, "first"), "aaaaaaaa") << "others cannot push it out";
    EXPECT_EQ(shd_requests_get(r, 8, "first"), nullptr);
    EXPECT_STREQ(shd_requests_get(r, 8, "0"), "bbbbbbbb");
    shd_requests_put(r, 8, "one more", "cccccccc");
    EXPECT_EQ(shd_requests_get(r, 8, "0"), nullptr);
    EXPECT_STREQ(shd_requests_get(r, 8, "1"), "bbbbbbbb");
    EXPECT_STREQ(shd_requests_get(r, 8, "one more"), "cccccccc");
    for (unsigned i = 0; i < SHD_REQUESTS_PER_USER; i++) {
        shd_requests_put(r, 7, std::to_string(i).c_str(), "dddddddd");
    }
    EXPECT_EQ(shd_requests_get(r, 7, "first"), nullptr);
    EXPECT_STREQ(shd_requests_get(r, 8, "one more"), "cccccccc");
    shd_requests_free(r);
    shd_requests_free(nullptr);
}

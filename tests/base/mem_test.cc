#include "daemon/base/mem.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace
{

TEST(Mem, CallocIsZeroAndReallocKeepsContents)
{
    char *p = static_cast<char *>(shd_calloc(3, 5));
    for (int i = 0; i < 15; i++) {
        EXPECT_EQ(0, p[i]);
        p[i] = static_cast<char>(i);
    }
    p = static_cast<char *>(shd_reallocarray(p, 100, 5));
    for (int i = 0; i < 15; i++) {
        EXPECT_EQ(i, p[i]);
    }
    free(p);
}

TEST(Mem, NothingIsStillSomething)
{
    void *a = shd_malloc(0), *b = shd_calloc(0, 8), *c = shd_reallocarray(nullptr, 0, 8);
    EXPECT_NE(nullptr, a);
    EXPECT_NE(nullptr, b);
    EXPECT_NE(nullptr, c);
    free(a);
    free(b);
    free(c);
}

TEST(Mem, Strings)
{
    char *s = shd_strdup("abc");
    char *f = shd_asprintf("%s-%d", s, 42);
    EXPECT_STREQ("abc-42", f);
    free(s);
    free(f);
}

TEST(MemDeathTest, OverflowAborts)
{
    EXPECT_DEATH(free(shd_reallocarray(nullptr, SIZE_MAX / 2, 3)), "out of memory");
}

} // namespace

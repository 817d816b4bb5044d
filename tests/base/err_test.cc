#include "daemon/base/err.h"

#include <gtest/gtest.h>

#include <string>

namespace
{

TEST(Err, FailFillsCodeAndMessage)
{
    shd_error err;
    EXPECT_EQ(SHD_EINVAL, shd_fail(&err, SHD_EINVAL, "rank %d of %d\nis wrong", 3, 2));
    EXPECT_EQ(SHD_EINVAL, err.code);
    EXPECT_STREQ("rank 3 of 2 is wrong", err.message);
}

TEST(Err, NullErrorIsAllowed)
{
    EXPECT_EQ(SHD_EIO, shd_fail(nullptr, SHD_EIO, "x"));
    EXPECT_EQ(SHD_EIO, shd_error_prefix(nullptr, SHD_EIO, "y"));
}

TEST(Err, LongMessageIsCutAndTerminated)
{
    shd_error err;
    shd_fail(&err, SHD_EDATA, "%s", std::string(2000, 'a').c_str());
    EXPECT_EQ(std::string(SHD_ERROR_MESSAGE_MAX - 1, 'a'), err.message);
}

TEST(Err, PrefixKeepsTheCodeAndCutsTheEnd)
{
    shd_error err;
    shd_fail(&err, SHD_EDATA, "token 300 is not below 256");
    EXPECT_EQ(SHD_EDATA, shd_error_prefix(&err, SHD_EDATA, "file %s", "a.bin"));
    EXPECT_STREQ("file a.bin: token 300 is not below 256", err.message);

    shd_fail(&err, SHD_EDATA, "%s", std::string(511, 'b').c_str());
    shd_error_prefix(&err, SHD_EDATA, "context");
    EXPECT_EQ("context: " + std::string(511 - 9, 'b'), err.message);

    shd_fail(&err, SHD_EDATA, "tail");
    shd_error_prefix(&err, SHD_EDATA, "%s", std::string(509, 'c').c_str());
    EXPECT_EQ(std::string(509, 'c') + ": ", err.message);
}

TEST(Err, NamesArePinned)
{
    EXPECT_STREQ("OK", shd_err_name(0));
    EXPECT_STREQ("EINVAL", shd_err_name(SHD_EINVAL));
    EXPECT_STREQ("ENOTFOUND", shd_err_name(SHD_ENOTFOUND));
    EXPECT_STREQ("EEXIST", shd_err_name(SHD_EEXIST));
    EXPECT_STREQ("EPERM", shd_err_name(SHD_EPERM));
    EXPECT_STREQ("ESTATE", shd_err_name(SHD_ESTATE));
    EXPECT_STREQ("EFULL", shd_err_name(SHD_EFULL));
    EXPECT_STREQ("ENOMEM", shd_err_name(SHD_ENOMEM));
    EXPECT_STREQ("EUNSUPPORTED", shd_err_name(SHD_EUNSUPPORTED));
    EXPECT_STREQ("EIO", shd_err_name(SHD_EIO));
    EXPECT_STREQ("EDATA", shd_err_name(SHD_EDATA));
    EXPECT_STREQ("ECOMM", shd_err_name(SHD_ECOMM));
    EXPECT_STREQ("ECANCELLED", shd_err_name(SHD_ECANCELLED));
    EXPECT_STREQ("ETIMEOUT", shd_err_name(SHD_ETIMEOUT));
    EXPECT_STREQ("ENONFINITE", shd_err_name(SHD_ENONFINITE));
    EXPECT_STREQ("ESEQUENCE", shd_err_name(SHD_ESEQUENCE));
    EXPECT_STREQ("EUNAVAILABLE", shd_err_name(SHD_EUNAVAILABLE));
    EXPECT_STREQ("EINTERNAL", shd_err_name(SHD_EINTERNAL));
    EXPECT_STREQ("E?", shd_err_name(1));
    EXPECT_STREQ("E?", shd_err_name(SHD_EINTERNAL - 1));
}

int forwards(int rc, int *after)
{
    SHD_TRY(rc);
    *after = 1;
    return SHD_OK;
}

TEST(Err, TryForwardsFailuresOnly)
{
    int after = 0;
    EXPECT_EQ(SHD_EFULL, forwards(SHD_EFULL, &after));
    EXPECT_EQ(0, after);
    EXPECT_EQ(SHD_OK, forwards(SHD_OK, &after));
    EXPECT_EQ(1, after);
}

} // namespace

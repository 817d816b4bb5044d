#include "daemon/base/log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

namespace
{

/* What `body` writes to stderr, from a process of its own (the log looks at its stream once). */
std::string Stderr(bool journal, const std::function<void()> &body)
{
    int fds[2];
    if (pipe(fds) != 0) {
        return "pipe failed";
    }
    fflush(stderr);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDERR_FILENO);
        close(fds[0]);
        close(fds[1]);
        if (journal) {
            struct stat st;
            fstat(STDERR_FILENO, &st);
            const std::string stream = std::to_string(st.st_dev) + ":" + std::to_string(st.st_ino);
            setenv("JOURNAL_STREAM", stream.c_str(), 1);
        } else {
            setenv("JOURNAL_STREAM", "1:1", 1); /* of a parent; not this stream */
        }
        body();
        _exit(0);
    }
    close(fds[1]);
    std::string text;
    char buffer[4096];
    ssize_t n;
    while ((n = read(fds[0], buffer, sizeof(buffer))) > 0) {
        text.append(buffer, static_cast<size_t>(n));
    }
    close(fds[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return text;
}

TEST(Log, JournalLinesCarryTheirPriority)
{
    EXPECT_EQ("<3>disk 7 is full\n<5>ready\n", Stderr(true, [] {
                  shd_log(SHD_LOG_ERROR, "disk %d is full", 7);
                  shd_log(SHD_LOG_NOTICE, "ready");
              }));
}

TEST(Log, OtherStreamsCarryTimeAndLevel)
{
    const std::string line = Stderr(false, [] { shd_log(SHD_LOG_WARNING, "slow"); });
    ASSERT_EQ(std::string("12:34:56.789 warning slow\n").size(), line.size()) << line;
    EXPECT_EQ(" warning slow\n", line.substr(12));
    EXPECT_EQ(':', line[2]);
    EXPECT_EQ('.', line[8]);
}

TEST(Log, LevelsAboveTheLimitAreDropped)
{
    EXPECT_EQ("<6>seen\n", Stderr(true, [] {
                  shd_log(SHD_LOG_INFO, "seen");
                  shd_log(SHD_LOG_DEBUG, "not seen");
              }));
    EXPECT_EQ("<3>seen\n", Stderr(true, [] {
                  shd_log_set_level(SHD_LOG_ERROR);
                  shd_log(SHD_LOG_WARNING, "not seen");
                  shd_log(SHD_LOG_ERROR, "seen");
              }));
}

TEST(Log, ControlCharactersCannotForgeALine)
{
    EXPECT_EQ("<6>a?<3>b?c?\n", Stderr(true, [] {
                  shd_log(SHD_LOG_INFO, "a\n<3>b\x1b"
                                        "c\x7f");
              }));
}

TEST(Log, LongLinesAreWhole)
{
    const std::string text(5000, 'x');
    EXPECT_EQ("<6>" + text + "\n",
              Stderr(true, [&] { shd_log(SHD_LOG_INFO, "%s", text.c_str()); }));
    for (size_t n = 1015; n < 1026; n++) { /* around the size of the inner buffer */
        const std::string s(n, 'y');
        EXPECT_EQ("<6>" + s + "\n", Stderr(true, [&] { shd_log(SHD_LOG_INFO, "%s", s.c_str()); }));
    }
}

TEST(Log, ParsesLevels)
{
    shd_log_level level = SHD_LOG_INFO;
    shd_error err;
    EXPECT_EQ(SHD_OK, shd_log_level_parse("error", &level, &err));
    EXPECT_EQ(SHD_LOG_ERROR, level);
    EXPECT_EQ(SHD_OK, shd_log_level_parse("debug", &level, &err));
    EXPECT_EQ(SHD_LOG_DEBUG, level);
    EXPECT_EQ(SHD_EINVAL, shd_log_level_parse("loud", &level, &err));
    EXPECT_STREQ("unknown log level 'loud'; use error, warning, notice, info or debug",
                 err.message);
    EXPECT_EQ(SHD_LOG_DEBUG, level);
}

} // namespace

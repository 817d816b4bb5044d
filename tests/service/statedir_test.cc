#include "daemon/service/statedir.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace
{

class StateDir : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        char name[] = "/tmp/shd-state-test-XXXXXX";
        base = mkdtemp(name);
        path = base + "/state";
    }
    void TearDown() override
    {
        ASSERT_EQ(system(("rm -rf " + base).c_str()), 0);
    }
    std::string base, path;
    shd_statedir *dir = nullptr;
    shd_error err;
};

TEST_F(StateDir, IsMadeAndLocked)
{
    ASSERT_EQ(shd_statedir_open(path.c_str(), &dir, &err), 0) << err.message;
    struct stat st;
    ASSERT_EQ(stat(path.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 07777, 0700u);
    int pid = 0;
    std::ifstream(path + "/lock") >> pid;
    EXPECT_EQ(pid, getpid());
    struct stat held;
    ASSERT_EQ(fstat(shd_statedir_fd(dir), &held), 0);
    EXPECT_EQ(held.st_ino, st.st_ino);

    shd_statedir *second = nullptr;
    EXPECT_EQ(shd_statedir_open(path.c_str(), &second, &err), SHD_EEXIST);
    EXPECT_NE(std::string(err.message).find("pid " + std::to_string(getpid())), std::string::npos)
        << err.message;
    EXPECT_NE(std::string(err.message).find(path), std::string::npos) << err.message;
    shd_statedir_free(dir);
    ASSERT_EQ(shd_statedir_open(path.c_str(), &dir, &err), 0) << err.message;
    shd_statedir_free(dir);
    shd_statedir_free(nullptr);
}

TEST_F(StateDir, LockGoesWithAKilledProcess)
{
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        char byte = shd_statedir_open(path.c_str(), &dir, nullptr) == 0 ? 'y' : 'n';
        if (write(ready[1], &byte, 1) == 1) {
            pause();
        }
        _exit(0);
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    ASSERT_EQ(byte, 'y');
    EXPECT_EQ(shd_statedir_open(path.c_str(), &dir, &err), SHD_EEXIST);
    EXPECT_NE(std::string(err.message).find(std::to_string(child)), std::string::npos)
        << err.message;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    ASSERT_EQ(shd_statedir_open(path.c_str(), &dir, &err), 0) << err.message;
    shd_statedir_free(dir);
    close(ready[0]);
    close(ready[1]);
}

TEST_F(StateDir, RefusesWhatItCannotHave)
{
    EXPECT_EQ(shd_statedir_open((base + "/no/parent").c_str(), &dir, &err), SHD_EIO);
    EXPECT_NE(std::string(err.message).find("state_dir"), std::string::npos) << err.message;
    std::ofstream(base + "/file") << "x";
    EXPECT_EQ(shd_statedir_open((base + "/file").c_str(), &dir, &err), SHD_EIO) << err.message;
    ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
    ASSERT_EQ(chmod(path.c_str(), 0777), 0);
    EXPECT_EQ(shd_statedir_open(path.c_str(), &dir, &err), SHD_EPERM);
    EXPECT_NE(std::string(err.message).find("chmod"), std::string::npos) << err.message;
    ASSERT_EQ(chmod(path.c_str(), 0700), 0);
    ASSERT_EQ(symlink("/etc/passwd", (path + "/lock").c_str()), 0);
    EXPECT_EQ(shd_statedir_open(path.c_str(), &dir, &err), SHD_EIO) << "the lock is a link";
}

TEST_F(StateDir, ReadOnlyFileSystem)
{
    if (getuid() != 0) {
        GTEST_SKIP() << "mounts a file system; run it as root";
    }
    ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
    const pid_t child = fork();
    if (child == 0) { // in a mount namespace of its own
        if (unshare(CLONE_NEWNS) != 0 ||
            mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            mount("tmpfs", path.c_str(), "tmpfs", MS_RDONLY, "mode=0700") != 0) {
            _exit(3);
        }
        const int rc = shd_statedir_open(path.c_str(), &dir, &err);
        const bool says = std::string(err.message).find("Read-only") != std::string::npos;
        _exit(rc == SHD_EIO && says ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    if (WEXITSTATUS(status) == 3) {
        GTEST_SKIP() << "no mount namespaces here";
    }
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(StateDir, SomebodyElsesIsRefused)
{
    if (geteuid() != 0) {
        GTEST_SKIP() << "only root can make one";
    }
    ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
    ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
    EXPECT_EQ(shd_statedir_open(path.c_str(), &dir, &err), SHD_EPERM);
    EXPECT_NE(std::string(err.message).find("uid 12345"), std::string::npos) << err.message;
}

} // namespace

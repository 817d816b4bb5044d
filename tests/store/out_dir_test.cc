// A directory appears whole, with the right owner, or not at all.
#include "daemon/store/out_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>

#include "tests/store/files.h"

namespace
{

constexpr uid_t kCaller = 61001, kDaemon = 61002;

class OutDir : public ::testing::Test
{
  protected:
    int Parent()
    {
        return open(dir_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    shd_out_dir *Create(const char *name, uid_t uid, shd_error *err)
    {
        shd_out_dir *out = nullptr;
        *err = {};
        const std::string path = dir_ / name;
        const int rc = shd_out_dir_create(Parent(), path.c_str(), name, uid, uid, &out, err);
        EXPECT_TRUE(rc == 0 || rc == err->code);
        return rc == 0 ? out : nullptr;
    }
    int Entries()
    {
        int n = 0;
        DIR *dir = opendir(dir_.path().c_str());
        while (const dirent *entry = readdir(dir)) {
            n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
        }
        closedir(dir);
        return n;
    }
    struct stat Stat(const std::string &name)
    {
        struct stat st = {};
        EXPECT_EQ(lstat((dir_ / name).c_str(), &st), 0) << name;
        return st;
    }

    files::Directory dir_;
};

// Runs in a process of its own as another user; 0 is success.
int As(uid_t uid, const std::function<int()> &what)
{
    const pid_t pid = fork();
    if (pid == 0) {
        if (setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0) {
            _exit(100);
        }
        _exit(what());
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 101;
}

TEST_F(OutDir, AppearsWhole)
{
    shd_error err;
    chmod(dir_.path().c_str(), 0755);
    shd_out_dir *out = Create("model", geteuid(), &err);
    ASSERT_NE(out, nullptr) << err.message;
    int fd = -1;
    ASSERT_EQ(shd_out_dir_write(out, "config.json", "{}", 2, &err), 0);
    ASSERT_EQ(shd_out_dir_file(out, "weights", 100, &fd, &err), 0) << err.message;
    close(fd);
    ASSERT_EQ(shd_out_dir_reopen(out, "weights", &fd, &err), 0);
    EXPECT_EQ(pwrite(fd, "abc", 3, 97), 3);
    close(fd);
    EXPECT_EQ(shd_out_dir_n(out), 2u);
    EXPECT_STREQ(shd_out_dir_name(out, 1), "weights");
    EXPECT_NE(access((dir_ / "model").c_str(), F_OK), 0);
    EXPECT_EQ(Entries(), 1);
    ASSERT_EQ(shd_out_dir_finish(out, &err), 0) << err.message;
    EXPECT_EQ(Entries(), 1);
    EXPECT_EQ(files::Read(dir_ / "model/config.json"), "{}");
    EXPECT_EQ(files::Read(dir_ / "model/weights").substr(97), "abc");
    EXPECT_EQ(Stat("model").st_mode & 07777, 0755u);
    EXPECT_EQ(Stat("model/weights").st_mode & 07777, 0644u);
}

TEST_F(OutDir, OthersReadWhatTheyMayReadAround)
{
    shd_error err;
    chmod(dir_.path().c_str(), 0710);
    shd_out_dir *out = Create("model", geteuid(), &err);
    ASSERT_NE(out, nullptr) << err.message;
    ASSERT_EQ(shd_out_dir_write(out, "a", "", 0, &err), 0);
    ASSERT_EQ(shd_out_dir_finish(out, &err), 0);
    EXPECT_EQ(Stat("model").st_mode & 07777, 0710u);
    EXPECT_EQ(Stat("model/a").st_mode & 07777, 0600u);
}

TEST_F(OutDir, DiscardLeavesNothing)
{
    shd_error err;
    shd_out_dir *out = Create("model", geteuid(), &err);
    ASSERT_NE(out, nullptr);
    ASSERT_EQ(shd_out_dir_write(out, "a", "x", 1, &err), 0);
    shd_out_dir_discard(out);
    shd_out_dir_discard(nullptr);
    EXPECT_EQ(Entries(), 0);
}

// A process that is killed cannot clean up; the next one that writes there does.
TEST_F(OutDir, WhatTheDeadHaveLeftGoes)
{
    shd_error err;
    const uid_t me = geteuid();
    ASSERT_EQ(As(me,
                 [&] {
                     shd_out_dir *out = Create("model", me, &err);
                     const int ok =
                         out != nullptr && shd_out_dir_write(out, "weights", "abc", 3, &err) == 0;
                     return ok ? 0 : 1; // and no discard
                 }),
              0);
    EXPECT_EQ(Entries(), 1);
    shd_out_dir *living = Create("other", me, &err);
    ASSERT_NE(living, nullptr) << err.message;
    EXPECT_EQ(Entries(), 1); // the living one's
    ASSERT_EQ(shd_out_dir_write(living, "a", "x", 1, &err), 0);
    shd_out_dir *second = Create("third", me, &err);
    ASSERT_NE(second, nullptr) << err.message;
    EXPECT_EQ(Entries(), 2);
    EXPECT_EQ(shd_out_dir_finish(living, &err), 0) << err.message;
    EXPECT_EQ(files::Read(dir_ / "other/a"), "x");
    EXPECT_NE(access((dir_ / "other/.shardd-writes-here").c_str(), F_OK), 0);
    shd_out_dir_discard(second);
    EXPECT_EQ(Entries(), 1);
}

TEST_F(OutDir, WhatOnlyLooksLikeALeftOverStays)
{
    shd_error err;
    const std::string name = ".x.shardd-0123456789abcdef";
    const auto make = [&](const std::string &dir, mode_t mode) {
        ASSERT_EQ(mkdir((dir_ / dir).c_str(), mode), 0);
        ASSERT_EQ(chmod((dir_ / dir).c_str(), mode), 0);
        files::Write(dir_ / (dir + "/data"), "precious");
    };
    make(name, 0700); // not marked
    make(".y.shardd-0123456789abcdef", 0750);
    files::Write(dir_ / ".y.shardd-0123456789abcdef/.shardd-writes-here", "");
    make(".z.shardd-0123456789abcdef", 0700); // holds a directory
    files::Write(dir_ / ".z.shardd-0123456789abcdef/.shardd-writes-here", "");
    mkdir((dir_ / ".z.shardd-0123456789abcdef/inner").c_str(), 0700);
    make("z.shardd-0123456789abcdef", 0700);
    files::Write(dir_ / "z.shardd-0123456789abcdef/.shardd-writes-here", "");
    make(".z.shardd-0123456789abcdeg", 0700);
    files::Write(dir_ / ".z.shardd-0123456789abcdeg/.shardd-writes-here", "");
    if (geteuid() == 0) {
        make(".w.shardd-0123456789abcdef", 0700);
        files::Write(dir_ / ".w.shardd-0123456789abcdef/.shardd-writes-here", "");
        ASSERT_EQ(chown((dir_ / ".w.shardd-0123456789abcdef").c_str(), kCaller, kCaller), 0);
    }
    const int before = Entries();
    shd_out_dir *out = Create("model", geteuid(), &err);
    ASSERT_NE(out, nullptr) << err.message;
    EXPECT_EQ(Entries(), before + 1);
    shd_out_dir_discard(out);
    for (const char *letter : {".x", ".y", ".z", "z"}) {
        EXPECT_EQ(files::Read(dir_ / (std::string(letter) + ".shardd-0123456789abcdef/data")),
                  "precious");
    }
}

TEST_F(OutDir, WhatIsThereStays)
{
    shd_error err;
    files::Write(dir_ / "file", "mine");
    ASSERT_EQ(symlink("nowhere", (dir_ / "link").c_str()), 0);
    for (const char *name : {"file", "link"}) {
        EXPECT_EQ(Create(name, geteuid(), &err), nullptr);
        EXPECT_EQ(err.code, SHD_EEXIST);
        EXPECT_NE(strstr(err.message, "exists already"), nullptr) << err.message;
    }
    EXPECT_EQ(Entries(), 2);
}

TEST_F(OutDir, WhatCameMeanwhileStays)
{
    shd_error err;
    shd_out_dir *out = Create("model", geteuid(), &err);
    ASSERT_NE(out, nullptr);
    ASSERT_EQ(shd_out_dir_write(out, "a", "x", 1, &err), 0);
    ASSERT_EQ(mkdir((dir_ / "model").c_str(), 0755), 0);
    EXPECT_EQ(shd_out_dir_finish(out, &err), SHD_EEXIST);
    EXPECT_EQ(Entries(), 1);
    EXPECT_NE(access((dir_ / "model/a").c_str(), F_OK), 0);
}

TEST_F(OutDir, AFileTwiceIsAnError)
{
    shd_error err;
    shd_out_dir *out = Create("model", geteuid(), &err);
    ASSERT_NE(out, nullptr);
    ASSERT_EQ(shd_out_dir_write(out, "a", "x", 1, &err), 0);
    EXPECT_EQ(shd_out_dir_write(out, "a", "y", 1, &err), SHD_EIO);
    EXPECT_NE(strstr(err.message, "/model/a': File exists"), nullptr) << err.message;
    shd_out_dir_discard(out);
}

TEST_F(OutDir, ALongNameIsFine)
{
    shd_error err;
    const std::string name(255, 'n');
    shd_out_dir *out = Create(name.c_str(), geteuid(), &err);
    ASSERT_NE(out, nullptr) << err.message;
    EXPECT_EQ(shd_out_dir_finish(out, &err), 0) << err.message;
    EXPECT_EQ(access((dir_ / name).c_str(), F_OK), 0);
}

TEST_F(OutDir, RootGivesItAway)
{
    ASSERT_EQ(geteuid(), 0u) << "needs root";
    shd_error err;
    shd_out_dir *out = Create("model", kCaller, &err);
    ASSERT_NE(out, nullptr) << err.message;
    ASSERT_EQ(shd_out_dir_write(out, "a", "x", 1, &err), 0);
    ASSERT_EQ(shd_out_dir_finish(out, &err), 0) << err.message;
    for (const char *name : {"model", "model/a"}) {
        EXPECT_EQ(Stat(name).st_uid, kCaller);
        EXPECT_EQ(Stat(name).st_gid, kCaller);
    }
}

TEST_F(OutDir, OfASharedDirectoryItHasTheGroup)
{
    ASSERT_EQ(geteuid(), 0u) << "needs root";
    shd_error err;
    ASSERT_EQ(chown(dir_.path().c_str(), 0, 61009), 0);
    ASSERT_EQ(chmod(dir_.path().c_str(), 02775), 0);
    shd_out_dir *out = Create("model", kCaller, &err);
    ASSERT_NE(out, nullptr) << err.message;
    ASSERT_EQ(shd_out_dir_write(out, "a", "x", 1, &err), 0);
    ASSERT_EQ(shd_out_dir_finish(out, &err), 0) << err.message;
    EXPECT_EQ(Stat("model/a").st_gid, 61009u);
}

// A daemon without privileges cannot give files away: an access list lets the caller have them.
TEST_F(OutDir, WithoutPrivilegesByAnAccessList)
{
    ASSERT_EQ(geteuid(), 0u) << "needs root";
    ASSERT_EQ(chmod(dir_.path().c_str(), 0777), 0);
    const std::string model = dir_ / "model", file = dir_ / "model/a";
    ASSERT_EQ(As(kDaemon,
                 [&] {
                     shd_error err;
                     shd_out_dir *out = Create("model", kCaller, &err);
                     if (out == nullptr || shd_out_dir_write(out, "a", "x", 1, &err) != 0) {
                         fprintf(stderr, "%s\n", err.message);
                         return 1;
                     }
                     return shd_out_dir_finish(out, &err) == 0 ? 0 : 2;
                 }),
              0);
    EXPECT_EQ(Stat("model").st_uid, kDaemon);
    // The caller reads, writes and removes; the permissions of others are those around it.
    EXPECT_EQ(As(kCaller,
                 [&] {
                     const int fd = open(file.c_str(), O_RDWR);
                     char c = 0;
                     const bool ok = fd >= 0 && read(fd, &c, 1) == 1 && c == 'x' &&
                                     write(fd, "y", 1) == 1 && unlink(file.c_str()) == 0;
                     return ok ? 0 : 1;
                 }),
              0);
}

TEST_F(OutDir, WithoutPrivilegesAndWithoutListsItIsRefusedAtOnce)
{
    ASSERT_EQ(geteuid(), 0u) << "needs root";
    ASSERT_EQ(mount("ramfs", dir_.path().c_str(), "ramfs", 0, ""), 0) << strerror(errno);
    ASSERT_EQ(chmod(dir_.path().c_str(), 0777), 0);
    EXPECT_EQ(As(kDaemon,
                 [&] {
                     shd_error err;
                     return Create("model", kCaller, &err) == nullptr && err.code == SHD_EPERM &&
                                    strstr(err.message, "access list") != nullptr
                                ? 0
                                : 1;
                 }),
              0);
    EXPECT_EQ(Entries(), 0);
    EXPECT_EQ(umount2(dir_.path().c_str(), MNT_DETACH), 0);
}

TEST_F(OutDir, ADirectoryThatMayNotBeWrittenIsNamed)
{
    ASSERT_EQ(geteuid(), 0u) << "needs root";
    ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
    EXPECT_EQ(As(kDaemon,
                 [&] {
                     shd_error err;
                     return Create("model", kCaller, &err) == nullptr && err.code == SHD_EPERM &&
                                    strstr(err.message, "Permission denied") != nullptr
                                ? 0
                                : 1;
                 }),
              0);
}

// A file system of a megabyte: what does not fit is told, and nothing stays.
TEST_F(OutDir, AFullDiskIsToldAndNothingStays)
{
    ASSERT_EQ(geteuid(), 0u) << "needs root";
    ASSERT_EQ(mount("tmpfs", dir_.path().c_str(), "tmpfs", 0, "size=1m"), 0) << strerror(errno);
    shd_error err;
    shd_out_dir *out = Create("model", geteuid(), &err);
    ASSERT_NE(out, nullptr) << err.message;
    ASSERT_EQ(shd_out_dir_write(out, "a", "x", 1, &err), 0);
    int fd = -1;
    EXPECT_EQ(shd_out_dir_file(out, "weights", 2 << 20, &fd, &err), SHD_EIO);
    EXPECT_NE(strstr(err.message, "No space left on device"), nullptr) << err.message;
    shd_out_dir_discard(out);
    EXPECT_EQ(Entries(), 0);
    EXPECT_EQ(umount2(dir_.path().c_str(), MNT_DETACH), 0);
}

} // namespace

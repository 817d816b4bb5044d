#include "daemon/service/auth.h"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace
{

const shd_identity kRoot = {0, 0, 1};

TEST(Auth, IdentifiesThePeer)
{
    int pair[2];
    shd_identity who;
    shd_error err;
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    ASSERT_EQ(shd_auth_identify(pair[0], &who, &err), 0) << err.message;
    EXPECT_EQ(who.uid, getuid());
    EXPECT_EQ(who.gid, getgid());
    EXPECT_EQ(who.pid, getpid());
    close(pair[0]);
    close(pair[1]);

    const int alone = socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT_EQ(shd_auth_identify(alone, &who, &err), SHD_EPERM);
    close(alone);
    EXPECT_EQ(shd_auth_identify(-1, &who, &err), SHD_EIO);
}

struct Rules {
    std::vector<uid_t> admin_uids;
    std::vector<gid_t> admin_gids, allow_gids;
    bool share = false;
    shd_auth_rules get()
    {
        return {admin_uids.data(),
                static_cast<uint32_t>(admin_uids.size()),
                admin_gids.data(),
                static_cast<uint32_t>(admin_gids.size()),
                allow_gids.data(),
                static_cast<uint32_t>(allow_gids.size()),
                share};
    }
};

TEST(Auth, AdminsAndThoseAllowed)
{
    Rules rules;
    rules.admin_uids = {4001};
    rules.admin_gids = {5001};
    shd_auth_rules r = rules.get();
    const shd_identity self = {geteuid(), getgid(), 1}, named = {4001, 4001, 1},
                       member = {4002, 5001, 1}, other = {4003, 4003, 1};
    EXPECT_TRUE(shd_auth_is_admin(&r, &kRoot));
    EXPECT_TRUE(shd_auth_is_admin(&r, &self));
    EXPECT_TRUE(shd_auth_is_admin(&r, &named));
    EXPECT_TRUE(shd_auth_is_admin(&r, &member));
    EXPECT_FALSE(shd_auth_is_admin(&r, &other));

    EXPECT_TRUE(shd_auth_may_connect(&r, &other)) << "no group is listed: everyone";
    rules.allow_gids = {6001};
    r = rules.get();
    const shd_identity allowed = {4004, 6001, 1};
    EXPECT_TRUE(shd_auth_may_connect(&r, &allowed));
    EXPECT_TRUE(shd_auth_may_connect(&r, &member));
    EXPECT_TRUE(shd_auth_may_connect(&r, &kRoot));
    EXPECT_FALSE(shd_auth_may_connect(&r, &other));
}

TEST(Auth, SupplementaryGroupsCount)
{
    // A user whom the group database adds to some group.
    setgrent();
    Rules rules;
    shd_identity who = {};
    while (const group *g = getgrent()) {
        const passwd *p = g->gr_mem[0] != nullptr ? getpwnam(g->gr_mem[0]) : nullptr;
        if (p != nullptr && p->pw_uid != 0 && p->pw_gid != g->gr_gid && p->pw_uid != geteuid()) {
            who = {p->pw_uid, p->pw_gid, 1};
            rules.admin_gids = {g->gr_gid};
            break;
        }
    }
    endgrent();
    if (rules.admin_gids.empty()) {
        GTEST_SKIP() << "no user here is in a second group";
    }
    shd_auth_rules r = rules.get();
    EXPECT_TRUE(shd_auth_is_admin(&r, &who));
}

TEST(Auth, Jobs)
{
    Rules rules;
    rules.admin_uids = {4009};
    shd_auth_rules r = rules.get();
    shd_error err;
    const shd_identity owner = {4001, 5001, 1}, mate = {4002, 5001, 1}, other = {4003, 5003, 1},
                       admin = {4009, 4009, 1};
    for (shd_right right : {SHD_RIGHT_SEE, SHD_RIGHT_USE, SHD_RIGHT_MANAGE}) {
        EXPECT_EQ(shd_auth_check_job(&r, &owner, 4001, 5001, "j", right, &err), 0);
        EXPECT_EQ(shd_auth_check_job(&r, &admin, 4001, 5001, "j", right, &err), 0);
        EXPECT_EQ(shd_auth_check_job(&r, &kRoot, 4001, 5001, "j", right, &err), 0);
        EXPECT_EQ(shd_auth_check_job(&r, &mate, 4001, 5001, "j", right, &err), SHD_ENOTFOUND);
        EXPECT_EQ(shd_auth_check_job(&r, &other, 4001, 5001, "j", right, &err), SHD_ENOTFOUND);
        EXPECT_STREQ(err.message, "no job 'j'");
    }
    rules.share = true;
    r = rules.get();
    EXPECT_EQ(shd_auth_check_job(&r, &mate, 4001, 5001, "j", SHD_RIGHT_SEE, &err), 0);
    EXPECT_EQ(shd_auth_check_job(&r, &mate, 4001, 5001, "j", SHD_RIGHT_USE, &err), SHD_EPERM);
    EXPECT_EQ(shd_auth_check_job(&r, &mate, 4001, 5001, "j", SHD_RIGHT_MANAGE, &err), SHD_EPERM);
    EXPECT_EQ(shd_auth_check_job(&r, &other, 4001, 5001, "j", SHD_RIGHT_SEE, &err), SHD_ENOTFOUND);
}

// A tree under one root: files and directories of several owners and modes.
class Open : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        if (getuid() != 0) {
            GTEST_SKIP() << "gives files to other users; run it as root";
        }
        char dir[] = "/tmp/shd-auth-test-XXXXXX";
        base = mkdtemp(dir);
        chmod(base.c_str(), 0755);
        root = base + "/root";
        directory("/root", 0755, 0, 0);
        file("/root/open", 0644, 0, 0);
        file("/outside", 0644, 0, 0);
        roots = {root};
    }
    void TearDown() override
    {
        if (!base.empty()) {
            ASSERT_EQ(system(("rm -rf " + base).c_str()), 0);
        }
    }
    void directory(const std::string &name, mode_t mode, uid_t uid, gid_t gid)
    {
        const std::string path = base + name;
        ASSERT_EQ(mkdir(path.c_str(), 0700), 0) << path;
        ASSERT_EQ(chown(path.c_str(), uid, gid), 0);
        ASSERT_EQ(chmod(path.c_str(), mode), 0);
    }
    void file(const std::string &name, mode_t mode, uid_t uid, gid_t gid)
    {
        const std::string path = base + name;
        const int fd = open(path.c_str(), O_CREAT | O_WRONLY, 0600);
        ASSERT_GE(fd, 0) << path;
        ASSERT_EQ(write(fd, name.data(), name.size()), static_cast<ssize_t>(name.size()));
        close(fd);
        ASSERT_EQ(chown(path.c_str(), uid, gid), 0);
        ASSERT_EQ(chmod(path.c_str(), mode), 0);
    }
    void link(const std::string &target, const std::string &name)
    {
        ASSERT_EQ(symlink(target.c_str(), (base + name).c_str()), 0);
    }
    // The error, or 0 when what was opened is the file `name`.
    int attempt(const shd_identity &who, const std::string &path, const std::string &name = "")
    {
        std::vector<char *> list;
        for (std::string &r : roots) {
            list.push_back(&r[0]);
        }
        int fd = -1;
        const int rc = shd_auth_open(&who, list.data(), static_cast<uint32_t>(list.size()),
                                     path.c_str(), &fd, &err);
        if (rc == 0) {
            char text[256];
            const ssize_t n = read(fd, text, sizeof(text));
            EXPECT_EQ(std::string(text, static_cast<size_t>(n)), name) << path;
            EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
            EXPECT_EQ(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
            close(fd);
        }
        return rc;
    }

    std::string base, root;
    std::vector<std::string> roots;
    shd_error err;
    const shd_identity alice = {4001, 5001, 1}, bob = {4002, 5002, 1}, mate = {4003, 5001, 1};
};

TEST_F(Open, BeneathARoot)
{
    directory("/root/a", 0755, 0, 0);
    file("/root/a/b", 0644, 0, 0);
    EXPECT_EQ(attempt(alice, root + "/open", "/root/open"), 0) << err.message;
    EXPECT_EQ(attempt(alice, root + "//a/./b", "/root/a/b"), 0) << err.message;
    EXPECT_EQ(attempt(alice, root + "/a/../open", "/root/open"), 0) << err.message;
    roots = {root + "/"};
    EXPECT_EQ(attempt(alice, root + "/a/b", "/root/a/b"), 0) << err.message;
    roots = {"/nowhere", root + "/a", root};
    EXPECT_EQ(attempt(alice, root + "/open", "/root/open"), 0) << err.message;
    roots = {"/"};
    EXPECT_EQ(attempt(alice, root + "/open", "/root/open"), 0) << err.message;
}

TEST_F(Open, NotOutside)
{
    EXPECT_EQ(attempt(kRoot, base + "/outside"), SHD_EPERM);
    EXPECT_NE(std::string(err.message).find(root), std::string::npos) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/../outside"), SHD_EPERM) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "-other/x"), SHD_EPERM) << err.message;
    EXPECT_EQ(attempt(kRoot, "open"), SHD_EINVAL) << err.message;
    EXPECT_EQ(attempt(kRoot, ""), SHD_EINVAL) << err.message;
    roots.clear();
    EXPECT_EQ(attempt(kRoot, root + "/open"), SHD_EPERM);
    EXPECT_NE(std::string(err.message).find("data_roots"), std::string::npos) << err.message;
    roots = {base + "/gone"};
    EXPECT_EQ(attempt(kRoot, base + "/gone/x"), SHD_EIO) << err.message;
}

TEST_F(Open, LinksInsideOnly)
{
    directory("/root/d", 0755, 0, 0);
    file("/root/d/f", 0644, 0, 0);
    link("../outside", "/root/up");
    link(base + "/outside", "/root/absolute");
    link("d", "/root/dl");
    link(root + "/d/../d/f", "/root/d/inside");
    link(root + "/d", "/root/adl");
    link(root + "/../outside", "/root/round");
    link(root + "-other/f", "/root/beside");
    directory("/root/shut", 0700, 0, 0);
    file("/root/shut/f", 0644, 0, 0);
    link(root + "/shut/f", "/root/d/shut");
    link("../open", "/root/d/back");
    link("loop", "/root/loop");
    link("/proc/self/root/etc/passwd", "/root/magic");
    EXPECT_EQ(attempt(kRoot, root + "/up"), SHD_EPERM) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/absolute"), SHD_EPERM) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/magic"), SHD_EPERM) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/loop"), SHD_EINVAL) << err.message;
    EXPECT_EQ(attempt(alice, root + "/dl/f", "/root/d/f"), 0) << err.message;
    EXPECT_EQ(attempt(alice, root + "/d/inside", "/root/d/f"), 0) << err.message;
    EXPECT_EQ(attempt(alice, root + "/adl/inside", "/root/d/f"), 0) << err.message;
    EXPECT_EQ(attempt(alice, root + "/adl/back", "/root/open"), 0) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/round"), SHD_EPERM) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/beside"), SHD_EPERM) << err.message;
    EXPECT_EQ(attempt(alice, root + "/d/shut"), SHD_EPERM) << err.message;
    EXPECT_EQ(attempt(alice, root + "/d/back", "/root/open"), 0) << err.message;
    roots = {"/proc"};
    EXPECT_EQ(attempt(kRoot, "/proc/self/root/etc/passwd"), SHD_EPERM) << err.message;
}

TEST_F(Open, WhatTheCallerMayRead)
{
    file("/root/private", 0600, 4001, 5001);
    file("/root/group", 0640, 4001, 5001);
    file("/root/not-group", 0604, 4009, 5001);
    file("/root/not-owner", 0044, 4001, 5009);
    EXPECT_EQ(attempt(alice, root + "/private", "/root/private"), 0) << err.message;
    EXPECT_EQ(attempt(mate, root + "/private"), SHD_EPERM) << err.message;
    EXPECT_NE(std::string(err.message).find("uid 4003 may not read"), std::string::npos);
    EXPECT_EQ(attempt(bob, root + "/private"), SHD_EPERM);
    EXPECT_EQ(attempt(kRoot, root + "/private", "/root/private"), 0) << err.message;
    EXPECT_EQ(attempt(mate, root + "/group", "/root/group"), 0) << err.message;
    EXPECT_EQ(attempt(bob, root + "/group"), SHD_EPERM);
    EXPECT_EQ(attempt(mate, root + "/not-group"), SHD_EPERM)
        << "the group's bits bind, not others'";
    EXPECT_EQ(attempt(bob, root + "/not-group", "/root/not-group"), 0) << err.message;
    EXPECT_EQ(attempt(alice, root + "/not-owner"), SHD_EPERM) << "the owner's bits bind";
}

TEST_F(Open, DirectoriesOnTheWay)
{
    directory("/root/closed", 0700, 4001, 5001);
    file("/root/closed/f", 0644, 0, 0);
    directory("/root/closed/in", 0755, 0, 0);
    link("closed/f", "/root/through");
    EXPECT_EQ(attempt(alice, root + "/closed/f", "/root/closed/f"), 0) << err.message;
    EXPECT_EQ(attempt(bob, root + "/closed/f"), SHD_EPERM) << err.message;
    EXPECT_EQ(attempt(bob, root + "/through"), SHD_EPERM) << err.message;
    EXPECT_EQ(attempt(bob, root + "/closed/../open"), SHD_EPERM) << err.message;
    // What is missing there must not be told from what is there.
    EXPECT_EQ(attempt(bob, root + "/closed/none"), SHD_EPERM) << err.message;
    EXPECT_EQ(attempt(alice, root + "/closed/none"), SHD_ENOTFOUND) << err.message;
    // Readable but not searchable.
    directory("/root/list", 0744, 0, 0);
    file("/root/list/f", 0644, 0, 0);
    EXPECT_EQ(attempt(bob, root + "/list/f"), SHD_EPERM) << err.message;
    chmod(root.c_str(), 0700);
    EXPECT_EQ(attempt(bob, root + "/open"), SHD_EPERM) << err.message;
}

TEST_F(Open, RegularFilesOnly)
{
    directory("/root/d", 0755, 0, 0);
    ASSERT_EQ(mkfifo((root + "/fifo").c_str(), 0666), 0);
    ASSERT_EQ(mknod((root + "/null").c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
    EXPECT_EQ(attempt(kRoot, root + "/d"), SHD_EINVAL);
    EXPECT_NE(std::string(err.message).find("a directory"), std::string::npos) << err.message;
    EXPECT_EQ(attempt(kRoot, root), SHD_EINVAL) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/fifo"), SHD_EINVAL) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/null"), SHD_EINVAL) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/none"), SHD_ENOTFOUND) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/open/x"), SHD_ENOTFOUND) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/" + std::string(300, 'n')), SHD_EINVAL) << err.message;
    EXPECT_EQ(attempt(kRoot, root + "/" + std::string(5000, 'n')), SHD_EINVAL) << err.message;
    std::string deep = root;
    for (int i = 0; i < 300; i++) {
        deep += "/d";
        mkdir(deep.c_str(), 0755);
    }
    EXPECT_EQ(attempt(kRoot, deep + "/f"), SHD_EINVAL) << err.message;
}

TEST_F(Open, AccessListsBind)
{
    struct Entry {
        uint16_t tag, perm;
        uint32_t id;
    };
    struct {
        uint32_t version = 2;
        Entry entries[6] = {{0x01, 6, ~0u},  {0x02, 4, 4002}, {0x04, 0, ~0u},
                            {0x08, 4, 5003}, {0x10, 4, ~0u},  {0x20, 0, ~0u}};
    } acl;
    file("/root/listed", 0600, 4001, 5001);
    if (setxattr((root + "/listed").c_str(), "system.posix_acl_access", &acl, sizeof(acl), 0) !=
        0) {
        GTEST_SKIP() << "no access lists on this file system: " << strerror(errno);
    }
    const shd_identity third = {4005, 5003, 1}, other = {4006, 5006, 1};
    EXPECT_EQ(attempt(alice, root + "/listed", "/root/listed"), 0) << err.message;
    EXPECT_EQ(attempt(bob, root + "/listed", "/root/listed"), 0) << err.message;
    EXPECT_EQ(attempt(third, root + "/listed", "/root/listed"), 0) << err.message;
    EXPECT_EQ(attempt(other, root + "/listed"), SHD_EPERM);
    // stat shows the mask as the group's bits: mate is of the owning group, which may not.
    EXPECT_EQ(attempt(mate, root + "/listed"), SHD_EPERM);
    acl.entries[4].perm = 0;
    ASSERT_EQ(setxattr((root + "/listed").c_str(), "system.posix_acl_access", &acl, sizeof(acl), 0),
              0);
    EXPECT_EQ(attempt(bob, root + "/listed"), SHD_EPERM) << "the mask takes it away";
}

// As under RestrictSUIDSGID= of systemd: the system call openat2 does not exist.
TEST_F(Open, WithoutOpenat2)
{
    directory("/root/closed", 0700, 4001, 5001);
    file("/root/closed/f", 0644, 0, 0);
    link("../outside", "/root/up");
    link("closed/f", "/root/in");
    const pid_t child = fork();
    if (child == 0) {
        sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const sock_fprog program = {4, code};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
            _exit(2);
        }
        _exit(attempt(alice, root + "/in", "/root/closed/f") == 0 &&
                      attempt(bob, root + "/in") == SHD_EPERM &&
                      attempt(kRoot, root + "/up") == SHD_EPERM &&
                      attempt(kRoot, root + "/../outside") == SHD_EPERM && !HasFailure()
                  ? 0
                  : 1);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The rule against the kernel's own judgement, by a real process of the other user.
TEST_F(Open, AgreesWithTheKernel)
{
    directory("/root/k", 0755, 0, 0);
    for (unsigned mode = 0; mode < 0777; mode += 037) {
        const std::string name = "/root/k/" + std::to_string(mode);
        file(name, mode, mode % 2 ? 4001 : 4009, mode % 3 ? 5001 : 5009);
        for (const shd_identity &who : {alice, bob, mate}) {
            const pid_t child = fork();
            if (child == 0) {
                const gid_t gid = who.gid;
                if (setgroups(1, &gid) != 0 || setgid(gid) != 0 || setuid(who.uid) != 0) {
                    _exit(2);
                }
                _exit(open((base + name).c_str(), O_RDONLY) >= 0 ? 0 : 1);
            }
            int status;
            waitpid(child, &status, 0);
            ASSERT_NE(WEXITSTATUS(status), 2);
            EXPECT_EQ(attempt(who, base + name, name), WEXITSTATUS(status) == 0 ? 0 : SHD_EPERM)
                << std::oct << mode << " " << who.uid;
        }
    }
}

// A directory to make something in: found as files are, and only where the caller may write.
class Parent : public Open
{
  protected:
    int make(const shd_identity &who, const std::string &path)
    {
        std::vector<char *> list;
        for (std::string &r : roots) {
            list.push_back(&r[0]);
        }
        int fd = -1;
        char *last = nullptr;
        const int rc = shd_auth_open_parent(&who, list.data(), static_cast<uint32_t>(list.size()),
                                            path.c_str(), &fd, &last, &err);
        name = last != nullptr ? last : "";
        free(last);
        if (rc == 0) {
            struct stat here = {}, there = {};
            const std::string parent = path.substr(0, path.rfind(name));
            EXPECT_EQ(fstat(fd, &here), 0);
            EXPECT_EQ(stat(parent.c_str(), &there), 0) << parent;
            EXPECT_EQ(here.st_ino, there.st_ino);
            close(fd);
        } else {
            EXPECT_EQ(name, "");
        }
        return rc;
    }

    std::string name;
};

TEST_F(Parent, WhereTheCallerMayWrite)
{
    directory("/root/alices", 0755, 4001, 5001);
    directory("/root/groups", 0775, 0, 5001);
    directory("/root/drop", 0733, 0, 0);
    link("alices", "/root/link");
    EXPECT_EQ(make(alice, root + "/alices/model"), 0) << err.message;
    EXPECT_EQ(name, "model");
    EXPECT_EQ(make(alice, root + "/alices/model///"), 0) << err.message;
    EXPECT_EQ(make(alice, root + "/link/model"), 0) << err.message;
    EXPECT_EQ(make(mate, root + "/groups/model"), 0) << err.message;
    EXPECT_EQ(make(bob, root + "/drop/model"), 0) << err.message;
    for (const std::string path : {"/alices/model", "/groups/model", "/model"}) {
        EXPECT_EQ(make(bob, root + path), SHD_EPERM) << path;
        EXPECT_NE(strstr(err.message, "uid 4002 may not write"), nullptr) << err.message;
    }
    EXPECT_EQ(make({0, 0, 1}, root + "/model"), 0) << err.message;
}

TEST_F(Parent, NeitherOutsideNorNameless)
{
    directory("/elsewhere", 0777, 0, 0);
    directory("/root/alices", 0755, 4001, 5001);
    link("../../elsewhere", "/root/alices/out");
    EXPECT_EQ(make(alice, base + "/elsewhere/model"), SHD_EPERM);
    EXPECT_EQ(make(alice, root + "/../elsewhere/model"), SHD_EPERM);
    EXPECT_EQ(make(alice, root + "/alices/out/model"), SHD_EPERM);
    EXPECT_EQ(make(alice, root), SHD_EPERM);
    EXPECT_EQ(make(alice, root + "/nowhere/model"), SHD_ENOTFOUND);
    EXPECT_EQ(make(alice, root + "/open/model"), SHD_ENOTFOUND);
    for (const std::string path : {"/alices/.", "/alices/..", "/alices/x/.."}) {
        EXPECT_EQ(make(alice, root + path), SHD_EINVAL) << path;
    }
    EXPECT_EQ(make(alice, root + "/alices/" + std::string(300, 'n')), SHD_EINVAL);
    EXPECT_EQ(make(alice, "alices/model"), SHD_EINVAL);
}

TEST_F(Open, FilesOfADirectory)
{
    directory("/root/model", 0755, 4001, 5001);
    file("/root/model/config.json", 0640, 4001, 5001);
    char *list[] = {&root[0]};
    const std::string path = root + "/model";
    shd_auth_dir dir = {&alice, list, 1, path.c_str()};
    int fd = -1;
    ASSERT_EQ(shd_auth_dir_open(&dir, "config.json", &fd, &err), 0) << err.message;
    close(fd);
    EXPECT_EQ(shd_auth_dir_open(&dir, "tokenizer.json", &fd, &err), SHD_ENOTFOUND);
    dir.who = &bob;
    EXPECT_EQ(shd_auth_dir_open(&dir, "config.json", &fd, &err), SHD_EPERM);
}

} // namespace

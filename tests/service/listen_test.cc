#include "daemon/service/listen.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "daemon/base/log.h"

namespace
{

sockaddr_un address_of(const std::string &path)
{
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.c_str(), path.size());
    return address;
}

int bind_to(const std::string &path, bool listening)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = address_of(path);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr *>(&address), sizeof(address)), 0);
    if (listening) {
        EXPECT_EQ(listen(fd, 8), 0);
    }
    return fd;
}

class Listen : public ::testing::Test
{
  protected:
    struct Seen {
        int fd;
        shd_identity who;
    };
    void SetUp() override
    {
        shd_log_set_level(SHD_LOG_ERROR);
        char dir[] = "/tmp/shd-listen-test-XXXXXX";
        base = mkdtemp(dir);
        path = base + "/s";
        uv_loop_init(&loop);
    }
    void TearDown() override
    {
        for (const Seen &s : seen) {
            close(s.fd);
        }
        close_listener();
        EXPECT_EQ(uv_loop_close(&loop), 0);
        ASSERT_EQ(system(("rm -rf " + base).c_str()), 0);
    }
    void close_listener()
    {
        shd_listener_close(listener);
        listener = nullptr;
        uv_run(&loop, UV_RUN_DEFAULT);
    }
    int open_listener(uint32_t mode = 0660, const char *group = "")
    {
        return shd_listener_open(&loop, path.c_str(), mode, group, on_connection, this, &listener,
                                 &err);
    }
    static void on_connection(void *arg, int fd, const shd_identity *who)
    {
        static_cast<Listen *>(arg)->seen.push_back({fd, *who});
    }
    bool can_connect()
    {
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const sockaddr_un address = address_of(path);
        const bool ok =
            connect(fd, reinterpret_cast<const sockaddr *>(&address), sizeof(address)) == 0;
        const size_t before = seen.size();
        for (int i = 0; ok && i < 1000 && seen.size() == before; i++) {
            uv_run(&loop, UV_RUN_NOWAIT);
            usleep(1000);
        }
        close(fd);
        return ok && seen.size() == before + 1;
    }

    std::string base, path;
    uv_loop_t loop;
    shd_listener *listener = nullptr;
    std::vector<Seen> seen;
    shd_error err;
};

TEST_F(Listen, AcceptsAndKnowsWho)
{
    ASSERT_EQ(open_listener(0640), 0) << err.message;
    EXPECT_EQ(std::string(shd_listener_path(listener)), path);
    struct stat st;
    ASSERT_EQ(stat(path.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0640u);
    ASSERT_TRUE(can_connect());
    EXPECT_EQ(seen[0].who.uid, getuid());
    EXPECT_EQ(seen[0].who.pid, getpid());
    EXPECT_EQ(fcntl(seen[0].fd, F_GETFD), FD_CLOEXEC);
    EXPECT_NE(fcntl(seen[0].fd, F_GETFL) & O_NONBLOCK, 0);
    close_listener();
    EXPECT_NE(stat(path.c_str(), &st), 0) << "the file is removed";
}

TEST_F(Listen, GivesTheSocketItsGroup)
{
    ASSERT_EQ(open_listener(0660, getuid() == 0 ? "5001" : std::to_string(getgid()).c_str()), 0)
        << err.message;
    struct stat st;
    ASSERT_EQ(stat(path.c_str(), &st), 0);
    EXPECT_EQ(st.st_gid, getuid() == 0 ? 5001u : getgid());
    close_listener();
    EXPECT_EQ(open_listener(0660, "no-such-group"), SHD_EINVAL);
    EXPECT_NE(std::string(err.message).find("no-such-group"), std::string::npos) << err.message;
    EXPECT_NE(stat(path.c_str(), &st), 0);
}

TEST_F(Listen, ReplacesAStaleSocket)
{
    close(bind_to(path, true));
    ASSERT_EQ(open_listener(), 0) << err.message;
    EXPECT_TRUE(can_connect());
}

TEST_F(Listen, RefusesALiveSocket)
{
    const int live = bind_to(path, true);
    EXPECT_EQ(open_listener(), SHD_EEXIST);
    EXPECT_NE(std::string(err.message).find("already listens on " + path), std::string::npos)
        << err.message;
    close(live);
    struct stat st;
    EXPECT_EQ(stat(path.c_str(), &st), 0) << "it is left alone";
}

TEST_F(Listen, RefusesWhatIsNoSocket)
{
    std::ofstream(path) << "precious";
    EXPECT_EQ(open_listener(), SHD_EEXIST) << err.message;
    std::string text;
    std::ifstream(path) >> text;
    EXPECT_EQ(text, "precious");
}

TEST_F(Listen, RefusesBadPaths)
{
    path = base + "/" + std::string(200, 'x');
    EXPECT_EQ(open_listener(), SHD_EINVAL);
    EXPECT_NE(std::string(err.message).find("107"), std::string::npos) << err.message;
    path = base + "/none/s";
    EXPECT_EQ(open_listener(), SHD_EIO) << err.message;
}

TEST_F(Listen, WaitsForNobodyForever)
{
    const int fd = open(base.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ASSERT_EQ(flock(fd, LOCK_EX), 0);
    EXPECT_EQ(open_listener(), SHD_EIO) << err.message;
    close(fd);
    EXPECT_EQ(open_listener(), 0) << err.message;
}

TEST_F(Listen, LeavesAnothersSocketAlone)
{
    ASSERT_EQ(open_listener(), 0) << err.message;
    ASSERT_EQ(unlink(path.c_str()), 0);
    const int other = bind_to(path, true);
    close_listener();
    struct stat st;
    EXPECT_EQ(stat(path.c_str(), &st), 0);
    close(other);
}

TEST_F(Listen, AdoptsASocketAndKeepsItsFile)
{
    const int fd = bind_to(path, true);
    ASSERT_EQ(shd_listener_adopt(&loop, fd, on_connection, this, &listener, &err), 0)
        << err.message;
    EXPECT_EQ(std::string(shd_listener_path(listener)), path);
    EXPECT_TRUE(can_connect());
    close_listener();
    struct stat st;
    EXPECT_EQ(stat(path.c_str(), &st), 0);

    EXPECT_EQ(shd_listener_adopt(&loop, socket(AF_INET, SOCK_STREAM, 0), on_connection, this,
                                 &listener, &err),
              SHD_EINVAL);
}

} // namespace

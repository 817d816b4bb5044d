#include "daemon/service/notify.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

namespace
{

// Each case in a process of its own, with its own environment and descriptor 3.
int in_child(const std::function<int()> &body)
{
    const pid_t child = fork();
    if (child == 0) {
        _exit(body());
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void set(const char *name, const std::string &value)
{
    setenv(name, value.c_str(), 1);
}

int bound_socket(int type, bool listening)
{
    const int fd = socket(AF_UNIX, type, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX; // autobind: an abstract name
    bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof(sa_family_t));
    if (listening) {
        listen(fd, 8);
    }
    return fd;
}

void pass(int n)
{
    set("LISTEN_PID", std::to_string(getpid()));
    set("LISTEN_FDS", std::to_string(n));
}

TEST(Notify, NothingWithoutAManager)
{
    EXPECT_EQ(in_child([] {
                  unsetenv("NOTIFY_SOCKET");
                  unsetenv("WATCHDOG_USEC");
                  unsetenv("LISTEN_FDS");
                  shd_notify("READY=1");
                  int fd = 7;
                  return shd_notify_listen_fd(&fd, nullptr) == 0 && fd == -1 &&
                                 shd_notify_watchdog_us() == 0
                             ? 0
                             : 1;
              }),
              0);
}

TEST(Notify, TellsTheManager)
{
    char dir[] = "/tmp/shd-notify-test-XXXXXX";
    const std::string path = std::string(mkdtemp(dir)) + "/n";
    const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.c_str(), path.size());
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address)), 0);
    EXPECT_EQ(in_child([&] {
                  set("NOTIFY_SOCKET", path);
                  set("WATCHDOG_USEC", "2000000");
                  set("WATCHDOG_PID", std::to_string(getpid()));
                  shd_notify("READY=1\nSTATUS=%d jobs", 3);
                  shd_notify_reloading();
                  return shd_notify_watchdog_us() == 2000000 ? 0 : 1;
              }),
              0);
    char text[256] = "";
    ASSERT_GT(recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT), 0);
    EXPECT_STREQ(text, "READY=1\nSTATUS=3 jobs");
    memset(text, 0, sizeof(text));
    ASSERT_GT(recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT), 0);
    EXPECT_EQ(std::string(text).find("RELOADING=1\nMONOTONIC_USEC="), 0u) << text;
    close(fd);
    unlink(path.c_str());
    rmdir(dir);
}

TEST(Notify, TakesOneListeningLocalSocket)
{
    EXPECT_EQ(in_child([] {
                  dup2(bound_socket(SOCK_STREAM, true), 3);
                  pass(1);
                  int fd = -1;
                  const int rc = shd_notify_listen_fd(&fd, nullptr);
                  return rc == 0 && fd == 3 && getenv("LISTEN_FDS") == nullptr ? 0 : 1;
              }),
              0);
}

TEST(Notify, RefusesAnythingElse)
{
    const auto refused = [](const std::function<void()> &prepare, const char *word) {
        return in_child([&] {
            prepare();
            int fd = 7;
            shd_error err;
            const int rc = shd_notify_listen_fd(&fd, &err);
            return rc == SHD_EINVAL && fd == -1 && strstr(err.message, word) != nullptr ? 0 : 1;
        });
    };
    EXPECT_EQ(refused(
                  [] { // two
                      dup2(bound_socket(SOCK_STREAM, true), 3);
                      dup2(3, 4);
                      pass(2);
                  },
                  "2 sockets"),
              0);
    EXPECT_EQ(refused(
                  [] { // datagrams
                      dup2(bound_socket(SOCK_DGRAM, false), 3);
                      pass(1);
                  },
                  "listening local stream"),
              0);
    EXPECT_EQ(refused(
                  [] { // bound, not listening
                      dup2(bound_socket(SOCK_STREAM, false), 3);
                      pass(1);
                  },
                  "listening local stream"),
              0);
    EXPECT_EQ(refused(
                  [] { // an internet socket
                      const int fd = socket(AF_INET, SOCK_STREAM, 0);
                      listen(fd, 1);
                      dup2(fd, 3);
                      pass(1);
                  },
                  "listening local stream"),
              0);
    EXPECT_EQ(refused(
                  [] { // a file
                      dup2(open("/dev/null", O_RDONLY), 3);
                      pass(1);
                  },
                  "listening local stream"),
              0);
}

} // namespace

// Raw connections to a local socket, also as another user, and waiting for what will come.
#ifndef SHD_TESTS_SERVICE_PEERS_H
#define SHD_TESTS_SERVICE_PEERS_H

#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

namespace shd_test
{

// True as soon as the condition holds, false after 20 s.
inline bool eventually(const std::function<bool()> &condition)
{
    for (int i = 0; i < 2000; i++) {
        if (condition()) {
            return true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
}

// Entries of /proc/PID/fd; of this process by default.
inline int open_fds(const std::string &pid = "self")
{
    int n = 0;
    DIR *dir = opendir(("/proc/" + pid + "/fd").c_str());
    while (readdir(dir) != nullptr) {
        n++;
    }
    closedir(dir);
    return n;
}

inline int raw_connect(const std::string &path)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, path.c_str(), path.size());
    if (connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof(address)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

// A socket that a child of another uid has connected: SO_PEERCRED tells who connected. The child
// makes system calls only, gRPC's threads do not exist in it.
inline int connect_as(const std::string &path, uid_t uid, pid_t *pid)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        return -1;
    }
    *pid = fork();
    if (*pid == 0) {
        if (setgid(uid) != 0 || setuid(uid) != 0) {
            _exit(1);
        }
        const int fd = raw_connect(path);
        char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
        iovec iov = {&byte, 1};
        msghdr message = {};
        message.msg_iov = &iov;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
        _exit(fd >= 0 && sendmsg(pair[1], &message, 0) == 1 ? 0 : 1);
    }
    close(pair[1]);
    char byte, control[CMSG_SPACE(sizeof(int))];
    iovec iov = {&byte, 1};
    msghdr message = {};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    int fd = -1;
    if (recvmsg(pair[0], &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message) != nullptr) {
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    }
    close(pair[0]);
    waitpid(*pid, nullptr, 0);
    return fd;
}

} // namespace shd_test

#endif

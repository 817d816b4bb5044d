#include "daemon/service/notify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "daemon/base/log.h"

void shd_notify(const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    const int rc = sd_notify(0, text);
    if (rc < 0) {
        shd_log(SHD_LOG_WARNING, "the service manager was not told '%s': %s", text, strerror(-rc));
    }
}

void shd_notify_reloading(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    shd_notify("RELOADING=1\nMONOTONIC_USEC=%" PRIu64,
               (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000);
}

uint64_t shd_notify_watchdog_us(void)
{
    uint64_t us = 0;
    return sd_watchdog_enabled(0, &us) > 0 ? us : 0;
}

int shd_notify_listen_fd(int *fd_out, shd_error *err)
{
    *fd_out = -1;
    const int n = sd_listen_fds(1);
    if (n < 0) {
        return shd_fail(err, SHD_EINVAL, "socket activation: %s", strerror(-n));
    }
    if (n == 0) {
        return SHD_OK;
    }
    if (n > 1) {
        return shd_fail(err, SHD_EINVAL,
                        "socket activation: %d sockets were passed; give the socket unit one "
                        "ListenStream",
                        n);
    }
    if (sd_is_socket_unix(SD_LISTEN_FDS_START, SOCK_STREAM, 1, NULL, 0) <= 0) {
        return shd_fail(
            err, SHD_EINVAL,
            "socket activation: what was passed is no listening local stream socket; the "
            "socket unit needs ListenStream with a path");
    }
    *fd_out = SD_LISTEN_FDS_START;
    return SHD_OK;
}

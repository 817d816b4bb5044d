/* The service manager: readiness, status line, watchdog, sockets it passes. Nothing happens when
 * there is none. Floor F5; loop thread. */
#ifndef SHD_DAEMON_SERVICE_NOTIFY_H
#define SHD_DAEMON_SERVICE_NOTIFY_H

#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* States as in sd_notify(3), one a line: "READY=1\nSTATUS=...". Reports RELOADING=1 with the time
 * that the manager wants. */
void shd_notify(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void shd_notify_reloading(void);

/* Microseconds within which WATCHDOG=1 must come again; 0: not asked for. */
uint64_t shd_notify_watchdog_us(void);

/* The listening local stream socket that the manager passed: *fd_out is it, or -1 for none.
 * SHD_EINVAL when it passed several, or something else. Takes the variables out of the
 * environment. */
int shd_notify_listen_fd(int *fd_out, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

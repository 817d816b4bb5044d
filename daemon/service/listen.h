/* The local socket: made here or taken over from systemd, accepted by libuv. Who is connected is
 * asked of the kernel; the connected fd goes to whoever serves it. Floor F5; loop thread. */
#ifndef SHD_DAEMON_SERVICE_LISTEN_H
#define SHD_DAEMON_SERVICE_LISTEN_H

#include <stdint.h>
#include <uv.h>

#include "daemon/base/err.h"
#include "daemon/service/auth.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_listener shd_listener;

/* A new connection: non-blocking, close-on-exec, owned by the callee. */
typedef void (*shd_listen_fn)(void *arg, int fd, const shd_identity *who);

/* Makes the socket file `path` with `mode` and `group` (a name or number; "": as created) and
 * listens. A socket file that nobody listens on is replaced; SHD_EEXIST when a daemon listens
 * there or the file is no socket; SHD_EINVAL for a path too long or an unknown group; else SHD_EIO.
 */
int shd_listener_open(uv_loop_t *loop, const char *path, uint32_t mode, const char *group,
                      shd_listen_fn fn, void *arg, shd_listener **out, shd_error *err);

/* Listens on a bound socket of the service manager; owns the fd from here. Its file stays. */
int shd_listener_adopt(uv_loop_t *loop, int fd, shd_listen_fn fn, void *arg, shd_listener **out,
                       shd_error *err);

/* The path that a local socket is bound to, "" for one without a file; freed with free(). */
char *shd_listen_path_of(int fd);

/* The path of the socket. */
const char *shd_listener_path(const shd_listener *listener);

/* Stops listening, removes the file that was made (unless another has taken its place) and frees
 * the listener once the loop has closed its handle. NULL is fine. */
void shd_listener_close(shd_listener *listener);

#ifdef __cplusplus
}
#endif
#endif

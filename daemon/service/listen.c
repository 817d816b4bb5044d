#include "daemon/service/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define BACKLOG 1024
#define LOCK_TRIES 200 /* of 10 ms */

struct shd_listener {
    uv_pipe_t pipe;
    shd_listen_fn fn;
    void *arg;
    char *path;
    int made; /* the file is ours to remove, while it is this one: */
    dev_t device;
    ino_t inode;
};

/* ---- connections ---- */

static void close_free(uv_handle_t *handle)
{
    free(handle);
}

/* A duplicate that libuv does not own; libuv made the original non-blocking. */
static int take_fd(uv_pipe_t *client, shd_error *err)
{
    uv_os_fd_t fd;
    int rc = uv_fileno((uv_handle_t *)client, &fd);
    if (rc < 0) {
        return shd_fail(err, SHD_EIO, "%s", uv_strerror(rc));
    }
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        return shd_fail(err, SHD_EIO, "dup: %s", strerror(errno));
    }
    return own;
}

static void on_connection(uv_stream_t *server, int status)
{
    shd_listener *listener = server->data;
    shd_error err;
    shd_identity who;
    if (status < 0) {
        shd_log(SHD_LOG_WARNING, "accepting on %s: %s", listener->path, uv_strerror(status));
        return;
    }
    uv_pipe_t *client = shd_calloc(1, sizeof(*client));
    uv_pipe_init(server->loop, client, 0);
    int fd = uv_accept(server, (uv_stream_t *)client);
    if (fd < 0) {
        shd_fail(&err, SHD_EIO, "%s", uv_strerror(fd));
    } else {
        fd = take_fd(client, &err);
    }
    uv_close((uv_handle_t *)client, close_free);
    if (fd < 0) {
        shd_log(SHD_LOG_WARNING, "a connection on %s is lost: %s", listener->path, err.message);
    } else if (shd_auth_identify(fd, &who, &err) < 0) {
        shd_log(SHD_LOG_WARNING, "a connection on %s is refused: %s", listener->path, err.message);
        close(fd);
    } else {
        listener->fn(listener->arg, fd, &who);
    }
}

/* Owns fd and path. */
static int start(uv_loop_t *loop, int fd, char *path, shd_listen_fn fn, void *arg,
                 shd_listener **out, shd_error *err)
{
    shd_listener *listener = shd_calloc(1, sizeof(*listener));
    listener->fn = fn;
    listener->arg = arg;
    listener->path = path;
    uv_pipe_init(loop, &listener->pipe, 0);
    listener->pipe.data = listener;
    int rc = uv_pipe_open(&listener->pipe, fd);
    if (rc < 0) {
        close(fd);
    } else {
        rc = uv_listen((uv_stream_t *)&listener->pipe, BACKLOG, on_connection);
    }
    if (rc < 0) {
        shd_fail(err, SHD_EIO, "cannot listen on %s: %s", path, uv_strerror(rc));
        shd_listener_close(listener);
        return SHD_EIO;
    }
    *out = listener;
    return SHD_OK;
}

/* ---- the socket file ---- */

static int try_bind(int fd, const struct sockaddr_un *address)
{
    return bind(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? errno : 0;
}

/* 0: the file was a socket that nobody listens on, and is removed. */
static int remove_stale(const struct sockaddr_un *address, shd_error *err)
{
    const char *path = address->sun_path;
    struct stat st;
    if (lstat(path, &st) < 0) {
        return errno == ENOENT ? SHD_OK : shd_fail(err, SHD_EIO, "%s: %s", path, strerror(errno));
    }
    if (!S_ISSOCK(st.st_mode)) {
        return shd_fail(err, SHD_EEXIST,
                        "%s is in the way and is no socket; remove it or set socket", path);
    }
    const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0) {
        return shd_fail(err, SHD_EIO, "socket: %s", strerror(errno));
    }
    const int connected =
        connect(probe, (const struct sockaddr *)address, sizeof(*address)) == 0 ? 0 : errno;
    close(probe);
    if (connected == 0 || connected == EAGAIN) { /* EAGAIN: its queue is full */
        return shd_fail(err, SHD_EEXIST, "a daemon already listens on %s; stop it or set socket",
                        path);
    }
    if (connected != ECONNREFUSED && connected != ENOENT) {
        return shd_fail(err, SHD_EIO, "cannot tell whether a daemon listens on %s: %s", path,
                        strerror(connected));
    }
    if (unlink(path) < 0 && errno != ENOENT) {
        return shd_fail(err, SHD_EIO, "cannot remove the stale socket %s: %s", path,
                        strerror(errno));
    }
    shd_log(SHD_LOG_NOTICE, "removed the stale socket %s", path);
    return SHD_OK;
}

/* Only one daemon at a time looks whether a socket is stale: between one's look and its bind,
 * another's fresh socket could be taken for the stale one. */
static int lock_directory(const char *path, int *fd_out, shd_error *err)
{
    char *copy = shd_strdup(path);
    const char *dir = dirname(copy);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = SHD_OK;
    if (fd < 0) {
        rc = shd_fail(err, SHD_EIO, "the directory %s of the socket: %s", dir, strerror(errno));
    }
    for (int i = 0; rc == SHD_OK && flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
        const struct timespec pause = {0, 10000000};
        if (errno != EWOULDBLOCK && errno != EINTR) {
            rc = shd_fail(err, SHD_EIO, "cannot lock %s: %s", dir, strerror(errno));
        } else if (i == LOCK_TRIES) {
            rc = shd_fail(err, SHD_EIO,
                          "another process holds a lock on %s, the directory of the "
                          "socket",
                          dir);
        } else {
            nanosleep(&pause, NULL);
        }
    }
    if (rc < 0 && fd >= 0) {
        close(fd);
    }
    free(copy);
    *fd_out = fd;
    return rc;
}

/* As the directory is locked: binds, listens, and only then gives the file its mode and group. */
static int bind_file(int fd, const struct sockaddr_un *address, uint32_t mode, gid_t group,
                     shd_error *err)
{
    const char *path = address->sun_path;
    fchmod(fd, 0600); /* what bind gives the file, less the umask */
    int rc = try_bind(fd, address);
    if (rc == EADDRINUSE) {
        SHD_TRY(remove_stale(address, err));
        rc = try_bind(fd, address);
    }
    if (rc != 0) {
        return shd_fail(err, rc == EADDRINUSE ? SHD_EEXIST : SHD_EIO,
                        "cannot make the socket %s: %s", path, strerror(rc));
    }
    if (listen(fd, BACKLOG) < 0) {
        rc = shd_fail(err, SHD_EIO, "cannot listen on %s: %s", path, strerror(errno));
    } else if (group != (gid_t)-1 && chown(path, (uid_t)-1, group) < 0) {
        rc = shd_fail(err, SHD_EIO, "cannot give %s to group %u (socket_group): %s", path,
                      (unsigned)group, strerror(errno));
    } else if (chmod(path, mode) < 0) {
        rc = shd_fail(err, SHD_EIO, "cannot set the mode of %s: %s", path, strerror(errno));
    }
    if (rc < 0) {
        unlink(path);
    }
    return rc;
}

static int find_group(const char *name, gid_t *out, shd_error *err)
{
    *out = (gid_t)-1;
    if (name[0] == '\0') {
        return SHD_OK;
    }
    const struct group *entry = getgrnam(name);
    if (entry != NULL) {
        *out = entry->gr_gid;
        return SHD_OK;
    }
    char *end;
    errno = 0;
    const unsigned long number = strtoul(name, &end, 10);
    if (name[0] < '0' || name[0] > '9' || *end != '\0' || errno != 0 || number >= UINT32_MAX) {
        return shd_fail(err, SHD_EINVAL, "socket_group: there is no group '%.100s'", name);
    }
    *out = (gid_t)number;
    return SHD_OK;
}

int shd_listener_open(uv_loop_t *loop, const char *path, uint32_t mode, const char *group,
                      shd_listen_fn fn, void *arg, shd_listener **out, shd_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    gid_t gid;
    int lock;
    if (strlen(path) >= sizeof(address.sun_path)) {
        return shd_fail(err, SHD_EINVAL, "the socket path %.60s... has %zu bytes; %zu is the most",
                        path, strlen(path), sizeof(address.sun_path) - 1);
    }
    memcpy(address.sun_path, path, strlen(path));
    SHD_TRY(find_group(group, &gid, err));
    SHD_TRY(lock_directory(path, &lock, err));
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc = fd >= 0 ? bind_file(fd, &address, mode, gid, err)
                     : shd_fail(err, SHD_EIO, "socket: %s", strerror(errno));
    struct stat st;
    if (rc == SHD_OK && lstat(path, &st) < 0) {
        rc = shd_fail(err, SHD_EIO, "%s: %s", path, strerror(errno));
    }
    if (rc < 0) {
        if (fd >= 0) {
            close(fd);
        }
    } else {
        rc = start(loop, fd, shd_strdup(path), fn, arg, out, err);
        if (rc < 0) {
            unlink(path);
        } else {
            (*out)->made = 1;
            (*out)->device = st.st_dev;
            (*out)->inode = st.st_ino;
        }
    }
    close(lock);
    return rc;
}

char *shd_listen_path_of(int fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNSPEC};
    socklen_t size = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0 || address.sun_family != AF_UNIX ||
        size <= offsetof(struct sockaddr_un, sun_path)) {
        return shd_strdup("");
    }
    const size_t n = size - offsetof(struct sockaddr_un, sun_path);
    return shd_asprintf("%.*s", (int)n, address.sun_path);
}

int shd_listener_adopt(uv_loop_t *loop, int fd, shd_listen_fn fn, void *arg, shd_listener **out,
                       shd_error *err)
{
    int domain = 0;
    socklen_t size = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) < 0 || domain != AF_UNIX) {
        close(fd);
        return shd_fail(err, SHD_EINVAL, "the socket of the service manager is not a local one");
    }
    return start(loop, fd, shd_listen_path_of(fd), fn, arg, out, err);
}

const char *shd_listener_path(const shd_listener *listener)
{
    return listener->path;
}

static void on_closed(uv_handle_t *handle)
{
    shd_listener *listener = handle->data;
    free(listener->path);
    free(listener);
}

void shd_listener_close(shd_listener *listener)
{
    if (listener == NULL) {
        return;
    }
    struct stat st;
    if (listener->made && lstat(listener->path, &st) == 0 && st.st_dev == listener->device &&
        st.st_ino == listener->inode) {
        unlink(listener->path);
    }
    /* libuv remembers no name for a pipe that was opened from an fd, so it removes no file. */
    uv_close((uv_handle_t *)&listener->pipe, on_closed);
}

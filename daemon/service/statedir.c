#include "daemon/service/statedir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/mem.h"

struct shd_statedir {
    int dir, lock;
};

static int open_directory(const char *path, int *out, shd_error *err)
{
    if (mkdir(path, 0700) < 0 && errno != EEXIST) {
        return shd_fail(err, SHD_EIO, "cannot make the state directory %s: %s; set state_dir", path,
                        strerror(errno));
    }
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return shd_fail(err, SHD_EIO, "cannot open the state directory %s: %s; set state_dir", path,
                        strerror(errno));
    }
    struct stat st;
    if (fstat(fd, &st) == 0 && st.st_uid != geteuid() && st.st_uid != 0) {
        close(fd);
        return shd_fail(err, SHD_EPERM,
                        "the state directory %s belongs to uid %u, the daemon is uid %u; chown it",
                        path, (unsigned)st.st_uid, (unsigned)geteuid());
    }
    if (fstat(fd, &st) < 0 || (st.st_mode & 0022) != 0) {
        close(fd);
        return shd_fail(
            err, SHD_EPERM,
            "others than its owner may write to the state directory %s; chmod it to 0700", path);
    }
    *out = fd;
    return SHD_OK;
}

static int lock_file(int dir, const char *path, int *out, shd_error *err)
{
    const int fd = openat(dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return shd_fail(err, SHD_EIO, "the state directory %s cannot be written: %s", path,
                        strerror(errno));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        const int number = errno;
        char pid[32] = "";
        const ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);
        close(fd);
        if (number != EWOULDBLOCK) {
            return shd_fail(err, SHD_EIO, "cannot lock the state directory %s: %s", path,
                            strerror(number));
        }
        pid[n > 0 ? strcspn(pid, "\n") : 0] = '\0';
        return shd_fail(
            err, SHD_EEXIST,
            "another daemon (pid %s) has the state directory %s; stop it or set state_dir",
            pid[0] != '\0' ? pid : "unknown", path);
    }
    char pid[32];
    const int n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, pid, (size_t)n, 0) != n) {
        const int number = errno;
        close(fd);
        return shd_fail(err, SHD_EIO, "cannot write to the state directory %s: %s", path,
                        strerror(number));
    }
    *out = fd;
    return SHD_OK;
}

int shd_statedir_open(const char *path, shd_statedir **out, shd_error *err)
{
    int dir = -1, lock = -1;
    SHD_TRY(open_directory(path, &dir, err));
    const int rc = lock_file(dir, path, &lock, err);
    if (rc < 0) {
        close(dir);
        return rc;
    }
    shd_statedir *state = shd_malloc(sizeof(*state));
    state->dir = dir;
    state->lock = lock;
    *out = state;
    return SHD_OK;
}

int shd_statedir_fd(const shd_statedir *dir)
{
    return dir->dir;
}

void shd_statedir_free(shd_statedir *dir)
{
    if (dir == NULL) {
        return;
    }
    /* The file stays: a second daemon may have it open, about to lock it. */
    close(dir->lock);
    close(dir->dir);
    free(dir);
}

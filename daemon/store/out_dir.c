/* Directories written beside their place and renamed into it; see out_dir.h. Floor F3. */
#include "daemon/store/out_dir.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/store/safetensors.h"

#define ACL "system.posix_acl_access"
#define MARK ".shardd-writes-here" /* in a hidden directory, until its end */
#define INFIX ".shardd-"           /* of its name, before as many hexadecimal digits */
enum { DIGITS = 16 };

struct shd_out_dir {
    int parent, fd;
    char *path, *name; /* where it will be */
    char *hidden;      /* its name until then */
    uid_t uid;
    gid_t gid;
    mode_t others; /* bits that group and others have on `parent` */
    char **files;
    uint32_t n;
};

static int fail(shd_error *err, const char *what, const char *path, int number)
{
    const int may_not = number == EACCES || number == EPERM || number == EROFS;
    return shd_fail(err, may_not ? SHD_EPERM : SHD_EIO, "cannot %s '%s': %s%s", what, path,
                    strerror(number),
                    number == EROFS ? " (a service unit must allow it: ReadWritePaths=)" : "");
}

/* ---- whose it will be ---- */

/* linux/posix_acl_xattr.h: entries in the order of their tags, then of their ids. */
enum { ACL_VERSION = 2, USER_OBJ = 1, USER = 2, GROUP_OBJ = 4, MASK = 0x10, OTHER = 0x20 };

typedef struct acl_entry {
    uint16_t tag, perm;
    uint32_t id;
} acl_entry;

static acl_entry entry(unsigned tag, unsigned perm, uint32_t id)
{
    return (acl_entry){htole16((uint16_t)tag), htole16((uint16_t)perm), htole32(id)};
}

/* Owner and `uid` have `all` bits, the group and others those of `mode`. */
static int set_list(int fd, uid_t uid, unsigned all, mode_t mode)
{
    struct {
        uint32_t version;
        acl_entry entries[5];
    } list = {htole32(ACL_VERSION),
              {entry(USER_OBJ, all, UINT32_MAX), entry(USER, all, uid),
               entry(GROUP_OBJ, mode >> 3 & 7, UINT32_MAX), entry(MASK, all, UINT32_MAX),
               entry(OTHER, mode & 7, UINT32_MAX)}};
    _Static_assert(sizeof(list) == 4 + 5 * 8, "as the kernel reads it");
    return fsetxattr(fd, ACL, &list, sizeof(list), 0);
}

/* Makes what fd is open on reachable as the header says. */
static int share(const shd_out_dir *d, int fd, int is_dir, const char *path, shd_error *err)
{
    const unsigned all = is_dir ? 7 : 6;
    const mode_t mode = all << 6 | (d->others & (is_dir ? 055 : 044));
    if (fchmod(fd, mode) < 0) {
        return fail(err, "set the permissions of", path, errno);
    }
    if (d->uid == geteuid() || fchown(fd, d->uid, d->gid) == 0) {
        return 0;
    }
    if (errno != EPERM) {
        return fail(err, "give away", path, errno);
    }
    if (set_list(fd, d->uid, all, mode) == 0) {
        return 0;
    }
    if (errno != ENOTSUP) {
        return fail(err, "set the access list of", path, errno);
    }
    return shd_fail(err, SHD_EPERM,
                    "'%s': the daemon (uid %u) can give files to uid %u neither by ownership nor "
                    "by an access list on this file system; choose a directory on another",
                    d->path, (unsigned)geteuid(), (unsigned)d->uid);
}

/* ---- files ---- */

static char *path_of(const shd_out_dir *d, const char *name)
{
    return shd_asprintf("%s/%s", d->path, name);
}

int shd_out_dir_file(shd_out_dir *d, const char *name, uint64_t bytes, int *fd_out, shd_error *err)
{
    char *path = path_of(d, name);
    int rc = 0;
    const int fd = openat(d->fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        rc = fail(err, "make", path, errno);
    } else {
        d->files = shd_reallocarray(d->files, d->n + 1, sizeof(*d->files));
        d->files[d->n++] = shd_strdup(name);
        if (bytes > 0 && fallocate(fd, 0, 0, (off_t)bytes) < 0 && errno != EOPNOTSUPP &&
            errno != ENOSYS) {
            rc = fail(err, "reserve the bytes of", path, errno);
            close(fd);
        }
    }
    free(path);
    if (rc == 0) {
        *fd_out = fd;
    }
    return rc;
}

int shd_out_dir_reopen(const shd_out_dir *d, const char *name, int *fd_out, shd_error *err)
{
    *fd_out = openat(d->fd, name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (*fd_out >= 0) {
        return 0;
    }
    const int number = errno;
    char *path = path_of(d, name);
    const int rc = fail(err, "open", path, number);
    free(path);
    return rc;
}

int shd_out_dir_write(shd_out_dir *d, const char *name, const void *data, uint64_t bytes,
                      shd_error *err)
{
    int fd;
    SHD_TRY(shd_out_dir_file(d, name, bytes, &fd, err));
    char *path = path_of(d, name);
    const int rc = shd_safetensors_write(fd, path, data, bytes, 0, err);
    free(path);
    close(fd);
    return rc;
}

const char *shd_out_dir_path(const shd_out_dir *d)
{
    return d->path;
}

uint32_t shd_out_dir_n(const shd_out_dir *d)
{
    return d->n;
}

const char *shd_out_dir_name(const shd_out_dir *d, uint32_t i)
{
    return d->files[i];
}

/* What cannot be shared at the end must not be written first. */
static int try_sharing(shd_out_dir *d, shd_error *err)
{
    int fd;
    SHD_TRY(shd_out_dir_file(d, ".try", 0, &fd, err));
    const int rc = share(d, fd, 0, d->path, err);
    close(fd);
    unlinkat(d->fd, ".try", 0);
    free(d->files[--d->n]);
    return rc;
}

/* ---- what the dead have left ---- */

static int is_hidden_name(const char *name)
{
    const size_t n = strlen(name), tail = strlen(INFIX) + DIGITS;
    return name[0] == '.' && n > tail && strncmp(name + n - tail, INFIX, strlen(INFIX)) == 0 &&
           strspn(name + n - DIGITS, "0123456789abcdef") == DIGITS;
}

/* Removes what is in a hidden directory, if it is one of ours and nothing else is in it. */
static void remove_files(int fd, uid_t uid)
{
    struct stat st;
    DIR *dir = fdopendir(dup(fd));
    int ours = dir != NULL && fstatat(fd, MARK, &st, AT_SYMLINK_NOFOLLOW) == 0;
    for (int pass = 0; pass < 2 && ours; pass++) {
        rewinddir(dir);
        for (const struct dirent *entry; ours && (entry = readdir(dir)) != NULL;) {
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
                continue;
            }
            ours = fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                   S_ISREG(st.st_mode) && st.st_uid == uid;
            if (ours && pass == 1 && strcmp(entry->d_name, MARK) != 0) {
                unlinkat(fd, entry->d_name, 0);
            }
        }
    }
    if (ours) {
        unlinkat(fd, MARK, 0); /* last: what remains of this can be removed the next time */
    }
    if (dir != NULL) {
        closedir(dir);
    }
}

/* The lock goes with the process that has it, however that ends. */
static void sweep_one(int parent, const char *name)
{
    struct stat st;
    const int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 077) == 0 &&
        flock(fd, LOCK_EX | LOCK_NB) == 0) {
        remove_files(fd, st.st_uid);
        if (unlinkat(parent, name, AT_REMOVEDIR) == 0) {
            shd_log(SHD_LOG_NOTICE, "removed '%s', which an export that died had left", name);
        }
    }
    close(fd);
}

static void sweep(const shd_out_dir *d)
{
    const int fd = openat(d->parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        return; /* it may be written and not listed */
    }
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (is_hidden_name(entry->d_name)) {
            sweep_one(d->parent, entry->d_name);
        }
    }
    closedir(dir);
}

/* ---- life ---- */

/* Makes the hidden directory and locks it. 1: another process took it for a left-over before it was
 * locked. */
static int make_one(shd_out_dir *d, shd_error *err)
{
    uint64_t random = 0;
    struct stat st, named;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
        return fail(err, "name a directory for", d->path, errno);
    }
    /* The end of a long name is left out: the whole must fit into a name. */
    d->hidden = shd_asprintf(".%.200s" INFIX "%016llx", d->name, (unsigned long long)random);
    if (mkdirat(d->parent, d->hidden, 0700) < 0) {
        return fail(err, "make a directory beside", d->path, errno);
    }
    d->fd = openat(d->parent, d->hidden, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (d->fd < 0 && errno == ENOENT) {
        return 1;
    }
    if (d->fd < 0 || fstat(d->fd, &st) < 0) {
        return fail(err, "open the directory beside", d->path, errno);
    }
    /* Who may write the parent could have put another one there, to be given it at the end. */
    if (st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
        return shd_fail(err, SHD_EPERM, "the directory made beside '%s' was exchanged", d->path);
    }
    /* On a file system without locks nobody has one to remove it with, either. */
    const int locked = flock(d->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    return !locked || fstatat(d->parent, d->hidden, &named, AT_SYMLINK_NOFOLLOW) < 0 ||
           named.st_ino != st.st_ino || named.st_dev != st.st_dev;
}

static int make_hidden(shd_out_dir *d, shd_error *err)
{
    int rc = 1, fd;
    for (int tries = 0; rc > 0 && tries < 10; tries++) {
        rc = make_one(d, err);
        if (rc > 0) {
            if (d->fd >= 0) {
                close(d->fd);
            }
            free(d->hidden);
            d->hidden = NULL;
            d->fd = -1;
        }
    }
    if (rc > 0) {
        return fail(err, "keep a directory beside", d->path, EBUSY);
    }
    SHD_TRY(rc);
    SHD_TRY(shd_out_dir_file(d, MARK, 0, &fd, err));
    close(fd);
    free(d->files[--d->n]); /* not one of the files to be */
    return 0;
}

static int begin(shd_out_dir *d, shd_error *err)
{
    struct stat st;
    if (fstatat(d->parent, d->name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        return shd_fail(err, SHD_EEXIST, "'%s' exists already; choose a new name", d->path);
    }
    if (errno != ENOENT || fstat(d->parent, &st) < 0) {
        return fail(err, "look for", d->path, errno);
    }
    d->others = st.st_mode & 055;
    if ((st.st_mode & S_ISGID) != 0) { /* as directories made there would have it */
        d->gid = st.st_gid;
    }
    sweep(d);
    SHD_TRY(make_hidden(d, err));
    return try_sharing(d, err);
}

int shd_out_dir_create(int parent, const char *path, const char *name, uid_t uid, gid_t gid,
                       shd_out_dir **out, shd_error *err)
{
    shd_out_dir *d = shd_calloc(1, sizeof(*d));
    *d = (shd_out_dir){.parent = parent,
                       .fd = -1,
                       .path = shd_strdup(path),
                       .name = shd_strdup(name),
                       .uid = uid,
                       .gid = gid};
    const int rc = begin(d, err);
    if (rc < 0) {
        shd_out_dir_discard(d);
        return rc;
    }
    *out = d;
    return 0;
}

static void release(shd_out_dir *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        free(d->files[i]);
    }
    if (d->fd >= 0) {
        close(d->fd);
    }
    close(d->parent);
    free(d->files);
    free(d->path);
    free(d->name);
    free(d->hidden);
    free(d);
}

void shd_out_dir_discard(shd_out_dir *d)
{
    if (d == NULL) {
        return;
    }
    for (uint32_t i = 0; i < d->n; i++) {
        unlinkat(d->fd, d->files[i], 0);
    }
    if (d->fd >= 0) {
        unlinkat(d->fd, MARK, 0);
    }
    if (d->hidden != NULL) {
        unlinkat(d->parent, d->hidden, AT_REMOVEDIR);
    }
    release(d);
}

static int finish_file(const shd_out_dir *d, const char *name, shd_error *err)
{
    int fd;
    SHD_TRY(shd_out_dir_reopen(d, name, &fd, err));
    char *path = path_of(d, name);
    int rc = fsync(fd) == 0 ? 0 : fail(err, "bring to disk", path, errno);
    if (rc == 0) {
        rc = share(d, fd, 0, path, err);
    }
    if (close(fd) < 0 && rc == 0) {
        rc = fail(err, "close", path, errno);
    }
    free(path);
    return rc;
}

static int finish(shd_out_dir *d, shd_error *err)
{
    for (uint32_t i = 0; i < d->n; i++) {
        SHD_TRY(finish_file(d, d->files[i], err));
    }
    if (unlinkat(d->fd, MARK, 0) < 0) {
        return fail(err, "finish", d->path, errno);
    }
    SHD_TRY(share(d, d->fd, 1, d->path, err));
    if (fsync(d->fd) < 0) {
        return fail(err, "bring to disk", d->path, errno);
    }
    if (renameat2(d->parent, d->hidden, d->parent, d->name, RENAME_NOREPLACE) < 0) {
        return errno == EEXIST
                   ? shd_fail(err, SHD_EEXIST, "'%s' has come into being meanwhile", d->path)
                   : fail(err, "name", d->path, errno);
    }
    if (fsync(d->parent) < 0) {
        const int number = errno;
        renameat(d->parent, d->name, d->parent, d->hidden);
        return fail(err, "bring to disk", d->path, number);
    }
    return 0;
}

int shd_out_dir_finish(shd_out_dir *d, shd_error *err)
{
    const int rc = finish(d, err);
    if (rc < 0) {
        shd_out_dir_discard(d);
    } else {
        release(d);
    }
    return rc;
}

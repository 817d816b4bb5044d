/* Opening for callers: walks from the root one component at a time, holding every directory by an
 * O_PATH descriptor, so that what was checked is what is opened, whatever is renamed meanwhile. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "daemon/base/mem.h"
#include "daemon/service/auth_groups.h"

#define MAX_LINKS 40  /* as the kernel's own limit */
#define MAX_DEPTH 256 /* directories held open at once */

/* ---- may this caller? ---- */

/* On-disk form of a POSIX ACL (linux/posix_acl_xattr.h): a 4-byte version, then entries. */
#define ACL_VERSION 2
enum {
    ACL_USER_OBJ = 0x01,
    ACL_USER = 0x02,
    ACL_GROUP_OBJ = 0x04,
    ACL_GROUP = 0x08,
    ACL_MASK = 0x10,
    ACL_OTHER = 0x20
};
typedef struct acl_entry {
    uint16_t tag, perm;
    uint32_t id;
} acl_entry;

typedef struct caller {
    shd_identity who;
    shd_auth_groups groups;
} caller;

/* The access check algorithm of acl(5). `want`: 4 read, 1 search. */
static int acl_allows(const acl_entry *entries, size_t n, const struct stat *st, const caller *c,
                      unsigned want)
{
    unsigned mask = 7;
    for (size_t i = 0; i < n; i++) {
        if (le16toh(entries[i].tag) == ACL_MASK) {
            mask = le16toh(entries[i].perm);
        }
    }
    unsigned other = 0;
    int group_matched = 0, group_grants = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned perm = le16toh(entries[i].perm);
        const uint32_t id = le32toh(entries[i].id);
        switch (le16toh(entries[i].tag)) {
        case ACL_USER_OBJ:
            if (st->st_uid == c->who.uid) {
                return (perm & want) == want;
            }
            break;
        case ACL_USER: /* entries are sorted: before every group entry */
            if (id == c->who.uid) {
                return (perm & mask & want) == want;
            }
            break;
        case ACL_GROUP_OBJ:
        case ACL_GROUP: {
            const gid_t gid = le16toh(entries[i].tag) == ACL_GROUP ? id : st->st_gid;
            if (shd_auth_groups_have(&c->groups, gid)) {
                group_matched = 1;
                group_grants |= (perm & mask & want) == want;
            }
            break;
        }
        case ACL_OTHER:
            other = perm;
            break;
        default:
            break;
        }
    }
    return group_matched ? group_grants : (other & want) == want;
}

static void proc_path(char out[32], int fd)
{
    snprintf(out, 32, "/proc/self/fd/%d", fd);
}

/* 1 yes, 0 no, SHD_EIO when it cannot be told. */
static int allows(int fd, const struct stat *st, const caller *c, unsigned want, shd_error *err)
{
    if (c->who.uid == 0) {
        return 1;
    }
    char path[32];
    union {
        char bytes[4 + 256 * sizeof(acl_entry)];
        uint32_t version;
    } acl;
    proc_path(path, fd); /* an O_PATH descriptor takes no fgetxattr */
    const ssize_t size = getxattr(path, "system.posix_acl_access", &acl, sizeof(acl));
    if (size < 0 && errno != ENODATA && errno != ENOTSUP) {
        return shd_fail(err, SHD_EIO, "its access list cannot be read: %s", strerror(errno));
    }
    if (size >= 4) {
        if (le32toh(acl.version) != ACL_VERSION) {
            return shd_fail(err, SHD_EIO, "its access list has version %u, not %u",
                            le32toh(acl.version), ACL_VERSION);
        }
        acl_entry entries[256];
        const size_t n = ((size_t)size - 4) / sizeof(acl_entry);
        memcpy(entries, acl.bytes + 4, n * sizeof(acl_entry));
        return acl_allows(entries, n, st, c, want);
    }
    if (st->st_uid == c->who.uid) {
        return (st->st_mode >> 6 & want) == want;
    }
    if (shd_auth_groups_have(&c->groups, st->st_gid)) {
        return (st->st_mode >> 3 & want) == want;
    }
    return (st->st_mode & want) == want;
}

/* ---- the walk ---- */

typedef struct walk {
    const char *path; /* as the caller gave it, for messages */
    const char *root;
    const caller *caller;
    int dirs[MAX_DEPTH]; /* dirs[0] is the root */
    int depth;
    int links;
    int makes; /* a directory is looked for, to make something in it; else a file to read */
} walk;

static int is_outside(shd_error *err, const walk *w)
{
    return shd_fail(err, SHD_EPERM, "%s leads out of the data root; name a file inside it",
                    w->path);
}

static int enter(walk *w, int fd, const struct stat *st, shd_error *err)
{
    const int ok = allows(fd, st, w->caller, 1, err);
    if (ok < 0) {
        return shd_error_prefix(err, ok, "%s: a directory on the way", w->path);
    }
    if (!ok) {
        return shd_fail(err, SHD_EPERM, "%s: uid %u may not search a directory on the way", w->path,
                        (unsigned)w->caller->who.uid);
    }
    if (w->depth == MAX_DEPTH) {
        return shd_fail(err, SHD_EINVAL, "%s has more than %d directories", w->path, MAX_DEPTH);
    }
    w->dirs[w->depth++] = fd;
    return SHD_OK;
}

/* One component, no link followed, held by an O_PATH descriptor. The name has no slash and is not
 * "..", so plain openat cannot leave `dir` either; openat2 has the kernel say so too. Some
 * sandboxes hide openat2 (RestrictSUIDSGID= of systemd, whose filter cannot look into its
 * argument). */
static int open_component(int dir, const char *name)
{
    struct open_how how = {
        .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
    };
    const int fd = (int)syscall(SYS_openat2, dir, name, &how, sizeof(how));
    return fd < 0 && errno == ENOSYS ? openat(dir, name, (int)how.flags) : fd;
}

static int cannot_open(shd_error *err, const walk *w, int number)
{
    switch (number) {
    case ENOENT:
    case ENOTDIR:
        return shd_fail(err, SHD_ENOTFOUND,
                        w->makes ? "%s: the directory to make it in does not exist"
                                 : "%s does not exist",
                        w->path);
    case EACCES:
    case EPERM:
        return shd_fail(err, SHD_EPERM, "%s: the daemon (uid %u) may not %s it", w->path,
                        (unsigned)geteuid(), w->makes ? "make" : "read");
    default:
        return shd_fail(err, SHD_EIO, "%s: %s", w->path, strerror(number));
    }
}

static int check_file(const walk *w, int fd, const struct stat *st, shd_error *err)
{
    if (!S_ISREG(st->st_mode)) {
        return shd_fail(err, SHD_EINVAL, "%s is %s, not a regular file", w->path,
                        S_ISDIR(st->st_mode)    ? "a directory"
                        : S_ISFIFO(st->st_mode) ? "a pipe"
                        : S_ISSOCK(st->st_mode) ? "a socket"
                                                : "a device");
    }
    const int ok = allows(fd, st, w->caller, 4, err);
    if (ok < 0) {
        return shd_error_prefix(err, ok, "%s", w->path);
    }
    if (!ok) {
        return shd_fail(err, SHD_EPERM, "%s: uid %u may not read it", w->path,
                        (unsigned)w->caller->who.uid);
    }
    return SHD_OK;
}

/* What follows `root` in `path`; NULL when the path does not start with it. */
static const char *strip_root(const char *root, const char *path)
{
    size_t n = strlen(root);
    while (n > 0 && root[n - 1] == '/') {
        n--;
    }
    return strncmp(root, path, n) == 0 && (path[n] == '/' || path[n] == '\0') ? path + n : NULL;
}

/* The link's target in front of what remains of the path. An absolute one may point beneath the
 * same root: the walk begins there again, with every check. */
static int splice_link(walk *w, int fd, char **rest, shd_error *err)
{
    char target[PATH_MAX];
    const ssize_t n = readlinkat(fd, "", target, sizeof(target) - 1);
    if (n < 0) {
        return cannot_open(err, w, errno);
    }
    target[n] = '\0';
    const char *inner = target[0] == '/' ? strip_root(w->root, target) : target;
    if (inner == NULL) {
        return is_outside(err, w);
    }
    if (++w->links > MAX_LINKS) {
        return shd_fail(err, SHD_EINVAL, "%s passes more than %d symbolic links", w->path,
                        MAX_LINKS);
    }
    if (strlen(inner) + strlen(*rest) + 2 > 4 * PATH_MAX) {
        return shd_fail(err, SHD_EINVAL, "%s becomes too long through symbolic links", w->path);
    }
    while (target[0] == '/' && w->depth > 1) {
        close(w->dirs[--w->depth]);
    }
    char *spliced = shd_asprintf("%s/%s", inner, *rest);
    free(*rest);
    *rest = spliced;
    return SHD_OK;
}

/* Takes the first component off *rest into name. 0 when there is none. */
static int next_component(char **rest, char name[NAME_MAX + 1], int *too_long)
{
    char *s = *rest;
    s += strspn(s, "/");
    const size_t n = strcspn(s, "/");
    *too_long = n > NAME_MAX;
    if (n == 0 || *too_long) {
        return 0;
    }
    memcpy(name, s, n);
    name[n] = '\0';
    memmove(*rest, s + n, strlen(s + n) + 1);
    return 1;
}

/* What was checked, by the descriptor that was. */
static int reopen(const walk *w, int fd, int flags, int *fd_out, shd_error *err)
{
    char path[32];
    proc_path(path, fd);
    *fd_out = open(path, flags | O_CLOEXEC | O_NOCTTY);
    return *fd_out < 0 ? cannot_open(err, w, errno) : SHD_OK;
}

/* `file`: what the walk ended at; -1: a directory. */
static int open_found(const walk *w, int file, int *fd_out, shd_error *err)
{
    return file < 0 ? shd_fail(err, SHD_EINVAL, "%s is a directory, not a regular file", w->path)
                    : reopen(w, file, O_RDONLY, fd_out, err);
}

static int open_found_dir(const walk *w, int file, int *fd_out, shd_error *err)
{
    struct stat st;
    if (file >= 0) {
        return cannot_open(err, w, ENOTDIR);
    }
    const int fd = w->dirs[w->depth - 1];
    if (fstat(fd, &st) < 0) {
        return cannot_open(err, w, errno);
    }
    const int ok = allows(fd, &st, w->caller, 2 | 1, err);
    if (ok < 0) {
        return shd_error_prefix(err, ok, "%s: the directory to make it in", w->path);
    }
    return ok ? reopen(w, fd, O_RDONLY | O_DIRECTORY, fd_out, err)
              : shd_fail(err, SHD_EPERM, "%s: uid %u may not write the directory to make it in",
                         w->path, (unsigned)w->caller->who.uid);
}

/* `rest` (owned) is relative to dirs[0]. */
static int descend(walk *w, char *rest, int *fd_out, shd_error *err)
{
    char name[NAME_MAX + 1];
    int too_long = 0, rc = SHD_OK, file = -1;
    while (rc == SHD_OK && file < 0 && next_component(&rest, name, &too_long)) {
        if (strcmp(name, ".") == 0) {
            continue;
        }
        if (strcmp(name, "..") == 0) {
            if (w->depth == 1) {
                rc = is_outside(err, w);
            } else {
                close(w->dirs[--w->depth]);
            }
            continue;
        }
        const int fd = open_component(w->dirs[w->depth - 1], name);
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0) {
            rc = cannot_open(err, w, errno);
            if (fd >= 0) {
                close(fd);
            }
        } else if (S_ISLNK(st.st_mode)) {
            rc = splice_link(w, fd, &rest, err);
            close(fd);
        } else if (S_ISDIR(st.st_mode)) {
            rc = enter(w, fd, &st, err);
            if (rc < 0) {
                close(fd);
            }
        } else if (rest[strspn(rest, "/")] != '\0') {
            rc = cannot_open(err, w, ENOTDIR);
            close(fd);
        } else {
            rc = w->makes ? SHD_OK : check_file(w, fd, &st, err);
            file = fd;
        }
    }
    if (rc == SHD_OK && too_long) {
        rc = shd_fail(err, SHD_EINVAL, "%s has a name of more than %d bytes", w->path, NAME_MAX);
    }
    if (rc == SHD_OK) {
        rc = w->makes ? open_found_dir(w, file, fd_out, err) : open_found(w, file, fd_out, err);
    }
    if (file >= 0) {
        close(file);
    }
    free(rest);
    return rc;
}

static int open_beneath(const caller *c, const char *root, const char *path, const char *rest,
                        int makes, int *fd_out, shd_error *err)
{
    walk w = {.path = path, .root = root, .caller = c, .makes = makes};
    struct stat st;
    const int fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        const int number = errno;
        if (fd >= 0) {
            close(fd);
        }
        return shd_fail(err, SHD_EIO, "%s: the data root %s cannot be opened: %s", path, root,
                        strerror(number));
    }
    int rc = enter(&w, fd, &st, err);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    rc = descend(&w, shd_strdup(rest), fd_out, err);
    while (w.depth > 0) {
        close(w.dirs[--w.depth]);
    }
    return rc;
}

static int no_root(shd_error *err, char *const *roots, uint32_t n, const char *path)
{
    if (n == 0) {
        return shd_fail(err, SHD_EPERM,
                        "%s: this daemon opens no files for clients; its operator can allow a "
                        "directory with data_roots",
                        path);
    }
    char list[256] = "";
    for (uint32_t i = 0; i < n; i++) {
        const size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%s", i == 0 ? "" : ", ", roots[i]);
    }
    return shd_fail(err, SHD_EPERM, "%s lies outside the data roots of this daemon: %s", path,
                    list);
}

static int check_path(const char *path, shd_error *err)
{
    if (path[0] != '/') {
        return shd_fail(err, SHD_EINVAL, "'%s' is not an absolute path", path);
    }
    if (strlen(path) >= PATH_MAX) {
        return shd_fail(err, SHD_EINVAL, "a path of %zu bytes is too long", strlen(path));
    }
    return SHD_OK;
}

/* Opens `inner`, which is `path` or the directory to make it in. */
static int open_in_roots(const shd_identity *who, char *const *roots, uint32_t n_roots,
                         const char *path, const char *inner, int makes, int *fd_out,
                         shd_error *err)
{
    caller c = {.who = *who};
    shd_auth_groups_init(&c.groups, who);
    int rc = SHD_ENOTFOUND, tried = 0;
    /* Roots may lie within each other: the first one that allows it will do. */
    for (uint32_t i = 0; i < n_roots && rc < 0; i++) {
        const char *rest = strip_root(roots[i], inner);
        if (rest != NULL) {
            rc = open_beneath(&c, roots[i], path, rest, makes, fd_out, err);
            tried = 1;
        }
    }
    shd_auth_groups_fini(&c.groups);
    return tried ? rc : no_root(err, roots, n_roots, path);
}

int shd_auth_open(const shd_identity *who, char *const *roots, uint32_t n_roots, const char *path,
                  int *fd_out, shd_error *err)
{
    SHD_TRY(check_path(path, err));
    return open_in_roots(who, roots, n_roots, path, path, 0, fd_out, err);
}

int shd_auth_dir_open(void *dir, const char *name, int *fd_out, shd_error *err)
{
    const shd_auth_dir *d = dir;
    char *path = shd_asprintf("%s/%s", d->path, name);
    const int rc = shd_auth_open(d->who, d->roots, d->n_roots, path, fd_out, err);
    free(path);
    return rc;
}

int shd_auth_open_parent(const shd_identity *who, char *const *roots, uint32_t n_roots,
                         const char *path, int *fd_out, char **name_out, shd_error *err)
{
    SHD_TRY(check_path(path, err));
    char *inner = shd_strdup(path);
    size_t n = strlen(inner);
    while (n > 1 && inner[n - 1] == '/') {
        inner[--n] = '\0';
    }
    char *name = strrchr(inner, '/') + 1;
    int rc = SHD_OK;
    *name_out = NULL;
    if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        rc = shd_fail(err, SHD_EINVAL, "%s does not end in the name of something new", path);
    } else if (strlen(name) > NAME_MAX) {
        rc = shd_fail(err, SHD_EINVAL, "%s has a name of more than %d bytes", path, NAME_MAX);
    } else {
        *name_out = shd_strdup(name);
        name[0] = '\0';
        rc = open_in_roots(who, roots, n_roots, path, inner, 1, fd_out, err);
    }
    if (rc < 0) {
        free(*name_out);
        *name_out = NULL;
    }
    free(inner);
    return rc;
}

/* Who is calling and what they may do. Identity is what the kernel says of a local peer
 * (SO_PEERCRED); rights come from the config. Floor F5; pure except for name look-ups. */
#ifndef SHD_DAEMON_SERVICE_AUTH_H
#define SHD_DAEMON_SERVICE_AUTH_H

#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_identity {
    uid_t uid;
    gid_t gid;
    pid_t pid;
} shd_identity;

/* SO_PEERCRED of a connected local socket. */
int shd_auth_identify(int fd, shd_identity *out, shd_error *err);

/* Rights given by the config. */
typedef struct shd_auth_rules {
    uid_t *admin_uids; /* may see and manage every job */
    uint32_t n_admin_uids;
    gid_t *admin_gids; /* likewise, by membership (primary or supplementary) */
    uint32_t n_admin_gids;
    gid_t *allow_gids; /* who may use the daemon at all; none listed: everyone who can connect */
    uint32_t n_allow_gids;
    int share_with_group; /* members of the owner's primary group may see (not manage) a job */
} shd_auth_rules;

typedef enum shd_right {
    SHD_RIGHT_SEE = 0, /* get, list, status, watch */
    SHD_RIGHT_USE,     /* forward, generate: reads the weights */
    SHD_RIGHT_MANAGE   /* drive, cancel, pause, resume, delete */
} shd_right;

/* May the caller connect and create jobs? root and the daemon's own uid always may. */
int shd_auth_may_connect(const shd_auth_rules *rules, const shd_identity *who);
int shd_auth_is_admin(const shd_auth_rules *rules, const shd_identity *who);

/* 0; SHD_ENOTFOUND for a job the caller may not see ("no job X", as if it did not exist); SHD_EPERM
 * for one it may see but not use so. `owner_gid`: primary group of the owner at creation. */
int shd_auth_check_job(const shd_auth_rules *rules, const shd_identity *who, uid_t owner_uid,
                       gid_t owner_gid, const char *job, shd_right right, shd_error *err);

/* Opens a file for reading on behalf of the caller: `path` must be absolute and lie beneath one of
 * `roots` (openat2 RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS; symbolic links may be absolute when
 * they stay beneath the same root), be a regular file, and every directory from the root on and the
 * file itself must be accessible to the caller's own uid, gid and groups. On success *fd_out is
 * open read-only (close-on-exec). Errors name the path, the reason and, for a path outside, the
 * roots. */
int shd_auth_open(const shd_identity *who, char *const *roots, uint32_t n_roots, const char *path,
                  int *fd_out, shd_error *err);

/* A directory whose files are opened for a caller one by one. All borrowed. */
typedef struct shd_auth_dir {
    const shd_identity *who;
    char *const *roots;
    uint32_t n_roots;
    const char *path;
} shd_auth_dir;

/* shd_auth_open of the file `name` of the shd_auth_dir `dir`. */
int shd_auth_dir_open(void *dir, const char *name, int *fd_out, shd_error *err);

/* On whose behalf files are opened, and beneath which roots; all borrowed. */
typedef struct shd_opener {
    const shd_identity *who;
    char *const *roots;
    uint32_t n_roots;
} shd_opener;

/* Copies of roots, for who opens files on another thread while the configuration may change. Freed
 * by shd_auth_roots_free. */
char **shd_auth_roots_copy(char *const *roots, uint32_t n_roots);
void shd_auth_roots_free(char **roots, uint32_t n_roots);

/* Opens the directory that `path` would be made in, on behalf of the caller, who must be allowed to
 * search every directory from a root on and to write and search that one; it must lie beneath a
 * root or be one. *name_out (freed by the caller) is the last component of `path`, which need not
 * exist. SHD_EINVAL for a path that ends in "." or ".."; other errors as of shd_auth_open. */
int shd_auth_open_parent(const shd_identity *who, char *const *roots, uint32_t n_roots,
                         const char *path, int *fd_out, char **name_out, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

#include "daemon/service/auth.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/mem.h"
#include "daemon/service/auth_groups.h"

int shd_auth_identify(int fd, shd_identity *out, shd_error *err)
{
    struct ucred cred;
    socklen_t size = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0) {
        return shd_fail(err, SHD_EIO, "cannot tell who is connected: %s", strerror(errno));
    }
    if (cred.pid == 0 || cred.uid == (uid_t)-1) { /* not a connected local socket */
        return shd_fail(err, SHD_EPERM, "the kernel does not say who is connected");
    }
    *out = (shd_identity){.uid = cred.uid, .gid = cred.gid, .pid = cred.pid};
    return SHD_OK;
}

void shd_auth_groups_init(shd_auth_groups *groups, const shd_identity *who)
{
    *groups = (shd_auth_groups){0};
    groups->gids = shd_calloc(1, sizeof(gid_t));
    groups->gids[0] = who->gid;
    groups->n = 1;

    struct passwd entry, *found = NULL;
    char small[4096];
    char *buf = small, *big = NULL;
    size_t size = sizeof(small);
    int rc;
    while ((rc = getpwuid_r(who->uid, &entry, buf, size, &found)) == ERANGE) {
        size *= 2;
        free(big);
        buf = big = shd_malloc(size);
    }
    if (rc == 0 && found != NULL) {
        /* The primary group of the process comes first, it may differ from the user's. */
        int n = 64;
        gid_t *list = shd_calloc((size_t)n + 1, sizeof(gid_t));
        if (getgrouplist(found->pw_name, found->pw_gid, list + 1, &n) < 0) {
            list = shd_reallocarray(list, (size_t)n + 1, sizeof(gid_t));
            if (getgrouplist(found->pw_name, found->pw_gid, list + 1, &n) < 0) {
                n = 0; /* it grew meanwhile; the process's own group is certain */
            }
        }
        list[0] = who->gid;
        free(groups->gids);
        groups->gids = list;
        groups->n = (uint32_t)n + 1;
    }
    free(big);
}

void shd_auth_groups_fini(shd_auth_groups *groups)
{
    free(groups->gids);
    groups->gids = NULL;
    groups->n = 0;
}

int shd_auth_groups_have(const shd_auth_groups *groups, gid_t gid)
{
    for (uint32_t i = 0; i < groups->n; i++) {
        if (groups->gids[i] == gid) {
            return 1;
        }
    }
    return 0;
}

static int in_any_group(const shd_identity *who, const gid_t *gids, uint32_t n)
{
    if (n == 0) {
        return 0;
    }
    shd_auth_groups groups;
    shd_auth_groups_init(&groups, who);
    int found = 0;
    for (uint32_t i = 0; i < n && !found; i++) {
        found = shd_auth_groups_have(&groups, gids[i]);
    }
    shd_auth_groups_fini(&groups);
    return found;
}

int shd_auth_is_admin(const shd_auth_rules *rules, const shd_identity *who)
{
    if (who->uid == 0 || who->uid == geteuid()) {
        return 1;
    }
    for (uint32_t i = 0; i < rules->n_admin_uids; i++) {
        if (rules->admin_uids[i] == who->uid) {
            return 1;
        }
    }
    return in_any_group(who, rules->admin_gids, rules->n_admin_gids);
}

int shd_auth_may_connect(const shd_auth_rules *rules, const shd_identity *who)
{
    return rules->n_allow_gids == 0 || shd_auth_is_admin(rules, who) ||
           in_any_group(who, rules->allow_gids, rules->n_allow_gids);
}

int shd_auth_check_job(const shd_auth_rules *rules, const shd_identity *who, uid_t owner_uid,
                       gid_t owner_gid, const char *job, shd_right right, shd_error *err)
{
    if (who->uid == owner_uid || shd_auth_is_admin(rules, who)) {
        return SHD_OK;
    }
    if (!rules->share_with_group || !in_any_group(who, &owner_gid, 1)) {
        return shd_fail(err, SHD_ENOTFOUND, "no job '%s'", job);
    }
    if (right == SHD_RIGHT_SEE) {
        return SHD_OK;
    }
    return shd_fail(err, SHD_EPERM,
                    "job '%s' belongs to uid %u; members of its group may see it, not %s it", job,
                    (unsigned)owner_uid, right == SHD_RIGHT_USE ? "use" : "manage");
}

char **shd_auth_roots_copy(char *const *roots, uint32_t n_roots)
{
    char **copy = shd_calloc(n_roots, sizeof(*copy));
    for (uint32_t i = 0; i < n_roots; i++) {
        copy[i] = shd_strdup(roots[i]);
    }
    return copy;
}

void shd_auth_roots_free(char **roots, uint32_t n_roots)
{
    for (uint32_t i = 0; i < n_roots; i++) {
        free(roots[i]);
    }
    free(roots);
}

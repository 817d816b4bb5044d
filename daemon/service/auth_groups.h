/* The groups of a caller, as the system's databases have them. Floor F5; any thread. */
#ifndef SHD_DAEMON_SERVICE_AUTH_GROUPS_H
#define SHD_DAEMON_SERVICE_AUTH_GROUPS_H

#include "daemon/service/auth.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_auth_groups {
    gid_t *gids; /* owned; the process's own group first, then those of its user */
    uint32_t n;
} shd_auth_groups;

/* Never fails: a uid that is in no database has the group of its process alone. */
void shd_auth_groups_init(shd_auth_groups *groups, const shd_identity *who);
void shd_auth_groups_fini(shd_auth_groups *groups);
int shd_auth_groups_have(const shd_auth_groups *groups, gid_t gid);

#ifdef __cplusplus
}
#endif
#endif

/* RPCs for seeing: Status, WatchStatus, Plan.
 * Floor F5; loop thread. */
#ifndef SHD_DAEMON_SERVICE_RPC_STATUS_H
#define SHD_DAEMON_SERVICE_RPC_STATUS_H

#include <stddef.h>

#include "daemon/service/jobs.h"
#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Borrowed strings. */
typedef struct shd_status_info {
    const char *version;
    const char *socket;
    const char *state_dir;
} shd_status_info;

typedef struct shd_status shd_status;

/* Starts to measure how busy the ranks are (a timer that does not keep the loop alive). Borrows
 * `jobs` and `rpc`. */
shd_status *shd_status_create(shd_jobs *jobs, shd_rpc *rpc, const shd_status_info *info);

/* After the last call; before the jobs. The loop must run once more so that the timer closes. */
void shd_status_free(shd_status *status);

/* The method table (static storage) for shd_rpc_add_methods; its service pointer is an shd_status
 * *. */
const shd_rpc_method *shd_rpc_status_methods(size_t *n);

#ifdef __cplusplus
}
#endif
#endif

/* Watch: a job's events from any step on, without a gap.
 * Floor F5; loop thread. */
#ifndef SHD_DAEMON_SERVICE_RPC_WATCH_H
#define SHD_DAEMON_SERVICE_RPC_WATCH_H

#include <stddef.h>

#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The method table (static storage) for shd_rpc_add_methods; its service pointer is an shd_jobs *.
 */
const shd_rpc_method *shd_rpc_watch_methods(size_t *n);

#ifdef __cplusplus
}
#endif
#endif

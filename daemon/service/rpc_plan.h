/* Plan: what a job would take, here or on a machine that is stated, and which strategies are cheap
 * there. Floor F5; loop thread; plans are made on other threads. */
#ifndef SHD_DAEMON_SERVICE_RPC_PLAN_H
#define SHD_DAEMON_SERVICE_RPC_PLAN_H

#include <stddef.h>

#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The service pointer is an shd_jobs. */
const shd_rpc_method *shd_rpc_plan_methods(size_t *n);

#ifdef __cplusplus
}
#endif
#endif

/* Trace: what the ranks of a job do in its next steps, as a stream. Floor F5; loop thread. */
#ifndef SHD_DAEMON_SERVICE_RPC_TRACE_H
#define SHD_DAEMON_SERVICE_RPC_TRACE_H

#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The service pointer is the shd_jobs. */
const shd_rpc_method *shd_rpc_trace_methods(size_t *n);

#ifdef __cplusplus
}
#endif
#endif

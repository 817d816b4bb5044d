/* Evaluate: the loss of a job's weights on a file. The file is opened with the rights of the caller
 * and cut into windows on threads of their own, text is tokenized by the preparer; then parts of
 * about a turn go to the ranks one after another, between other calls of the job. Floor F5; loop
 * thread. */
#ifndef SHD_DAEMON_SERVICE_RPC_EVALUATE_H
#define SHD_DAEMON_SERVICE_RPC_EVALUATE_H

#include <stddef.h>

#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The service pointer is a shd_jobs. */
const shd_rpc_method *shd_rpc_evaluate_methods(size_t *n);

#ifdef __cplusplus
}
#endif
#endif

/* Generate: a stream of tokens sampled from the weights as they are.
 * Floor F5; loop thread. */
#ifndef SHD_DAEMON_SERVICE_RPC_GENERATE_H
#define SHD_DAEMON_SERVICE_RPC_GENERATE_H

#include <stddef.h>

#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The method table (static storage) for shd_rpc_add_methods; its service pointer is an shd_jobs *.
 */
const shd_rpc_method *shd_rpc_generate_methods(size_t *n);

#ifdef __cplusplus
}
#endif
#endif

/* Reshard: changes how the state of a living job is cut, and over how many ranks, between two of
 * its steps. Floor F5; loop thread.
 *
 * A request is checked and planned (beside the loop, workers.h), then admitted: the old plan, the
 * new one and the staging must fit on the job's ranks together while the state moves. More ranks
 * are taken around the old ones, fewer among them, where least is planned. It is carried out as the
 * job's next item once no gradients are accumulated, also while the job is paused or done; an
 * export or a call that is under way ends first, generations go on afterwards to the same bits. An
 * accepted request is carried out whether its caller waits for the answer or not. One at a time. */
#ifndef SHD_DAEMON_SERVICE_RPC_RESHARD_H
#define SHD_DAEMON_SERVICE_RPC_RESHARD_H

#include <stddef.h>

#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The family's methods; their service is the shd_jobs. Static storage. */
const shd_rpc_method *shd_rpc_reshard_methods(size_t *n);

#ifdef __cplusplus
}
#endif
#endif

/* grpc.health.v1: whether the daemon serves, for supervisors. Floor F5; loop thread. */
#ifndef SHD_DAEMON_SERVICE_RPC_HEALTH_H
#define SHD_DAEMON_SERVICE_RPC_HEALTH_H

#include "daemon/service/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_health shd_health;

/* Registers Check and Watch for the services "" and "shard.v1.Shard"; both serve at first. */
shd_health *shd_health_create(shd_rpc *rpc);

/* SERVING or NOT_SERVING from now on; those who watch are told. */
void shd_health_set(shd_health *health, int serving);

/* After shd_rpc_shutdown has called its `done`. NULL is fine. */
void shd_health_free(shd_health *health);

#ifdef __cplusplus
}
#endif
#endif

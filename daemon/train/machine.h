/* What a plan is made for when it is not this daemon: nodes of ranks, their memory, and how fast
 * they compute and communicate. Floor F4; pure. */
#ifndef SHD_DAEMON_TRAIN_MACHINE_H
#define SHD_DAEMON_TRAIN_MACHINE_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "proto/shard.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rates are those of one rank. Time is estimated when `flops` is stated; then what links there are
 * must be stated too. */
typedef struct shd_machine {
    uint32_t ranks_per_node; /* consecutive ranks */
    uint64_t device_memory;  /* bytes; 0: unknown */
    double flops;            /* per second, in the compute dtype; 0: no estimate */
    double memory_bandwidth; /* bytes per second; 0: no limit */
    double node_bandwidth;   /* bytes per second that a rank sends within its node; 0: no limit */
    double net_bandwidth;    /* and to other nodes */
    double node_latency;     /* seconds of a collective for every doubling of its ranks in a node */
    double net_latency;      /* and of its nodes */
} shd_machine;

/* Checks and completes `in` for `world` ranks. SHD_EINVAL names the field as its CLI flag. */
int shd_machine_resolve(const Shard__V1__Machine *in, uint32_t world, shd_machine *out,
                        shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

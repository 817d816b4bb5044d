/* What would fit instead of a job that does not. Floor F5; any thread: it makes plans, which takes
 * time (some dozens of them). */
#ifndef SHD_DAEMON_SERVICE_HINT_H
#define SHD_DAEMON_SERVICE_HINT_H

#include <stdint.h>

#include "daemon/service/room.h"
#include "daemon/train/advise.h"
#include "daemon/train/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All borrowed. */
typedef struct shd_hint_request {
    const Shard__V1__JobSpec *message; /* as it was asked for */
    const shd_model_config *config;    /* NULL: the preset's own */
    const shd_spec *spec;              /* resolved of both */
    uint32_t max_ranks, node_ranks;    /* shd_spec_resolve */
    int threads_per_rank;
    shd_room room;
    const shd_advice *advice; /* the first of shd_advise for `spec`; NULL: there is none */
    const int *cancel;        /* read relaxed; not 0: it ends soon, and what it says is void */
} shd_hint_request;

/* Leaves a verdict (verdict.h) of SHD_ERROR_MESSAGE_MAX room for its numbers. */
#define SHD_HINT_LEN 272

/* "would fit: --strategy zero3 (72.00 MiB), --micro-batch 4 (80.00 MiB)": at most three changes of
 * flags, each of which alone makes the job fit, with the bytes per rank: the cheapest strategy and
 * checkpointing; a smaller micro-batch, the global batch as it was; on this daemon also more ranks
 * and shorter sequences; where none of these does, some of them together. Flags of the message that
 * contradict a change are named after it: "--strategy zero3 --ranks 4 without --shard-degrees
 * (72.00 MiB)". Or that nothing does, and what to do then. */
void shd_hint(const shd_hint_request *request, char out[SHD_HINT_LEN]);

#ifdef __cplusplus
}
#endif
#endif

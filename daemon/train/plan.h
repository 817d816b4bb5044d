/* The plan of a job: the trainer's own code run once on the null device, so that what is planned
 * is what will be used, to the byte. Floor F4; any thread (creates its own null device). */
#ifndef SHD_DAEMON_TRAIN_PLAN_H
#define SHD_DAEMON_TRAIN_PLAN_H

#include <stdint.h>

#include "daemon/base/arena.h"
#include "daemon/comm/comm.h"
#include "daemon/train/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Per rank; all ranks of a job are equal. */
typedef struct shd_plan {
    uint64_t steady[SHD_TAG_COUNT]; /* bytes held between steps, without generations */
    uint64_t peak[SHD_TAG_COUNT];   /* largest over init, step, evaluation and generation */
    uint64_t total_peak;            /* largest sum over tags at one moment */
    uint64_t extent;                /* bytes to map, fragmentation included */
    shd_comm_count comm_step[SHD_COMM_KIND_COUNT]; /* bytes sent and calls of one optimizer step */
    uint64_t parameters;                           /* elements, tied once, without padding */
    uint64_t trainable;                            /* of these, not frozen */
    uint64_t padding;                              /* elements */
    uint32_t units;
    uint32_t generate_caches; /* generations whose keys and values there is room for */
} shd_plan;

/* `threads_per_rank` as the daemon runs (scratch of ops depends on it). */
int shd_plan_make(const shd_spec *spec, int threads_per_rank, shd_plan *out, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

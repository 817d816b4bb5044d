/* The plan of a job: the trainer's own code run once on the null device, so that what is planned
 * is what will be used, to the byte; and, for a stated machine, how long a step would take. Floor
 * F4; any thread (creates its own null device). */
#ifndef SHD_DAEMON_TRAIN_PLAN_H
#define SHD_DAEMON_TRAIN_PLAN_H

#include <stdint.h>

#include "daemon/base/arena.h"
#include "daemon/comm/comm.h"
#include "daemon/train/machine.h"
#include "daemon/train/simulate.h"
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
    uint64_t comm_between[SHD_COMM_KIND_COUNT];    /* of these bytes, to other nodes; 0 without a
                                                      machine. How they are told apart:
                                                      shd_comm_cost */
    uint64_t parameters;                           /* elements, tied once, without padding */
    uint64_t trainable;                            /* of these, not frozen */
    uint64_t padding;                              /* elements */
    uint32_t units;
    uint32_t generate_caches; /* generations whose keys and values there is room for */
} shd_plan;

/* `threads_per_rank` as the daemon runs (scratch of ops depends on it). */
int shd_plan_make(const shd_spec *spec, int threads_per_rank, shd_plan *out, shd_error *err);

/* A step as the pipeline's own schedule would run it: every micro-batch by the simulation of
 * simulate.h, from what each instruction's ops and collectives take (shd_op_work, shd_comm_cost),
 * then, one after another, what follows the last of them: the rest of the reduction, norm,
 * optimizer and the gathers of what it changed. Zero when the machine's flops are not stated. */
typedef struct shd_estimate {
    double step_s, compute_s, exposed_s,
        optimizer_s;     /* seconds; the first is the sum of the rest */
    double tokens_per_s; /* of all ranks */
    double flops;       /* of a rank and step, without what is computed again: 2 per multiply-add of
                           products, attention's masked pairs left out */
    double flops_share; /* flops / (step_s * the machine's) */
    uint64_t dry_calls; /* ops and collectives that were called to find all this out */
} shd_estimate;

/* The instructions of a step's first micro-batch, and when each happens. */
typedef struct shd_plan_schedule {
    uint32_t n;
    shd_instr *instrs;     /* [n] */
    shd_sim_event *events; /* [n], in the order in which they begin */
} shd_plan_schedule;
void shd_plan_schedule_fini(shd_plan_schedule *schedule);

/* shd_plan_make for a machine. schedule (NULL: not wanted) is freed by shd_plan_schedule_fini. */
int shd_plan_for(const shd_spec *spec, int threads_per_rank, const shd_machine *machine,
                 shd_plan *out, shd_estimate *estimate, shd_plan_schedule *schedule,
                 shd_error *err);

/* Bytes that a plan takes of the memory of a rank: its extent, in the 2 MiB pages that it is mapped
 * in. */
uint64_t shd_plan_bytes(const shd_plan *plan);

#ifdef __cplusplus
}
#endif
#endif

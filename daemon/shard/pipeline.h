/* Executes the instructions of a micro-batch. Floor F3; the rank's thread. What they are is said
 * in schedule.h; compute comes as callbacks. */
#ifndef SHD_DAEMON_SHARD_PIPELINE_H
#define SHD_DAEMON_SHARD_PIPELINE_H

#include <stdint.h>

#include "daemon/device/stream.h"
#include "daemon/shard/schedule.h"
#include "daemon/shard/unit.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Called before and after the work of an instruction of `program`, by the thread that does it: each
 * lane may have one of its own, and calls on one lane follow one another. All lanes are idle when a
 * run ends. */
typedef struct shd_pipeline_hooks {
    void (*began)(void *arg, const shd_program *program, uint32_t instruction);
    void (*ended)(void *arg, const shd_program *program, uint32_t instruction);
    void *arg;
} shd_pipeline_hooks;

typedef struct shd_pipeline {
    /* Compute one segment; its units are FULL (backward: only if it needs parameters) and have
     * local_grad in backward unless frozen. forward may be NULL: then gathers are run without
     * compute, to keep the collectives of all ranks alike. */
    int (*forward)(void *arg, uint32_t segment, shd_error *err);
    int (*backward)(void *arg, uint32_t segment, shd_error *err);
    int (*recompute)(void *arg, uint32_t segment, shd_error *err);
    /* Called before a unit's local gradient is reduced: every element must be defined after it. */
    void (*complete_grads)(void *arg, uint32_t unit);
    void *arg;
    const shd_pipeline_hooks *hooks; /* borrowed; NULL: none */
    /* Of the lanes that have one; NULL: what is queued is done at once. Borrowed. */
    shd_stream *streams[SHD_LANE_COUNT];
} shd_pipeline;

/* Runs all instructions of `program`, which was made for these units; gradients are folded into the
 * shards. The caller closes a round of training with shd_units_round_done. After a failure the
 * communicator is aborted, so that no lane of any rank waits for this one, and the units are good
 * for shd_units_fini alone. */
int shd_pipeline_run(const shd_pipeline *pipeline, const shd_program *program, shd_units *units,
                     shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

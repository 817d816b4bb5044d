/* The gather / compute / scatter schedule of one micro-batch. Floor F3; the rank's thread.
 *
 * A model is a chain of segments; each uses some units. The schedule is all segments forward, then
 * backward in reverse, down to the first that has anything to train. A unit is gathered when an
 * item needs it, kept when the very next item needs it too (or to the end of its uses, if
 * parameters are not resharded after forward), and its gradient is reduced as soon as its last
 * backward item is done. A segment may be computed again before its backward (activation
 * checkpointing): its units are then gathered for both. Compute comes as callbacks. */
#ifndef SHD_DAEMON_SHARD_PIPELINE_H
#define SHD_DAEMON_SHARD_PIPELINE_H

#include <stdint.h>

#include "daemon/shard/unit.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_SEGMENT_UNITS 4

typedef struct shd_segment {
    uint32_t units[SHD_SEGMENT_UNITS];
    uint32_t n_units;
    int backward_needs_params; /* 0: its backward reads no parameter (embedding look-up) */
    int recompute;             /* forward kept nothing: `recompute` is called before backward */
} shd_segment;

typedef struct shd_pipeline {
    uint32_t n_segments;
    const shd_segment *segments; /* borrowed */
    uint32_t first_backward;     /* segments before it have no backward */
    /* Compute one segment; its units are FULL (backward: only if it needs parameters) and, when
     * gradients are wanted, have local_grad in backward unless frozen. forward may be NULL: then
     * gathers are run without compute, to keep the collectives of all ranks alike. */
    int (*forward)(void *arg, uint32_t segment, shd_error *err);
    int (*backward)(void *arg, uint32_t segment, shd_error *err);
    int (*recompute)(void *arg, uint32_t segment, shd_error *err);
    /* Called before a unit's local gradient is reduced: every element must be defined after it. */
    void (*complete_grads)(void *arg, uint32_t unit);
    void *arg;
} shd_pipeline;

/* Forward and backward of one micro-batch, gradients folded into the shards. The caller closes the
 * round with shd_units_round_done. */
int shd_pipeline_train(const shd_pipeline *pipeline, shd_units *units, shd_error *err);

/* Forward only; every unit is resharded at the end. */
int shd_pipeline_forward(const shd_pipeline *pipeline, shd_units *units, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

/* What a micro-batch does, as a list of instructions: which unit is gathered, computed with, given
 * back and reduced when. Floor F3; pure.
 *
 * A model is a chain of segments; each uses some units. A micro-batch is all segments forward,
 * then, in training, backward in reverse down to the first that has anything to train; each of
 * these is an item. The same list is executed by the pipeline on every device, costed by the
 * simulator and drawn by the timeline; nothing in it depends on values or on time.
 *
 * Instructions are reached one after another by the rank's thread. What a GATHER or a REDUCE has
 * to do is queued there, on a lane of its own that works in order, and is complete after the WAIT
 * that names it; everything else is done when it is reached. Memory is taken and given back only
 * where instructions are reached, so that it does not depend on how fast lanes are. */
#ifndef SHD_DAEMON_SHARD_SCHEDULE_H
#define SHD_DAEMON_SHARD_SCHEDULE_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/shard/layout.h"
#include "daemon/shard/reduction.h"
#include "daemon/shard/strategy.h"
#include "kernels/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Two units of a model, each cut into trained, frozen and persistent parameters. */
#define SHD_SEGMENT_UNITS 6

typedef struct shd_segment {
    uint32_t units[SHD_SEGMENT_UNITS];
    uint32_t n_units;
    int backward_needs_params; /* 0: its backward reads no parameter (embedding look-up) */
    int recompute;             /* forward kept nothing: it is computed again before backward */
} shd_segment;

/* How movement is laid beside compute. None of it changes a result. */
typedef struct shd_pipeline_settings {
    uint32_t prefetch;      /* units gathered ahead of the item that needs them */
    uint32_t max_gathered;  /* units that may be gathered at once; 0: what prefetch takes */
    uint64_t bucket_bytes;  /* gradients are collected up to this, then reduced; 0: by unit */
    int overlap;            /* movement goes on beside compute */
    uint64_t persist_below; /* parameters of fewer elements are kept whole; 0: none */
} shd_pipeline_settings;

/* As a job has them that asks for nothing: prefetch 1, overlap. */
#define SHD_PIPELINE_SETTINGS_DEFAULT                                                              \
    {                                                                                              \
        1, 0, 0, 1, 0                                                                              \
    }

typedef enum shd_instr_kind {
    SHD_INSTR_GATHER = 0, /* unit: its full parameters, from `parts` ranks */
    SHD_INSTR_WAIT_GATHER,
    SHD_INSTR_FORWARD, /* segment */
    SHD_INSTR_RECOMPUTE,
    SHD_INSTR_BACKWARD,
    SHD_INSTR_RESHARD,    /* unit: the full copy goes; one of `parts` parts stays */
    SHD_INSTR_GRAD_BEGIN, /* unit: memory for its local gradient */
    SHD_INSTR_REDUCE,     /* bucket: local gradients into the shards, over all ranks; parts 1: into
                           * this rank's own, which is COMPUTE */
    SHD_INSTR_WAIT_REDUCE,
    SHD_INSTR_KIND_COUNT
} shd_instr_kind;

/* Where the work of an instruction is done. */
typedef enum shd_lane {
    SHD_LANE_COMPUTE = 0, /* the rank's thread */
    SHD_LANE_GATHER,
    SHD_LANE_REDUCE,
    SHD_LANE_COUNT
} shd_lane;

typedef struct shd_instr {
    shd_instr_kind kind;
    shd_lane lane;
    uint32_t index;     /* of the unit, segment or bucket */
    uint32_t parts;     /* GATHER, RESHARD; REDUCE: ranks that take part */
    uint32_t calls;     /* collectives that it consists of */
    uint64_t bytes;     /* that each rank sends to others in them, together */
    uint32_t waits_for; /* WAIT_*: the instruction that it completes */
} shd_instr;

static inline int shd_instr_waits(const shd_instr *instr)
{
    return instr->kind == SHD_INSTR_WAIT_GATHER || instr->kind == SHD_INSTR_WAIT_REDUCE;
}

typedef struct shd_program {
    shd_instr *instrs; /* [n] */
    uint32_t n;
    uint32_t *bucket_units; /* units of all buckets, in the order in which they are complete */
    uint32_t *bucket_first; /* [n_buckets + 1]; into bucket_units */
    uint32_t n_buckets;
} shd_program;

typedef struct shd_program_config {
    const shd_segment *segments; /* [n_segments] */
    uint32_t n_segments;
    uint32_t first_backward; /* segments before it have no backward */
    const shd_layout *layout;
    shd_strategy strategy;
    shd_pipeline_settings settings;
    shd_dtype dtype;        /* compute dtype */
    shd_dtype reduce_dtype; /* of sums of gradients */
    int train;              /* 0: forward only */
    shd_reduction reduction;
} shd_program_config;

/* Nothing is borrowed after return. SHD_EINVAL when a segment needs more units than max_gathered
 * allows. Freed by shd_program_fini. */
int shd_program_make(const shd_program_config *config, shd_program *out, shd_error *err);
void shd_program_fini(shd_program *program);

/* "compute", "gather", "reduce". Static storage. */
const char *shd_lane_name(shd_lane lane);

/* The degrees of a unit: those of the job, with p = 1 where the layout keeps parameters whole. */
shd_strategy shd_schedule_strategy(const shd_strategy *strategy, const shd_unit_layout *unit);

/* Of `length` elements that are reduced into each rank, as many as are exchanged at a time. */
int64_t shd_schedule_chunk(uint32_t world, int64_t length);

/* In which gradients travel: widening is exact, so that what is summed in fp32 travels in the
 * compute dtype; what is summed in another dtype is rounded to it before. */
shd_dtype shd_schedule_wire(shd_dtype dtype, shd_dtype reduce_dtype);

#ifdef __cplusplus
}
#endif
#endif

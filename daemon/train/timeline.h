/* What one rank did when, over one work item: the instructions of its passes and the parts of its
 * optimizer step. Floor F4. Each lane writes its own list, the rank's thread begins and ends items;
 * reading is safe between items. */
#ifndef SHD_DAEMON_TRAIN_TIMELINE_H
#define SHD_DAEMON_TRAIN_TIMELINE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/comm/comm.h"
#include "daemon/shard/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Beyond the kinds of shd_instr_kind, what a rank does outside of passes. */
typedef enum shd_span_kind {
    SHD_SPAN_COMPLETE_GRADS = SHD_INSTR_KIND_COUNT, /* unit: from what other replicas reduced */
    SHD_SPAN_NORM,                                  /* of the whole gradient */
    SHD_SPAN_OPTIMIZER,                             /* unit: this rank's part of it */
    SHD_SPAN_UPDATE,                                /* unit: new parameters from other ranks */
    SHD_SPAN_EXCHANGE,                              /* losses of a pass */
    SHD_SPAN_KIND_COUNT
} shd_span_kind;

typedef struct shd_span {
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC */
    uint64_t bytes;            /* that this rank sent to others in it */
    uint32_t round;            /* micro-batch of this rank, from 0 */
    uint32_t index;            /* of unit, segment or bucket; 0 for NORM and EXCHANGE */
    int kind;                  /* shd_instr_kind or shd_span_kind */
} shd_span;

/* The most that a lane keeps of an item; what comes after is counted only. */
#define SHD_TIMELINE_SPANS ((size_t)1 << 14)

typedef struct shd_timeline shd_timeline;

/* Of the rank whose communicator `comm` (borrowed) is. */
shd_timeline *shd_timeline_create(const shd_comm *comm);
void shd_timeline_free(shd_timeline *timeline); /* NULL is fine */

/* Told of the instructions of passes; borrowed from the timeline. */
const shd_pipeline_hooks *shd_timeline_hooks(shd_timeline *timeline);

/* The calling thread (the rank's) begins a turn of an item. `fresh`: its first, which forgets the
 * item before; `record`: spans are kept, else only the time exposed is counted. */
void shd_timeline_turn(shd_timeline *timeline, int fresh, int record);
void shd_timeline_turn_done(shd_timeline *timeline);
void shd_timeline_round(shd_timeline *timeline, uint32_t round);
/* A part of the item outside of passes, on the rank's thread, while no lane is at work. */
void shd_timeline_begin(shd_timeline *timeline);
void shd_timeline_end(shd_timeline *timeline, shd_span_kind kind, uint32_t index);

/* Nanoseconds over the turns of the item that the rank's thread spent in collectives or waiting for
 * lanes: communication that no compute hides. */
uint64_t shd_timeline_exposed_ns(const shd_timeline *timeline);

/* The spans of a lane, in the order of their ends; *dropped is how many more there were. */
size_t shd_timeline_spans(const shd_timeline *timeline, shd_lane lane, const shd_span **out,
                          uint64_t *dropped);

/* "forward", "norm", ...; where it is drawn: "compute", "gather", "reduce", "optimizer", "wait".
 * Static storage. */
const char *shd_span_name(int kind);
const char *shd_span_lane(int kind);
/* What span->index counts: "unit", "segment", or NULL: nothing with a name. Static storage. */
const char *shd_span_of(int kind);

#ifdef __cplusplus
}
#endif
#endif

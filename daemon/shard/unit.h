/* The units of one rank: their flat memory, and the collectives that move it. Floor F3; the rank's
 * thread. Every rank calls the same functions in the same order.
 *
 * Per unit of n (padded) elements a rank keeps n/p parameters in the compute dtype, n/g gradients
 * in the reduce dtype, n/o of every state of the optimizer and, unless the compute dtype is fp32,
 * n/o of the fp32 master parameters. A frozen unit has its parameters alone. Buffers come and go:
 * the full parameters and what is kept of them until backward (tag gathered), and the unreduced
 * gradient of the micro-batch at hand (tag comm), all in the compute dtype. A degree of 1 makes the
 * shard serve as the full one. A unit that the layout keeps whole has p = 1 whatever the strategy:
 * it is made complete after each step as any p-part is, and never gathered.
 *
 * Gradients travel in the compute dtype when they are summed in fp32, since widening is exact: the
 * same bits, half the bytes. Summed in another dtype, they are rounded to it before they travel,
 * and so is every sum. */
#ifndef SHD_DAEMON_SHARD_UNIT_H
#define SHD_DAEMON_SHARD_UNIT_H

#include <stdint.h>

#include "daemon/base/arena.h"
#include "daemon/base/err.h"
#include "daemon/comm/comm.h"
#include "daemon/device/device.h"
#include "daemon/shard/layout.h"
#include "daemon/shard/reduction.h"
#include "daemon/shard/strategy.h"
#include "kernels/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_UNIT_STATES 2 /* the most that an optimizer keeps per element */

typedef enum shd_unit_memory {
    SHD_UNIT_SHARDED = 0,
    SHD_UNIT_COMING, /* being gathered */
    SHD_UNIT_FULL
} shd_unit_memory;

/* A range of a unit's flat buffer and the memory that holds it. */
typedef struct shd_range {
    int64_t begin, end; /* elements of the flat buffer */
    void *data;         /* [end - begin] */
} shd_range;

typedef struct shd_unit {
    int64_t n; /* padded elements */
    int frozen;
    shd_strategy strategy;   /* its own degrees: see shd_schedule_strategy */
    shd_comm *const *groups; /* [SHD_GROUP_COUNT] of these; borrowed from the units */
    shd_range params;        /* p-part, compute dtype */
    shd_range grads;         /* g-part, reduce dtype; only its o-part is ever complete */
    void *partials;          /* [shd_reduction_partials][n/W], reduce dtype: sums of 2^k rounds
                              * of this rank's atom; NULL: none */
    shd_range master;        /* o-part, fp32; inside `params` when that is fp32 */
    float *state[SHD_UNIT_STATES]; /* [o-part]; of the optimizer, NULL beyond n_states */
    shd_unit_memory memory;
    void *full;       /* [n] unless SHARDED; compute dtype; p = 1: the p-part, always */
    void *kept;       /* [n / regather] between keep and the end of the next gather, else NULL */
    void *local_grad; /* [n] between grad_begin and its reduction, else NULL; compute dtype */
} shd_unit;

typedef struct shd_units_config {
    shd_dtype dtype;        /* compute dtype: fp32, bf16 or fp16 */
    shd_dtype reduce_dtype; /* of the reduction and accumulation of gradients */
    uint32_t n_states;      /* fp32 values per element that the optimizer keeps */
    shd_reduction reduction;
} shd_units_config;

typedef struct shd_units {
    const shd_layout *layout; /* borrowed */
    shd_strategy strategy;
    shd_units_config config;
    uint32_t rank;
    shd_device *dev;                         /* borrowed */
    shd_arena *arena;                        /* borrowed */
    shd_comm *comm;                          /* borrowed; all ranks */
    shd_comm *groups[SHD_GROUP_COUNT];       /* owned; of the strategy */
    shd_comm *whole_groups[SHD_GROUP_COUNT]; /* owned; of units that are kept whole, else NULL */
    shd_unit *units;                         /* [layout->n_units] */
    /* What the gradients hold; changed only by shd_units_*_done. */
    uint32_t folded; /* accumulation rounds of the step */
    uint32_t trees;  /* trees of these rounds that are finished */
    uint32_t open;   /* rounds of the tree that is not */
} shd_units;

/* Takes the persistent memory (contents undefined but for zeroed states) and makes the groups. On
 * failure nothing is held. */
int shd_units_init(shd_units *units, const shd_layout *layout, const shd_strategy *strategy,
                   const shd_units_config *config, shd_device *dev, shd_arena *arena,
                   shd_comm *comm, shd_error *err);
void shd_units_fini(shd_units *units);

/* Makes unit u FULL: begin takes the memory, run all-gathers the p-parts, or the parts that were
 * kept, and end completes. run may be called on another thread with a device of that thread; begin
 * and end belong to the rank's. After a failure of run the memory goes with reshard. */
int shd_unit_gather_begin(shd_units *units, uint32_t u, shd_error *err);
int shd_unit_gather_run(shd_units *units, uint32_t u, shd_device *dev, shd_error *err);
void shd_unit_gather_end(shd_units *units, uint32_t u);
/* All three; nothing when it is FULL. */
int shd_unit_gather(shd_units *units, uint32_t u, shd_error *err);

/* Drops the full copy, and what is kept of it; nothing when there is none, or when it is the
 * p-part. */
void shd_unit_reshard(shd_units *units, uint32_t u);
/* Drops the full copy but for this rank's part of `regather`, from which the next gather is made.
 */
int shd_unit_keep(shd_units *units, uint32_t u, shd_error *err);

/* The functions on gradients and on updates do nothing for a frozen unit. */

/* Provides local_grad; contents undefined but for zeroed padding. Nothing when it is there. */
int shd_unit_grad_begin(shd_units *units, uint32_t u, shd_error *err);

/* Gradients of some units on their way through the exchange. */
typedef struct shd_bucket {
    const uint32_t *units; /* [n], borrowed */
    uint32_t n;
    int accumulated;       /* what travels: `grads`, once a step, instead of local gradients */
    int64_t length, chunk; /* elements of their atoms; of those, exchanged at a time */
    void *recv, *send;
    const void **leaves;           /* [W] */
    int64_t leaves_len, leaves_at; /* the pieces that they are set for */
} shd_bucket;

/* Adds the local gradients of all ranks by a balanced tree over ranks (leaf order) and folds the
 * sums into this rank's atoms of `grads` in the order of reduction.h, for several units by common
 * exchanges; where ranks do not exchange in each round, folds the local gradient into the whole of
 * `grads`. begin takes buffers, run exchanges and adds, end gives buffers and local gradients back.
 * run may be called on another thread with a device of that thread; begin and end belong to the
 * rank's. end is due after begin, whatever failed. */
int shd_units_reduce_begin(shd_units *units, const uint32_t *us, uint32_t n, shd_bucket *out,
                           shd_error *err);
int shd_units_reduce_run(shd_units *units, shd_bucket *bucket, shd_device *dev, shd_error *err);
void shd_units_reduce_end(shd_units *units, shd_bucket *bucket);
/* All three for one unit; nothing when it is frozen. */
int shd_unit_grad_reduce(shd_units *units, uint32_t u, shd_error *err);

/* All units' gradients of a round are folded. */
void shd_units_round_done(shd_units *units);
/* It was the last round of a batch: a tree that is not finished ends here. */
void shd_units_batch_done(shd_units *units);
/* What was accumulated has been used: the next round is the first of a step. */
void shd_units_step_done(shd_units *units);

/* The range that reductions of unit u land in on this rank, inside `grads`. Where ranks do not
 * exchange in each round, it is this rank's own sum until grad_finish. */
shd_range shd_unit_atom(const shd_units *units, uint32_t u);

/* After the last batch: adds what the ranks have accumulated where they did not exchange in each
 * round, and completes this rank's o-part of `grads` from its replicas' atoms. */
int shd_unit_grad_finish(shd_units *units, uint32_t u, shd_error *err);

/* Sum of squares of the gradients of all trained parameters in double, the same on every rank:
 * blocks of SHD_BLOCK elements are combined in block order to a sum per parameter, and these in
 * the order of the parameter table, so that neither the cut into units, nor strategy, nor W changes
 * a bit. After grad_finish of every unit. */
int shd_units_sumsq(shd_units *units, double *sum, shd_error *err);

/* The o-part of the gradients, for the optimizer. */
shd_range shd_unit_update_grads(const shd_units *units, uint32_t u);

/* After `master` has changed: rounds it to the compute dtype and completes this rank's p-part. */
int shd_unit_update_finish(shd_units *units, uint32_t u, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

/* The part of a job that one rank carries: its shards, tape and buffers, and how it executes the
 * job's work items. Floor F4; the rank's thread, except where said. A worker sees other ranks only
 * through its communicator. */
#ifndef SHD_DAEMON_TRAIN_WORKER_H
#define SHD_DAEMON_TRAIN_WORKER_H

#include <stdint.h>

#include "daemon/base/arena.h"
#include "daemon/comm/comm.h"
#include "daemon/data/source.h"
#include "daemon/data/windows.h"
#include "daemon/device/device.h"
#include "daemon/model/model.h"
#include "daemon/shard/layout.h"
#include "daemon/shard/pipeline.h"
#include "daemon/train/spec.h"
#include "daemon/train/timeline.h"
#include "daemon/train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What all workers of a job share, immutable while they live. */
typedef struct shd_worker_shared {
    const shd_spec *spec;
    const shd_model *model;
    shd_layout layout;
    shd_segment *segments; /* [n_segments] over the units of the layout */
    uint32_t first_backward;
    shd_program train_program, forward_program; /* of a micro-batch; equal on all ranks */
    int64_t trainable;                          /* elements */
    uint32_t caches;                            /* of generations, at most SHD_GENERATE_CACHES */
    shd_param_source from;                      /* load NULL: random */
    uint64_t extent;       /* bytes of each rank's arena; ignored on a null device */
    shd_source *data;      /* NULL: batches come from clients, or this is a plan */
    shd_source *eval;      /* may be `data` */
    shd_windows *train;    /* windows of `data` */
    shd_windows *held_out; /* of `eval` */
    uint64_t eval_leaves;  /* micro-batches of one evaluation */
} shd_worker_shared;

/* Fills layout, segments, programs and what follows from them, from model and spec. A unit of the
 * model whose parameters are partly frozen becomes two; small parameters (persist_below) of all
 * units make units of their own. Freed by shd_worker_layout_fini, also after
 * failure: SHD_EINVAL when the settings of the pipeline do not allow such a model. */
int shd_worker_layout(shd_worker_shared *shared, shd_error *err);
void shd_worker_layout_fini(shd_worker_shared *shared);

typedef struct shd_worker shd_worker;

/* `comm` is taken over. Holds no arena before SHD_WORK_INIT. */
shd_worker *shd_worker_create(const shd_worker_shared *shared, shd_device *dev, shd_comm *comm);
void shd_worker_free(shd_worker *worker); /* any thread, when idle; NULL is fine */

/* Who is told of the instructions of passes; NULL: nobody. Borrowed; when idle. */
void shd_worker_set_hooks(shd_worker *worker, const shd_pipeline_hooks *hooks);

/* Executes a work item, or a turn of it of at most `turn` rounds of micro-batches; every rank of
 * the job does so with the same item and turn. Results go to `result`, a private copy of `work`
 * (owning its own logprobs and logits, not the batch) that is kept until the item is finished. On
 * failure other than SHD_EINVAL the communicator is aborted, so that no rank waits for this one. */
void shd_worker_run(shd_worker *worker, const shd_work *work, uint64_t turn, shd_work *result);

/* Forgets the rest of an item that is not finished. When idle. */
void shd_worker_drop_pass(shd_worker *worker);

/* What this rank did when in the item before; when idle. NULL on the null device. */
const shd_timeline *shd_worker_timeline(const shd_worker *worker);

shd_comm *shd_worker_comm(const shd_worker *worker);

/* NULL before INIT; any thread. */
const shd_arena *shd_worker_arena(const shd_worker *worker);

/* Copies what this rank holds of the master of parameter `index` (frozen: of its p-part) to its
 * place in out (host, the whole parameter, fp32). When idle. */
int shd_worker_read_param(const shd_worker *worker, uint32_t index, float *out, shd_error *err);
/* The other way round, into master and p-part. */
int shd_worker_write_param(shd_worker *worker, uint32_t index, const float *in, shd_error *err);
/* Copies what this rank has of the accumulated gradient of parameter `index`, loss scale and all,
 * to out likewise: its atom or, when the ranks' own gradients are not added yet
 * (shd_reduction_each_round), the whole of its own. Nothing when it is frozen. */
int shd_worker_read_grad(const shd_worker *worker, uint32_t index, float *out, shd_error *err);

/* The factor of gradients as they are accumulated, against those of the summed loss: the loss scale
 * over a power of two near the tokens of a step, so that the scale means what it does for a mean
 * loss; 1 without loss scaling. */
double shd_worker_grad_factor(const shd_worker *worker);

#ifdef __cplusplus
}
#endif
#endif

/* What the files of the worker share. Floor F4; private to daemon/train. */
#ifndef SHD_DAEMON_TRAIN_WORKER_INTERNAL_H
#define SHD_DAEMON_TRAIN_WORKER_INTERNAL_H

#include <stdatomic.h>

#include "daemon/shard/pipeline.h"
#include "daemon/shard/unit.h"
#include "daemon/tape/tape.h"
#include "daemon/train/worker.h"

/* A rank's sums over one leaf, exchanged at the end of a pass. */
typedef struct shd_leaf_sum {
    double loss;
    uint64_t valid;
} shd_leaf_sum;

struct shd_worker {
    const shd_worker_shared *shared;
    shd_device *dev;
    shd_comm *comm;
    _Atomic(shd_arena *) arena; /* set once, by INIT */
    shd_units units;
    shd_tape *tape;
    shd_tensor *params; /* [n_params]; data and grad are set while a unit is full */
    shd_tensor **param_ptrs;
    shd_segment *segments;
    /* device memory for one leaf */
    int32_t *ids, *targets; /* [micro_batch * seq_len] */
    float *losses;          /* [micro_batch * seq_len] */
    double *loss_sum;       /* [1] */
    /* host staging for one leaf */
    int32_t *host_ids, *host_targets; /* [micro_batch * seq_len] */
    float *host_losses;
    /* the pass in execution, over as many turns as it takes; rounds == 0: none */
    uint64_t round, rounds;
    shd_leaf_sum *sums; /* [rounds] of this rank */
    /* the leaf in execution */
    shd_model_input input;
    shd_tensor *x;
    int64_t *marks; /* [n_segments] */
    /* the job's counters; equal on all ranks */
    uint64_t step, applied, samples;
    uint64_t pending_valid; /* target tokens in the accumulated gradients */
};

static inline const shd_spec *shd_worker_spec(const shd_worker *w)
{
    return w->shared->spec;
}

/* Runs `leaves` micro-batches, whose tokens `work` names, over all ranks: rank r takes leaf
 * j*W + r in round j. Ends after `turn` rounds with result->more when there are others left; the
 * next call goes on. result->loss and valid_tokens get the sums over all ranks, added in leaf
 * order; log-probabilities go to result->logprobs unless NULL. When `train`, gradients are
 * accumulated. */
int shd_worker_pass(shd_worker *w, const shd_work *work, uint64_t leaves, int train, uint64_t turn,
                    shd_work *result, shd_error *err);

/* Logits after the last token of work->batch, to result->logits on rank 0. */
int shd_worker_next_logits(shd_worker *w, const shd_work *work, shd_work *result, shd_error *err);

/* Applies and clears the accumulated gradients. SHD_EINVAL when there are none. */
int shd_worker_optim_step(shd_worker *w, const shd_work *work, shd_work *result, shd_error *err);

#endif

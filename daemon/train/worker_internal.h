/* What the files of the worker share. Floor F4; private to daemon/train. */
#ifndef SHD_DAEMON_TRAIN_WORKER_INTERNAL_H
#define SHD_DAEMON_TRAIN_WORKER_INTERNAL_H

#include <stdatomic.h>

#include "daemon/optim/scaler.h"
#include "daemon/shard/pipeline.h"
#include "daemon/shard/unit.h"
#include "daemon/tape/tape.h"
#include "daemon/train/timeline.h"
#include "daemon/train/worker.h"

/* A rank's sums over one leaf, exchanged at the end of a pass. */
typedef struct shd_leaf_sum {
    double loss;
    uint64_t valid;
    uint64_t bytes; /* of text; only when a file is evaluated */
} shd_leaf_sum;

/* Keys and values of a generation. All ranks keep the books; the memory is rank 0's. */
typedef struct shd_generation {
    uint64_t stream; /* 0: free */
    uint64_t step;   /* of the weights */
    uint64_t used;
    uint32_t prefill, length; /* tokens */
    int32_t *tokens;          /* [length], host */
    shd_kv_cache *layers;     /* [n_layer]; NULL on other ranks */
    void *memory;
} shd_generation;

struct shd_worker {
    const shd_worker_shared *shared;
    shd_device *dev;
    shd_comm *comm;
    _Atomic(shd_arena *) arena; /* set once, by INIT */
    shd_units units;
    shd_timeline *timeline; /* NULL on the null device */
    const shd_pipeline_hooks *hooks;
    shd_stream *streams[SHD_LANE_COUNT]; /* beside compute; NULL: none */
    shd_tape *tape;
    shd_tensor *params; /* [n_params]; data and grad are set while a unit is full */
    shd_tensor **param_ptrs;
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
    shd_error damage;   /* what is wrong with the file that is evaluated; code 0: nothing */
    /* the next first values, likewise */
    uint32_t init_param;
    int64_t init_at; /* element */
    /* the leaf in execution */
    shd_model_input input;
    shd_tensor *x;
    int64_t *marks;                 /* [n_segments] */
    shd_tensor **inputs, **outputs; /* [n_segments]; of those that are computed again */
    int training;                   /* backward will follow */
    int beyond;                     /* it only keeps the others company: no gradient */
    /* the job's counters; equal on all ranks */
    uint64_t step, applied, samples;
    uint64_t pending_valid; /* target tokens in the accumulated gradients */
    shd_scaler scaler;
    /* generation */
    shd_generation generations[SHD_GENERATE_CACHES];
    uint64_t clock; /* of their uses */
};

/* A part of the work in execution that the timeline shows; nothing on the null device. */
static inline void shd_worker_span_begin(shd_worker *w)
{
    if (w->timeline != NULL) {
        shd_timeline_begin(w->timeline);
    }
}
static inline void shd_worker_span_end(shd_worker *w, shd_span_kind kind, uint32_t index)
{
    if (w->timeline != NULL) {
        shd_timeline_end(w->timeline, kind, index);
    }
}

/* Where a job is; equal on all ranks between two steps. */
typedef struct shd_worker_counters {
    uint64_t step, applied, samples;
    shd_scaler scaler;
} shd_worker_counters;

static inline shd_worker_counters shd_worker_get_counters(const shd_worker *w)
{
    return (shd_worker_counters){w->step, w->applied, w->samples, w->scaler};
}

static inline void shd_worker_set_counters(shd_worker *w, const shd_worker_counters *counters)
{
    w->step = counters->step;
    w->applied = counters->applied;
    w->samples = counters->samples;
    w->scaler = counters->scaler;
}

/* Do gradients wait to be applied? When idle. */
static inline int shd_worker_accumulates(const shd_worker *w)
{
    return w->units.folded > 0;
}

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

/* One forward pass over the tokens [first, first + n) of a sequence: rank 0 computes, the others
 * take part in the gathers. `cache` (NULL: none) holds the tokens before; logits (NULL: not wanted,
 * host) are those after the last. */
int shd_worker_pass_tokens(shd_worker *w, const int32_t *tokens, uint32_t n,
                           const shd_kv_cache *cache, float *logits, shd_error *err);

/* Logits after the last token of work->batch, to result->logits on rank 0; at most `turn` passes,
 * then result->more. */
int shd_worker_next_logits(shd_worker *w, const shd_work *work, uint64_t turn, shd_work *result,
                           shd_error *err);

/* Gives all caches back. */
void shd_worker_drop_generations(shd_worker *w);

/* The arena, and in it all that is kept from step to step; contents undefined but for zeroed
 * states. Every rank of the job. */
int shd_worker_take_memory(shd_worker *w, shd_error *err);

/* Tensors of the model's parameters, [n_params] each; ptrs[i] is &params[i]. */
void shd_worker_make_params(const shd_worker_shared *shared, shd_tensor *params, shd_tensor **ptrs);

/* First values of this rank's parts of the parameters, in at most `turn` rounds; *more when there
 * are others left. */
int shd_worker_init_params(shd_worker *w, uint64_t turn, int *more, shd_error *err);

/* This rank's part of the master of parameter `index`, or of a frozen one's p-part. The o-parts of
 * the ranks of its unit's groups[SHD_GROUP_NORM] (the p-parts of those of SHD_GROUP_GATHER) make
 * the whole, each element once. */
typedef struct shd_param_part {
    void *data; /* device memory */
    shd_dtype dtype;
    int64_t first, n; /* elements of the parameter; n may be 0 */
} shd_param_part;
shd_param_part shd_worker_param_part(const shd_worker *w, uint32_t index);

/* What training keeps of a parameter: its master (of a frozen one the p-part), then the states of
 * the optimizer. How many, and the bytes of an element of each. */
uint32_t shd_worker_n_kept(const shd_worker *w, uint32_t index);
size_t shd_worker_kept_size(const shd_worker *w, uint32_t index);
/* Element `at` of parameter `index` in what is kept; it must lie in this rank's part. */
void *shd_worker_kept(const shd_worker *w, uint32_t index, uint32_t which, int64_t at);

/* Zeroes parameters and masters, padding included. After take_memory. */
void shd_worker_clear_params(shd_worker *w);
/* After the masters have got their values: all p-parts follow. Every rank of the job. */
int shd_worker_finish_params(shd_worker *w, shd_error *err);

/* Applies and clears the accumulated gradients. SHD_EINVAL when there are none. */
int shd_worker_optim_step(shd_worker *w, const shd_work *work, shd_work *result, shd_error *err);

#endif

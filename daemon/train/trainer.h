/* A job in execution: joins model, pipeline, optimizer and data over the ranks that carry it.
 * Floor F4. The caller (one thread: the daemon's loop) submits one work item at a time; the ranks
 * execute it together; the last rank to finish calls `done` on its own thread. An item of many
 * micro-batches takes several turns of about SHD_TURN_MS, so that other jobs are not held up; how
 * it is cut changes no bit.
 *
 * The trainer speaks to ranks by message and a rank knows only its communicator. */
#ifndef SHD_DAEMON_TRAIN_TRAINER_H
#define SHD_DAEMON_TRAIN_TRAINER_H

#include <stdint.h>

#include "daemon/base/arena.h"
#include "daemon/base/err.h"
#include "daemon/comm/comm.h"
#include "daemon/data/source.h"
#include "daemon/data/windows.h"
#include "daemon/rank/rank.h"
#include "daemon/train/plan.h"
#include "daemon/train/spec.h"
#include "daemon/train/timeline.h"
#include "daemon/train/train_data.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_IGNORE_INDEX (-100)

/* Sequences of a client, padded to one length by the caller: [sequences, length] row-major.
 * Positions past a sequence's end hold token 0 and target SHD_IGNORE_INDEX. */
typedef struct shd_batch {
    uint32_t sequences;
    uint32_t length;
    int32_t *tokens;  /* owned by the work item */
    int32_t *targets; /* owned by the work item */
} shd_batch;

typedef enum shd_work_kind {
    SHD_WORK_INIT = 0,         /* arenas, parameters, check of the data file */
    SHD_WORK_DATA_STEP,        /* one optimizer step on the job's own data */
    SHD_WORK_FORWARD_BACKWARD, /* accumulate gradients of `batch` */
    SHD_WORK_OPTIM_STEP,       /* apply what has been accumulated, clear it */
    SHD_WORK_TRAIN_STEP,       /* both, on `batch` */
    SHD_WORK_FORWARD,          /* loss of `batch`, no gradients */
    SHD_WORK_EVAL,             /* loss over the evaluation windows, or over those of `part` */
    SHD_WORK_NEXT_LOGITS, /* logits after the last token of batch (1 sequence); for generation */
    SHD_WORK_EXPORT,      /* parameters to files; what came of it is in `exp` */
    SHD_WORK_RESHARD      /* state to other workers, see reshard.h */
} shd_work_kind;

/* The most generations of a job whose keys and values are kept at one time (see generate_caches of
 * the plan); the least recently used goes first. Memory of rank 0, from a generation's first token
 * to the next work with gradients. */
#define SHD_GENERATE_CACHES 4

/* Windows of a file to be evaluated instead of the job's own. Many windows can be cut into several
 * items, at multiples of the job's micro-batch: an item goes on from the sums (loss_sum,
 * valid_tokens, text_bytes) that it is given, and the last one has the bits of a single one over
 * all windows, which are those of a FORWARD of them. What goes wrong with the file leaves the job
 * as it was: rc is SHD_EINVAL, and err says what it is, number included. */
typedef struct shd_eval_part {
    const shd_windows *windows; /* of the job's sequence length */
    uint64_t first, n;
    const uint32_t *token_bytes; /* [vocab] bytes of text of each token; NULL: not known */
} shd_eval_part;

typedef struct shd_work {
    shd_work_kind kind;
    shd_batch batch;
    const shd_eval_part *part; /* EVAL; borrowed */

    /* NAN: what the spec says. */
    double lr, clip, weight_decay;
    int want_logprobs;
    int trace; /* keep the spans of what the ranks do: see shd_trainer_timeline */

    /* NEXT_LOGITS. The bits of the logits depend on the tokens, on the weights and on how the
     * tokens were cut into passes, never on what else the ranks did: the first `prefill` tokens in
     * one pass, every later one alone. When cache_step is not the present optimizer step, all
     * tokens are run in one pass; the caller then sets prefill = length and cache_step = step for
     * the next. */
    uint64_t stream;     /* of one generation; 0: nothing is kept of it, all tokens in one pass */
    uint32_t prefill;    /* tokens */
    uint64_t cache_step; /* UINT64_MAX at first */

    struct shd_export *exp;      /* EXPORT; borrowed */
    struct shd_reshard *reshard; /* RESHARD; borrowed */

    /* Results, valid in `done`. */
    int rc; /* 0 or an shd_err; then `err` says more. SHD_EINVAL, and whatever a RESHARD fails
               with, leaves the job as it was; every other number means that its state is lost */
    shd_error err;
    double loss; /* nats per valid token; 0 when there is none */
    uint64_t valid_tokens;
    double loss_sum;     /* nats */
    uint64_t text_bytes; /* that the valid tokens of `part` stand for */
    double grad_norm, lr_used;
    uint64_t step;                      /* optimizer steps taken, after this work */
    uint64_t samples;                   /* global sample cursor, after this work */
    int skipped;                        /* the gradient was not finite: nothing applied */
    int overflow;                       /* skipped, and the dynamic loss scale has been told */
    double loss_scale, next_loss_scale; /* of this step, of the next; 0 without loss scaling */
    double exposed_ms;                  /* of it, what rank 0 waited for collectives */
    double ms;                          /* wall time on the ranks, over all turns */
    int more;                           /* only this turn is over: submit the same item again */
    float *logprobs; /* [sequences, length] log p(target), 0 where ignored; NULL unless asked */
    float *logits;   /* [vocab]; NEXT_LOGITS */

    /* Set by the submitter. */
    void (*done)(struct shd_work *work, void *arg); /* on a rank's thread; must only hand over */
    void *done_arg;
} shd_work;

/* Zeroes and sets overrides to NAN. */
void shd_work_init(shd_work *work, shd_work_kind kind);
/* Frees batch and results, not `work` itself. */
void shd_work_fini(shd_work *work);

/* How long a turn is meant to be; it has at least one round (a micro-batch on every rank). */
#define SHD_TURN_MS 200.0

/* Where the first values of parameters come from. Called on every rank's thread at once, for its
 * own parts, in pieces of at most SHD_LOAD_PIECE elements. */
#define SHD_LOAD_PIECE ((int64_t)1 << 20)
typedef struct shd_param_source {
    /* Fills dst [n], memory of `dev`, with elements [first, first + n) of parameter `index` (row-
     * major) as fp32. A failure fails the job. */
    int (*load)(void *arg, shd_device *dev, uint32_t index, int64_t first, int64_t n, float *dst,
                shd_error *err);
    void *arg; /* borrowed; outlives the trainer */
} shd_param_source;

typedef struct shd_trainer shd_trainer;

/* Makes a trainer for `spec` on spec->strategy.world ranks (borrowed, they outlive it). Copies
 * spec and plan; takes over `data` and `eval` (may be NULL). Parameters come from `from` (copied;
 * NULL: random numbers of the spec's seed). Nothing is allocated on the ranks before SHD_WORK_INIT.
 * SHD_EDATA when the data is too short for the split and sequence length. */
int shd_trainer_create(const shd_spec *spec, const shd_plan *plan, shd_rank *const *ranks,
                       shd_source *data, shd_source *eval, const shd_param_source *from,
                       shd_trainer **out, shd_error *err);

/* Gives a trainer that was made without data what its steps and evaluations read, cut as its spec
 * says; before SHD_WORK_INIT. Takes `data` over. */
void shd_trainer_set_data(shd_trainer *trainer, shd_train_data *data);

/* Frees the arenas at once. No work may be in flight. NULL is fine. */
void shd_trainer_free(shd_trainer *trainer);

/* Checks a client batch before it is queued: token ids against the vocabulary, length against the
 * model and the plan. SHD_EINVAL names the sequence, position and value. */
int shd_trainer_check_batch(const shd_trainer *trainer, const shd_work *work, shd_error *err);

/* Starts `work` on the ranks, or its next turn. One at a time; `work` must live until `done`. After
 * a turn with `more` only the same item may be submitted, unless it is dropped. */
void shd_trainer_submit(shd_trainer *trainer, shd_work *work);

/* Forgets an item without gradients that has had a turn but is not finished. */
void shd_trainer_drop(shd_trainer *trainer);

/* Makes work in flight end early with SHD_ECANCELLED at the next collective (any thread). The
 * trainer can only be freed after it. */
void shd_trainer_abort(shd_trainer *trainer);

/* Bytes by tag of one rank of the job; safe at any time. Zero before INIT. */
void shd_trainer_usage(const shd_trainer *trainer, uint32_t rank, shd_usage out[SHD_TAG_COUNT],
                       uint64_t *total_peak, uint64_t *reserved);

/* Bytes that rank `rank` of the job has sent, by kind, before reshardings too; safe at any time. */
void shd_trainer_comm(const shd_trainer *trainer, uint32_t rank,
                      shd_comm_count out[SHD_COMM_KIND_COUNT]);

/* What rank `rank` did when in the last item that was submitted with `trace`; between items. */
const shd_timeline *shd_trainer_timeline(const shd_trainer *trainer, uint32_t rank);

/* Loss scale of the next step; 0 without loss scaling. Any time. */
double shd_trainer_loss_scale(const shd_trainer *trainer);

/* Copies the whole of parameter `index` (the master's values), gathered over the ranks, to
 * out[numel] (host). For tests and tools; no work may be in flight. */
int shd_trainer_read_param(shd_trainer *trainer, uint32_t index, float *out, shd_error *err);

/* Sets the whole of parameter `index` from in[numel] (host) on all ranks. After INIT, between work.
 */
int shd_trainer_write_param(shd_trainer *trainer, uint32_t index, const float *in, shd_error *err);

/* Copies the accumulated gradient of parameter `index` to out[numel]: of the summed loss, reduced
 * over ranks, before clipping. Between FORWARD_BACKWARD and OPTIM_STEP. */
int shd_trainer_read_grad(shd_trainer *trainer, uint32_t index, float *out, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

/* One job: its state, what waits for its ranks, and what came of it. Floor F5; loop thread only.
 *
 * A job has at most one work item on its ranks. Training (its own steps and evaluations, or the
 * calls of the client that drives it) and interactive items (Forward, tokens of Generate, parts of
 * an evaluation) take turns, so neither holds the other up. Fields are read by the RPC families and
 * written by job.c, except where a comment says who else. */
#ifndef SHD_DAEMON_SERVICE_JOB_H
#define SHD_DAEMON_SERVICE_JOB_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/service/answers.h"
#include "daemon/service/auth.h"
#include "daemon/service/history.h"
#include "daemon/service/item.h"
#include "daemon/service/job_data.h"
#include "daemon/service/model_files.h"
#include "daemon/service/prepare.h"
#include "daemon/service/sched.h"
#include "daemon/train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* After so many steps in a row whose gradient was not finite, the job fails. */
#define SHD_JOB_MAX_SKIPPED 8u
/* Answers kept for calls that are sent again, and how many bytes they may take. */
#define SHD_JOB_ANSWERS 256u
#define SHD_JOB_ANSWER_BYTES (16u << 20)

/* Is told that the job has new events or has ended; embedded in a watcher. */
typedef struct shd_jobs shd_jobs;

typedef struct shd_job_observer {
    void (*changed)(struct shd_job_observer *observer);
    void (*removed)(struct shd_job_observer *observer); /* the job is deleted: let go of it */
    struct shd_job_observer *next, **link;
} shd_job_observer;

/* Sees what the ranks do, from the beginning of the next step; embedded in a call. */
typedef struct shd_job_tracer {
    /* An item with gradients or of the optimizer came back well; shd_trainer_timeline has it. */
    void (*worked)(struct shd_job_tracer *tracer, const shd_work *work);
    void (*over)(struct shd_job_tracer *tracer); /* the job has ended: no step will come */
    int armed;                                   /* its first step has begun */
    struct shd_job_tracer *next, **link;
} shd_job_tracer;

/* Waits until the job is at rest in the state that was asked for; embedded in a waiting call. */
typedef struct shd_job_wait {
    /* Once: at rest (`job` is NULL when it was deleted), or with the reason why it will not be. */
    void (*fn)(struct shd_job_wait *wait, shd_job *job, const shd_error *failed);
    int deletes;
    struct shd_job_wait *next, **link;
} shd_job_wait;

/* A file of data on its way to the trainer. */
typedef struct shd_job_input {
    shd_source *source;           /* waits for the other file */
    shd_preparation *preparation; /* is being tokenized; NULL: not */
    uint64_t prepared;            /* bytes that were read for it, when it was */
} shd_job_input;

typedef struct shd_job_cutting shd_job_cutting; /* job_prepare.c */

/* State on its way to other ranks or another strategy: the job's next item once it is ready and no
 * gradients are accumulated. Embedded in a call of rpc_reshard.c. */
typedef struct shd_job_move {
    shd_item item; /* first */
    int ready;
    uint32_t first, n; /* daemon ranks [first, first + n) that take part, old and new */
    int (*begin)(struct shd_job_move *move, shd_error *err); /* no item is on the ranks */
    void (*removed)(struct shd_job_move *move);              /* the job is, before it was ready */
} shd_job_move;

struct shd_job {
    shd_jobs *jobs;
    shd_job *next; /* in the table; jobs.c */
    char id[9];
    uid_t owner_uid;
    gid_t owner_gid;
    char owner[33];
    double created_unix;

    shd_spec spec;
    Shard__V1__JobSpec *spec_message; /* every field as in use */
    shd_tokenizer *tokenizer;         /* NULL: none */
    shd_model_files *model_files;     /* a reference */
    shd_job_input data, eval;         /* job_prepare.c */
    shd_job_cutting *cutting;         /* both are being cut into windows; NULL: not */
    shd_plan plan;
    uint64_t reserved;    /* bytes planned on each of its ranks */
    uint32_t first_rank;  /* daemon ranks [first_rank, first_rank + world) */
    shd_trainer *trainer; /* NULL once the memory is freed */
    shd_usage (
        *last_usage)[SHD_TAG_COUNT]; /* [world] as it was when the memory was freed, or NULL */
    uint64_t *last_total_peak;       /* [world] likewise */
    shd_comm_count last_comm[SHD_COMM_KIND_COUNT];

    Shard__V1__JobState state;
    char reason[SHD_ERROR_MESSAGE_MAX];
    int reason_code;
    int initialised;
    int pause_wanted;
    int deleting;
    int eval_due;
    int interactive_turn; /* the next item is an interactive one if both kinds wait */

    uint64_t step, samples;
    uint64_t skipped;
    uint32_t skipped_in_a_row;
    int has_last, has_eval;
    shd_event last, last_eval;
    shd_history *history;
    shd_job_observer *observers;
    uint32_t n_observers;
    shd_job_tracer *tracers;
    shd_job_wait *waits;

    /* Since the last optimizer step. */
    uint32_t accumulated; /* batches whose gradients wait to be applied */
    double loss_sum, ms_sum, exposed_ms_sum;
    uint64_t tokens_sum;
    uint64_t comm_before[SHD_COMM_KIND_COUNT]; /* counters when the item was started */
    uint64_t comm_sum[SHD_COMM_KIND_COUNT];
    uint64_t comm_last_step[SHD_COMM_KIND_COUNT];
    double exposed_last_step; /* share of it that rank 0 waited for collectives */

    uint64_t next_seq;    /* rpc_drive.c */
    shd_answers *answers; /* rpc_drive.c */

    shd_item_queue training; /* client-driven calls, by seq */
    shd_item_queue interactive;
    shd_item_queue
        parked;          /* interactive ones whose client does not read, or whose turn it is not */
    uint32_t generating; /* generations that have a turn; rpc_generate.c */
    uint32_t gated;      /* those that wait for one; rpc_generate.c */
    /* Evaluations of files: one at a time, the others wait. */
    shd_item *evaluation;
    shd_item_queue evaluations;
    int held;              /* it has begun: no step before it is over */
    shd_item own;          /* INIT, DATA_STEP, EVAL */
    shd_job_move *move;    /* NULL: none; rpc_reshard.c */
    shd_item *running;     /* on the ranks, or between two turns there */
    int between_turns;     /* `running` waits for its next turn */
    shd_sched_entity turn; /* jobs.c */
};

typedef struct shd_job_params {
    shd_jobs *jobs;
    const char *id; /* 8 characters */
    shd_spec *spec; /* taken over, also on failure; an empty name becomes the id */
    const shd_plan *plan;
    uint32_t first_rank;
    const shd_identity *who;
    const char *owner;      /* user name, or the number */
    shd_job_data *files;    /* taken over, also on failure */
    shd_model_files *model; /* a reference is taken */
} shd_job_params;

/* A job in state QUEUED that has not yet been put into the table. Its text is being tokenized from
 * here on, where it has to be. */
int shd_job_create(const shd_job_params *params, shd_job **out, shd_error *err);

/* No item may be running. Waiting items fail, observers are told. NULL is fine. */
void shd_job_free(shd_job *job);

int shd_job_client_driven(const shd_job *job);
/* DONE, FAILED or CANCELLED. */
int shd_job_ended(const shd_job *job);
/* "queued", "running", ... Static storage. */
const char *shd_job_state_name(Shard__V1__JobState state);

/* Is text still being tokenized? Then *done of *total bytes are read. */
int shd_job_progress(const shd_job *job, uint64_t *done, uint64_t *total);
/* Are weights still to be loaded, or being? Likewise. */
int shd_job_loading(const shd_job *job, uint64_t *done, uint64_t *total);

/* ---- life; outcome is reported by shd_job_await ---- */

/* SHD_ESTATE when the job has ended (and for cancel: ended otherwise than by cancelling). */
int shd_job_pause(shd_job *job, shd_error *err);
int shd_job_resume(shd_job *job, shd_error *err);
int shd_job_cancel(shd_job *job, const char *reason, shd_error *err);
/* Ends what runs soon, at the daemon's stop: cancels the job; of one that is done only the call
 * that its ranks are busy with. */
void shd_job_hurry(shd_job *job, const char *reason);
/* SHD_ESTATE unless the job has ended. With the next rest it leaves the table. */
int shd_job_delete(shd_job *job, shd_error *err);

/* Calls wait->fn once the job is at rest: paused, cancelled with its memory freed, or deleted; at
 * once when it is so already. */
void shd_job_await(shd_job *job, shd_job_wait *wait);
void shd_job_fail_waits(shd_job *job, const shd_error *why);

/* ---- work ---- */

/* 0, or why an interactive item of `bytes` cannot be taken in now: SHD_ESTATE when the job's
 * weights are not there, SHD_EFULL when max_queue calls wait. */
int shd_job_check_interactive(const shd_job *job, uint64_t bytes, shd_error *err);

/* Queues an interactive item. SHD_ESTATE when the job's weights are not there, SHD_EFULL when
 * max_queue items wait, unless it goes on with a call that was let in before; on failure the item
 * stays the caller's. */
int shd_job_push_interactive(shd_job *job, shd_item *item, int goes_on, shd_error *err);

/* Queues a client-driven item; the caller has checked that it may be. */
void shd_job_push_training(shd_job *job, shd_item *item);

/* Queues the first part of an evaluation of a file: an interactive item, but one of a job at a
 * time, and from its first part to its last the job takes no step. Errors as above. */
int shd_job_push_evaluation(shd_job *job, shd_item *item, shd_error *err);
/* Queues the next part, behind other interactive items. */
int shd_job_go_on_evaluation(shd_job *job, shd_item *item, shd_error *err);
/* It is over, or failed, or was withdrawn while it waited: the next one may begin. */
void shd_job_end_evaluation(shd_job *job, const shd_item *item);

/* Keeps an interactive item that is not to be executed yet, so that it fails with the others when
 * the job ends. shd_job_withdraw takes it back. */
void shd_job_park(shd_job *job, shd_item *item);

/* Takes a waiting (also for an evaluation) or parked interactive item back; 0: it runs already,
 * finish will come. */
int shd_job_withdraw(shd_job *job, shd_item *item);

/* What will be when all accepted calls have been executed: optimizer steps, and batches whose
 * gradients wait to be applied. */
void shd_job_projected(const shd_job *job, uint64_t *steps, uint32_t *accumulated);

/* Fails what waits (not what runs) with `why`. */
void shd_job_fail_waiting(shd_job *job, const shd_error *why);

/* An event that is no change of state: event with the state as it is, log line, observers. */
void shd_job_note(shd_job *job, const char *text);

void shd_job_observe(shd_job *job, shd_job_observer *observer);
void shd_job_unobserve(shd_job *job, shd_job_observer *observer);

void shd_job_trace(shd_job *job, shd_job_tracer *tracer);
void shd_job_untrace(shd_job_tracer *tracer);

/* ---- for jobs.c ---- */

int shd_job_has_work(const shd_job *job);
/* Daemon ranks [*first, *first + *n) that the next item, or the next turn, takes. */
void shd_job_window(const shd_job *job, uint32_t *first, uint32_t *n);
/* Starts the next item on the ranks; 0: there was none after all. */
int shd_job_start(shd_job *job);
/* The running item came back. Afterwards the job may be gone (returns 0). */
int shd_job_finished(shd_job *job, shd_item *item);

#ifdef __cplusplus
}
#endif
#endif

/* The table of jobs: who has which job, on which ranks, with how much memory, and whose turn it is.
 * Floor F5; loop thread only. Ranks work for the table; what they finish comes back to the loop
 * through one locked queue and one uv_async. */
#ifndef SHD_DAEMON_SERVICE_JOBS_H
#define SHD_DAEMON_SERVICE_JOBS_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/err.h"
#include "daemon/rank/rank.h"
#include "daemon/service/auth.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_jobs_limits {
    uint32_t max_jobs;          /* jobs in the table, ended ones included */
    uint32_t max_jobs_per_user; /* of them, by one uid */
    uint32_t max_queue;         /* client calls that wait for one job's ranks */
    uint64_t watch_history;     /* step results kept per job */
    uint64_t memory_per_rank;   /* bytes that jobs may plan on one rank */
    uint64_t max_waiting_bytes; /* of batches that wait, one job's; 0: SHD_JOBS_WAITING_BYTES */
} shd_jobs_limits;

/* All jobs together may have four times as much waiting as one. */
#define SHD_JOBS_WAITING_BYTES (256ull << 20)

/* Everything behind a pointer is borrowed and outlives the table. `rules` and `data_roots` are read
 * at every use; after their owner replaced them (reload), call shd_jobs_set_access. */
typedef struct shd_jobs_options {
    uv_loop_t *loop;
    shd_rank *const *ranks; /* [n_ranks] */
    uint32_t n_ranks;
    int threads_per_rank;
    shd_jobs_limits limits;
    const shd_auth_rules *rules;
    char *const *data_roots; /* [n_data_roots] */
    uint32_t n_data_roots;
    struct shd_preparer *preparer; /* NULL: text that has to be tokenized is refused */
    const char *token_cache_path;  /* where its files lie, to be shown */
    const char *state_dir;         /* for files without a name; NULL: none */
} shd_jobs_options;

typedef struct shd_jobs shd_jobs;
struct shd_job;
struct shd_preparer;
struct shd_requests;
struct shd_work;
struct shd_workers;

int shd_jobs_create(const shd_jobs_options *options, shd_jobs **out, shd_error *err);

/* Frees every job and its memory. After the `done` of shd_jobs_stop; the loop must run once more
 * so that its handles close, `closed` (may be NULL) says when. NULL is fine. */
void shd_jobs_free(shd_jobs *jobs, void (*closed)(void *arg), void *arg);

/* Starts no new work: running work items (the running step of each job) finish, waiting calls fail
 * with SHD_EUNAVAILABLE. Then logs every job's state and step, and calls `done` on the loop. */
void shd_jobs_stop(shd_jobs *jobs, void (*done)(void *arg), void *arg);

/* Replaces who may do what and where files may lie (reload). */
void shd_jobs_set_access(shd_jobs *jobs, const shd_auth_rules *rules, char *const *data_roots,
                         uint32_t n_data_roots);

/* "2 jobs, 1 running; kjv: step 120 of 1000, loss 1.8312": for the service manager's status line.
 */
void shd_jobs_status_text(const shd_jobs *jobs, char *out, size_t size);

/* ---- for the RPC families ---- */

const shd_jobs_options *shd_jobs_get_options(const shd_jobs *jobs);
int shd_jobs_stopping(const shd_jobs *jobs);

/* Bytes that present jobs have planned, by rank: [n_ranks]. */
const uint64_t *shd_jobs_planned(const shd_jobs *jobs);

/* The job that `ref` (id, or name) means to the caller: an id first, then a job of the caller's own
 * by name, then any other visible one by name when it is the only one. SHD_ENOTFOUND also for jobs
 * the caller may not see; SHD_EPERM for a visible one without `right`; SHD_EINVAL for an empty or
 * ambiguous reference. */
int shd_jobs_find(shd_jobs *jobs, const shd_identity *who, const char *ref, shd_right right,
                  struct shd_job **out, shd_error *err);

/* Iterates in order of creation over the jobs the caller may see; start with NULL. */
struct shd_job *shd_jobs_next(const shd_jobs *jobs, const shd_identity *who,
                              const struct shd_job *after);

/* SHD_EEXIST / SHD_EFULL when a job of this name and owner cannot be added now. */
int shd_jobs_check_room(const shd_jobs *jobs, const shd_identity *who, const char *name,
                        shd_error *err);

/* Writes a fresh random id (8 characters) to out[9]. */
void shd_jobs_new_id(const shd_jobs *jobs, char *out);

/* Request ids of CreateJob calls that made a job. */
struct shd_requests *shd_jobs_requests(shd_jobs *jobs);

/* Threads beside the loop, for each kind of work its own: none waits behind another kind, and users
 * have shares. Texts and plans are cancelled when the table stops. */
typedef enum shd_workers_kind {
    SHD_WORKERS_TEXT = 0, /* texts to tokens, data to windows, files to be evaluated */
    SHD_WORKERS_PLAN,     /* files opened for jobs, and plans: admission, resharding, advice */
    SHD_WORKERS_SAMPLING, /* tokens from logits: milliseconds */
    SHD_WORKERS_FILES,    /* exports: as slow as the caller's file system */
    SHD_WORKERS_COUNT
} shd_workers_kind;
struct shd_workers *shd_jobs_workers(shd_jobs *jobs, shd_workers_kind kind);

/* Something of the table runs outside of the loop thread (a plan, a text, an export): shd_jobs_stop
 * waits until it is let go of again. */
void shd_jobs_hold(shd_jobs *jobs);
void shd_jobs_unhold(shd_jobs *jobs);

/* Adds a job (owned from here), plans its bytes on its ranks and starts it. */
void shd_jobs_add(shd_jobs *jobs, struct shd_job *job);

/* Takes an ended job without running work out of the table and frees it. */
void shd_jobs_remove(shd_jobs *jobs, struct shd_job *job);

/* ---- for job.c ---- */

/* Something changed that may let work start: looks for work on idle ranks. */
void shd_jobs_kick(shd_jobs *jobs);

/* 0, or SHD_EFULL when `bytes` more of waiting batches would be too many for this job or for all.
 */
int shd_jobs_check_waiting(const shd_jobs *jobs, const struct shd_job *job, uint64_t bytes,
                           shd_error *err);

/* Plans `bytes` more on each of the ranks [first, first + n); the other way round. */
void shd_jobs_reserve(shd_jobs *jobs, uint32_t first, uint32_t n, uint64_t bytes);
void shd_jobs_unreserve(shd_jobs *jobs, uint32_t first, uint32_t n, uint64_t bytes);

/* The job's planned bytes are free again. */
void shd_jobs_release(shd_jobs *jobs, const struct shd_job *job);

/* `done` of every work item: hands the item to the loop. Any thread. */
void shd_jobs_work_done(struct shd_work *work, void *item);

#ifdef __cplusplus
}
#endif
#endif

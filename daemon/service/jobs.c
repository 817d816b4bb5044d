#include "daemon/service/jobs.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/service/admission.h"
#include "daemon/service/job.h"
#include "daemon/service/requests.h"
#include "daemon/service/sched.h"
#include "daemon/service/workers.h"

/* Tasks of each kind at one time, and of them one user's. */
static const struct {
    uint32_t most, of_user;
} lanes[SHD_WORKERS_COUNT] = {
    [SHD_WORKERS_TEXT] = {16, 2},
    [SHD_WORKERS_PLAN] = {32, 2},
    [SHD_WORKERS_SAMPLING] = {8, 2},
    [SHD_WORKERS_FILES] = {32, 2},
};

struct shd_jobs {
    shd_jobs_options options;
    shd_workers *workers[SHD_WORKERS_COUNT];
    shd_job *head, **end; /* in order of creation */
    uint64_t *planned;    /* [n_ranks] */
    shd_sched *sched;
    shd_requests *requests;
    int kicking, kick_again;
    uint32_t running; /* items on ranks */
    uint32_t holds;   /* what is under way beside loop and ranks: see shd_jobs_hold */

    int stopping;
    void (*stopped)(void *arg);
    void *stopped_arg;
    void (*closed)(void *arg);
    void *closed_arg;

    /* Crossing from the ranks' threads to the loop. */
    uv_async_t wake;
    pthread_mutex_t mutex;
    shd_item *done_head, *done_tail;
};

/* ---- what ranks finish ---- */

void shd_jobs_work_done(shd_work *work, void *arg)
{
    (void)work;
    shd_item *item = arg;
    shd_jobs *jobs = item->job->jobs;
    item->next = NULL;
    pthread_mutex_lock(&jobs->mutex);
    if (jobs->done_tail != NULL) {
        jobs->done_tail->next = item;
    } else {
        jobs->done_head = item;
    }
    jobs->done_tail = item;
    /* Under the lock: once the loop has seen the item, the table may go. */
    uv_async_send(&jobs->wake);
    pthread_mutex_unlock(&jobs->mutex);
}

static void maybe_stopped(shd_jobs *jobs)
{
    if (!jobs->stopping || jobs->stopped == NULL || jobs->running > 0 || jobs->holds > 0) {
        return;
    }
    shd_error why;
    shd_fail(&why, SHD_EUNAVAILABLE, "the daemon is stopping");
    for (shd_job *job = jobs->head; job != NULL; job = job->next) {
        shd_job_fail_waits(job, &why);
        shd_log(SHD_LOG_NOTICE, "job %s (%s) of %s: %s at step %llu, %llu samples", job->id,
                job->spec.name, job->owner, shd_job_state_name(job->state),
                (unsigned long long)job->step, (unsigned long long)job->samples);
    }
    void (*stopped)(void *) = jobs->stopped;
    jobs->stopped = NULL;
    stopped(jobs->stopped_arg);
}

static void on_wake(uv_async_t *handle)
{
    shd_jobs *jobs = handle->data;
    pthread_mutex_lock(&jobs->mutex);
    shd_item *item = jobs->done_head;
    jobs->done_head = jobs->done_tail = NULL;
    pthread_mutex_unlock(&jobs->mutex);
    while (item != NULL) {
        shd_item *next = item->next;
        shd_job *job = item->job;
        jobs->running--;
        shd_sched_done(jobs->sched, &job->turn);
        shd_job_finished(job, item);
        item = next;
    }
    shd_jobs_kick(jobs);
    maybe_stopped(jobs);
}

/* ---- making and freeing ---- */

static void free_workers(shd_jobs *jobs)
{
    for (int i = 0; i < SHD_WORKERS_COUNT; i++) {
        shd_workers_free(jobs->workers[i]);
    }
}

int shd_jobs_create(const shd_jobs_options *options, shd_jobs **out, shd_error *err)
{
    if (options->n_ranks == 0 || options->limits.memory_per_rank == 0) {
        return shd_fail(err, SHD_EINVAL, "jobs need ranks and memory: %u ranks of %llu bytes",
                        options->n_ranks, (unsigned long long)options->limits.memory_per_rank);
    }
    shd_jobs *jobs = shd_calloc(1, sizeof(*jobs));
    int rc = SHD_OK;
    for (int i = 0; rc == SHD_OK && i < SHD_WORKERS_COUNT; i++) {
        rc = shd_workers_create(options->loop, lanes[i].most, lanes[i].of_user, &jobs->workers[i],
                                err);
    }
    if (rc == SHD_OK) {
        const int failed = uv_async_init(options->loop, &jobs->wake, on_wake);
        rc = failed < 0 ? shd_fail(err, SHD_EIO, "uv_async_init: %s", uv_strerror(failed)) : SHD_OK;
    }
    if (rc < 0) {
        free_workers(jobs);
        free(jobs);
        return rc;
    }
    jobs->wake.data = jobs;
    jobs->options = *options;
    jobs->end = &jobs->head;
    jobs->planned = shd_calloc(options->n_ranks, sizeof(*jobs->planned));
    jobs->sched = shd_sched_create(options->n_ranks);
    jobs->requests = shd_requests_create();
    pthread_mutex_init(&jobs->mutex, NULL);
    *out = jobs;
    return SHD_OK;
}

static void on_closed(uv_handle_t *handle)
{
    shd_jobs *jobs = handle->data;
    pthread_mutex_destroy(&jobs->mutex);
    if (jobs->closed != NULL) {
        jobs->closed(jobs->closed_arg);
    }
    free(jobs);
}

void shd_jobs_free(shd_jobs *jobs, void (*closed)(void *arg), void *arg)
{
    if (jobs == NULL) {
        return;
    }
    jobs->stopping = 1; /* what finish functions push now must not start */
    while (jobs->head != NULL) {
        shd_jobs_remove(jobs, jobs->head);
    }
    free_workers(jobs);
    shd_sched_free(jobs->sched);
    shd_requests_free(jobs->requests);
    free(jobs->planned);
    jobs->closed = closed;
    jobs->closed_arg = arg;
    /* A rank may still be about to leave shd_jobs_work_done. */
    pthread_mutex_lock(&jobs->mutex);
    pthread_mutex_unlock(&jobs->mutex);
    uv_close((uv_handle_t *)&jobs->wake, on_closed);
}

void shd_jobs_stop(shd_jobs *jobs, void (*done)(void *arg), void *arg)
{
    jobs->stopping = 1;
    jobs->stopped = done;
    jobs->stopped_arg = arg;
    shd_workers_cancel(jobs->workers[SHD_WORKERS_TEXT]);
    shd_workers_cancel(jobs->workers[SHD_WORKERS_PLAN]);
    shd_error why;
    shd_fail(&why, SHD_EUNAVAILABLE,
             "the daemon is stopping; the call was not executed, send it again later");
    shd_jobs_hold(jobs); /* what ends here must not end the stop before all have been told */
    for (shd_job *job = jobs->head; job != NULL; job = job->next) {
        shd_job_fail_waiting(job, &why);
    }
    shd_jobs_unhold(jobs);
}

void shd_jobs_set_access(shd_jobs *jobs, const shd_auth_rules *rules, char *const *data_roots,
                         uint32_t n_data_roots)
{
    jobs->options.rules = rules;
    jobs->options.data_roots = data_roots;
    jobs->options.n_data_roots = n_data_roots;
}

void shd_jobs_status_text(const shd_jobs *jobs, char *out, size_t size)
{
    uint32_t n = 0, running = 0;
    const shd_job *shown = NULL;
    for (const shd_job *job = jobs->head; job != NULL; job = job->next) {
        n++;
        if (job->state == SHARD__V1__JOB_STATE__JOB_STATE_RUNNING) {
            running++;
            shown = job;
        }
    }
    int used = snprintf(out, size, "%s%u %s, %u running", jobs->stopping ? "stopping; " : "", n,
                        n == 1 ? "job" : "jobs", running);
    if (shown != NULL && used >= 0 && (size_t)used < size) {
        char of[32] = "", loss[48] = "";
        if (shown->spec.steps != 0) {
            snprintf(of, sizeof(of), " of %llu", (unsigned long long)shown->spec.steps);
        }
        if (shown->has_last) {
            snprintf(loss, sizeof(loss), ", loss %.4f", shown->last.result.loss);
        }
        snprintf(out + used, size - (size_t)used, "; %s: step %llu%s%s", shown->spec.name,
                 (unsigned long long)shown->step, of, loss);
    }
}

/* ---- looking up ---- */

const shd_jobs_options *shd_jobs_get_options(const shd_jobs *jobs)
{
    return &jobs->options;
}

shd_workers *shd_jobs_workers(shd_jobs *jobs, shd_workers_kind kind)
{
    return jobs->workers[kind];
}

int shd_jobs_stopping(const shd_jobs *jobs)
{
    return jobs->stopping;
}

const uint64_t *shd_jobs_planned(const shd_jobs *jobs)
{
    return jobs->planned;
}

shd_requests *shd_jobs_requests(shd_jobs *jobs)
{
    return jobs->requests;
}

static int check_right(const shd_jobs *jobs, const shd_identity *who, const shd_job *job,
                       const char *ref, shd_right right, shd_error *err)
{
    return shd_auth_check_job(jobs->options.rules, who, job->owner_uid, job->owner_gid, ref, right,
                              err);
}

static int may_see(const shd_jobs *jobs, const shd_identity *who, const shd_job *job)
{
    return check_right(jobs, who, job, job->id, SHD_RIGHT_SEE, NULL) == SHD_OK;
}

/* The visible job that `ref` means; NULL and an error for none or several. */
static shd_job *lookup(shd_jobs *jobs, const shd_identity *who, const char *ref, shd_error *err)
{
    shd_job *named = NULL, *other = NULL;
    for (shd_job *job = jobs->head; job != NULL; job = job->next) {
        const int by_id = strcmp(job->id, ref) == 0;
        if ((!by_id && strcmp(job->spec.name, ref) != 0) || !may_see(jobs, who, job)) {
            continue;
        }
        if (by_id) {
            return job;
        }
        if (job->owner_uid == who->uid) {
            named = job;
        } else if (other == NULL) {
            other = job;
        }
    }
    if (named != NULL) {
        return named;
    }
    for (shd_job *job = other != NULL ? other->next : NULL; job != NULL; job = job->next) {
        if (strcmp(job->spec.name, ref) == 0 && may_see(jobs, who, job)) {
            shd_fail(err, SHD_EINVAL, "several jobs are named '%s' (%s of %s, %s of %s); use an id",
                     ref, other->id, other->owner, job->id, job->owner);
            return NULL;
        }
    }
    if (other == NULL) {
        shd_fail(err, SHD_ENOTFOUND, "no job '%.64s'; see the list of jobs for ids and names", ref);
    }
    return other;
}

int shd_jobs_find(shd_jobs *jobs, const shd_identity *who, const char *ref, shd_right right,
                  shd_job **out, shd_error *err)
{
    if (ref[0] == '\0') {
        return shd_fail(err, SHD_EINVAL, "no job given; name one by its id or name");
    }
    shd_error found;
    shd_job *job = lookup(jobs, who, ref, &found);
    if (job == NULL) {
        if (err != NULL) {
            *err = found;
        }
        return found.code;
    }
    SHD_TRY(check_right(jobs, who, job, ref, right, err));
    *out = job;
    return SHD_OK;
}

shd_job *shd_jobs_next(const shd_jobs *jobs, const shd_identity *who, const shd_job *after)
{
    shd_job *job = after != NULL ? after->next : jobs->head;
    while (job != NULL && !may_see(jobs, who, job)) {
        job = job->next;
    }
    return job;
}

int shd_jobs_check_room(const shd_jobs *jobs, const shd_identity *who, const char *name,
                        shd_error *err)
{
    const shd_jobs_limits *limits = &jobs->options.limits;
    uint32_t n = 0, of_user = 0;
    for (const shd_job *job = jobs->head; job != NULL; job = job->next) {
        n++;
        if (job->owner_uid != who->uid) {
            continue;
        }
        of_user++;
        if (name[0] != '\0' && strcmp(job->spec.name, name) == 0) {
            return shd_fail(err, SHD_EEXIST,
                            "job name '%s' is taken by your job %s (%s); choose another name or "
                            "delete that job",
                            name, job->id, shd_job_state_name(job->state));
        }
    }
    if (n >= limits->max_jobs) {
        return shd_fail(err, SHD_EFULL,
                        "the daemon has %u jobs, its limit (max_jobs); delete ended ones", n);
    }
    if (of_user >= limits->max_jobs_per_user) {
        return shd_fail(err, SHD_EFULL,
                        "you have %u jobs, the limit (max_jobs_per_user); delete ended ones",
                        of_user);
    }
    return SHD_OK;
}

void shd_jobs_new_id(const shd_jobs *jobs, char *out)
{
    static const char digits[] = "abcdefghijklmnopqrstuvwxyz234567"; /* RFC 4648 base32 */
    for (;;) {
        unsigned char bytes[8];
        if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
            continue; /* interrupted */
        }
        for (int i = 0; i < 8; i++) {
            out[i] = digits[bytes[i] & 31];
        }
        out[8] = '\0';
        const shd_job *job = jobs->head;
        while (job != NULL && strcmp(job->id, out) != 0 && strcmp(job->spec.name, out) != 0) {
            job = job->next;
        }
        if (job == NULL) {
            return;
        }
    }
}

static uint64_t waiting_bytes(const shd_job *job)
{
    return job->training.bytes + job->interactive.bytes;
}

int shd_jobs_check_waiting(const shd_jobs *jobs, const shd_job *job, uint64_t bytes, shd_error *err)
{
    const uint64_t limit = jobs->options.limits.max_waiting_bytes != 0
                               ? jobs->options.limits.max_waiting_bytes
                               : SHD_JOBS_WAITING_BYTES;
    uint64_t all = 0;
    for (const shd_job *j = jobs->head; j != NULL; j = j->next) {
        all += waiting_bytes(j);
    }
    const uint64_t mine = waiting_bytes(job);
    if (mine + bytes > limit || all + bytes > 4 * limit) {
        return shd_fail(err, SHD_EFULL,
                        "queue full: batches of %llu bytes wait for job %s (at most %llu) and of "
                        "%llu for all jobs (at most %llu); try again when one is answered",
                        (unsigned long long)mine, job->id, (unsigned long long)limit,
                        (unsigned long long)all, (unsigned long long)(4 * limit));
    }
    return SHD_OK;
}

/* ---- the table ---- */

void shd_jobs_hold(shd_jobs *jobs)
{
    jobs->holds++;
}

void shd_jobs_unhold(shd_jobs *jobs)
{
    jobs->holds--;
    maybe_stopped(jobs);
}

void shd_jobs_reserve(shd_jobs *jobs, uint32_t first, uint32_t n, uint64_t bytes)
{
    for (uint32_t r = first; r < first + n; r++) {
        jobs->planned[r] += bytes;
    }
}

void shd_jobs_unreserve(shd_jobs *jobs, uint32_t first, uint32_t n, uint64_t bytes)
{
    for (uint32_t r = first; r < first + n; r++) {
        jobs->planned[r] -= bytes;
    }
}

void shd_jobs_add(shd_jobs *jobs, shd_job *job)
{
    job->reserved = shd_plan_bytes(&job->plan);
    shd_jobs_reserve(jobs, job->first_rank, job->spec.strategy.world, job->reserved);
    *jobs->end = job;
    jobs->end = &job->next;
    shd_sched_add(jobs->sched, &job->turn);
    shd_jobs_kick(jobs);
}

void shd_jobs_release(shd_jobs *jobs, const shd_job *job)
{
    shd_jobs_unreserve(jobs, job->first_rank, job->spec.strategy.world, job->reserved);
}

void shd_jobs_remove(shd_jobs *jobs, shd_job *job)
{
    shd_job **at = &jobs->head;
    while (*at != job) {
        at = &(*at)->next;
    }
    *at = job->next;
    jobs->end = jobs->end == &job->next ? at : jobs->end;
    shd_sched_remove(jobs->sched, &job->turn);
    if (job->trainer != NULL) {
        shd_jobs_release(jobs, job);
    }
    if (!jobs->stopping) {
        shd_log(SHD_LOG_INFO, "job %s (%s, %s): removed", job->id, job->spec.name, job->owner);
    }
    shd_job_free(job);
}

void shd_jobs_kick(shd_jobs *jobs)
{
    jobs->kick_again = 1;
    if (jobs->kicking) {
        return;
    }
    jobs->kicking = 1;
    while (jobs->kick_again) {
        jobs->kick_again = 0;
        for (shd_job *job = jobs->head; job != NULL; job = job->next) {
            /* At a stop, what is under way is brought to its end. */
            const int ready = jobs->stopping ? job->between_turns : shd_job_has_work(job);
            if (!job->turn.running) {
                uint32_t first, n;
                shd_job_window(job, &first, &n);
                shd_sched_move(jobs->sched, &job->turn, first, n);
            }
            shd_sched_set_ready(jobs->sched, &job->turn, ready);
        }
        for (shd_sched_entity *e; (e = shd_sched_next(jobs->sched)) != NULL;) {
            shd_job *job = e->owner;
            if (shd_job_start(job)) {
                jobs->running++;
            } else {
                shd_sched_set_ready(jobs->sched, e, 0);
                shd_sched_done(jobs->sched, e);
                jobs->kick_again = 1;
            }
        }
    }
    jobs->kicking = 0;
}

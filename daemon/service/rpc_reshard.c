#include "daemon/service/rpc_reshard.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/service/encode.h"
#include "daemon/service/job.h"
#include "daemon/service/jobs.h"
#include "daemon/service/reshard_spec.h"
#include "daemon/service/room.h"
#include "daemon/service/workers.h"
#include "daemon/train/plan.h"
#include "daemon/train/reshard.h"

typedef struct reshard_call {
    shd_job_move move; /* first */
    shd_call *call;    /* NULL once the client is gone */
    shd_jobs *jobs;
    shd_job *job; /* NULL once it is deleted */
    /* For the thread. */
    shd_task task;
    Shard__V1__JobSpec *message;
    shd_model_files *files; /* a reference */
    uint32_t n_ranks;
    int threads_per_rank;
    int rc;
    shd_error err;
    shd_spec spec;
    shd_plan plan;
    /* Once admitted. */
    uint32_t first_rank;
    uint64_t needs; /* bytes planned on each new rank */
    shd_reshard *reshard;
} reshard_call;

static void free_call(reshard_call *c)
{
    shd_jobs *jobs = c->jobs;
    shard__v1__job_spec__free_unpacked(c->message, NULL);
    shd_model_files_unref(c->files);
    shd_spec_fini(&c->spec);
    shd_work_fini(&c->move.item.work);
    free(c);
    shd_jobs_unhold(jobs);
}

/* Answers and ends; `failed` NULL: the job is as was asked for. */
static void answer(reshard_call *c, const shd_error *failed)
{
    if (c->job != NULL) {
        c->job->move = NULL;
    }
    if (c->call != NULL && failed != NULL) {
        shd_call_fail(c->call, failed);
    } else if (c->call != NULL) {
        shd_scratch scratch = SHD_SCRATCH_INIT;
        shd_call_reply(c->call, &shd_encode_job(c->job, &scratch)->base);
        shd_scratch_free(&scratch);
    }
    free_call(c);
}

/* ---- can it be? ---- */

static int check_job(const shd_job *job, shd_error *err)
{
    if (job->deleting || job->trainer == NULL ||
        job->state == SHARD__V1__JOB_STATE__JOB_STATE_FAILED ||
        job->state == SHARD__V1__JOB_STATE__JOB_STATE_CANCELLED) {
        return shd_fail(err, SHD_ESTATE, "job %s is %s%s%s; its state is gone", job->id,
                        job->deleting ? "being deleted" : shd_job_state_name(job->state),
                        job->reason[0] != '\0' ? ": " : "", job->reason);
    }
    if (!job->initialised) {
        return shd_fail(err, SHD_ESTATE,
                        "job %s is not initialised yet; try again when it runs, or cancel it and "
                        "submit it as you want it",
                        job->id);
    }
    uint64_t steps;
    uint32_t accumulated;
    shd_job_projected(job, &steps, &accumulated);
    if (accumulated > 0) {
        return shd_fail(err, SHD_ESTATE,
                        "job %s has gradients of %u batches accumulated; apply them first "
                        "(OptimStep)",
                        job->id, accumulated);
    }
    return SHD_OK;
}

static int check(const shd_jobs *jobs, const shd_job *job, shd_error *err)
{
    if (shd_jobs_stopping(jobs)) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    if (job->move != NULL) {
        return shd_fail(err, SHD_ESTATE, "another resharding of job %s is under way", job->id);
    }
    return check_job(job, err);
}

/* ---- on a thread beside the loop ---- */

static int make_plan(reshard_call *c)
{
    const shd_model_config *config =
        c->files != NULL && c->files->config_json != NULL ? &c->files->config : NULL;
    if (__atomic_load_n(&c->task.cancel, __ATOMIC_RELAXED)) {
        return shd_fail(&c->err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    SHD_TRY(shd_spec_resolve(c->message, c->n_ranks, 0, config, &c->spec, &c->err));
    return shd_plan_make(&c->spec, c->threads_per_rank, &c->plan, &c->err);
}

static reshard_call *call_of(shd_task *task)
{
    return (reshard_call *)((char *)task - offsetof(reshard_call, task));
}

static void run_plan(shd_task *task)
{
    reshard_call *c = call_of(task);
    c->rc = make_plan(c);
}

/* ---- admission, on the loop ---- */

/* The window of the new ranks inside of the old ones, or around them, that admission would take. */
static uint32_t place(const shd_job *job, const uint64_t *planned, uint32_t n_ranks, uint32_t world)
{
    const uint32_t old = job->first_rank, n_old = job->spec.strategy.world;
    const uint32_t end = old + n_old;
    const uint32_t low = world <= n_old ? old : end > world ? end - world : 0;
    const uint32_t high = world <= n_old           ? end - world
                          : old + world <= n_ranks ? old
                                                   : n_ranks - world;
    uint64_t fullest;
    return low + shd_room_place(planned + low, high - low + world, world, &fullest);
}

static int fits(const reshard_call *c, shd_error *err)
{
    const uint64_t *planned = shd_jobs_planned(c->jobs);
    const uint64_t budget = shd_jobs_get_options(c->jobs)->limits.memory_per_rank;
    for (uint32_t r = c->move.first; r < c->move.first + c->move.n; r++) {
        const int is_new = r >= c->first_rank && r < c->first_rank + c->spec.strategy.world;
        const uint64_t more = (is_new ? c->needs : 0) + SHD_RESHARD_STAGING;
        const uint64_t available = planned[r] < budget ? budget - planned[r] : 0;
        if (more > available) {
            return shd_fail(
                err, SHD_ENOMEM,
                "does not fit: while the state moves, rank %u needs %llu bytes more (%llu of %s "
                "on %u ranks and %llu of staging) beside what it has, and %llu of %llu are free; "
                "job %s goes on as it was; end other jobs, or choose a strategy or ranks that "
                "take less",
                r, (unsigned long long)more, (unsigned long long)(is_new ? c->needs : 0),
                shd_strategy_name(&c->spec.strategy), c->spec.strategy.world,
                (unsigned long long)SHD_RESHARD_STAGING, (unsigned long long)available,
                (unsigned long long)budget, c->job->id);
        }
    }
    return SHD_OK;
}

static void reserve(reshard_call *c)
{
    shd_jobs_reserve(c->jobs, c->first_rank, c->spec.strategy.world, c->needs);
    shd_jobs_reserve(c->jobs, c->move.first, c->move.n, SHD_RESHARD_STAGING);
}

static int admit(reshard_call *c, shd_error *err)
{
    const shd_job *job = c->job;
    if (shd_jobs_stopping(c->jobs)) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    SHD_TRY(check_job(job, err)); /* time has passed */
    const uint32_t world = c->spec.strategy.world, n_old = job->spec.strategy.world;
    c->first_rank = place(job, shd_jobs_planned(c->jobs), c->n_ranks, world);
    c->needs = shd_plan_bytes(&c->plan);
    c->move.first = world > n_old ? c->first_rank : job->first_rank;
    c->move.n = world > n_old ? world : n_old;
    return fits(c, err);
}

/* Is the job as was asked for already, but for what does not show? */
static int is_as_asked(const reshard_call *c)
{
    Shard__V1__JobSpec *m = shd_spec_to_proto(&c->spec);
    const size_t size = shard__v1__job_spec__get_packed_size(m);
    const size_t size_now = shard__v1__job_spec__get_packed_size(c->job->spec_message);
    int same = size == size_now;
    if (same) {
        uint8_t *bytes = shd_malloc(2 * size);
        shard__v1__job_spec__pack(m, bytes);
        shard__v1__job_spec__pack(c->job->spec_message, bytes + size);
        same = memcmp(bytes, bytes + size, size) == 0;
        free(bytes);
    }
    shard__v1__job_spec__free_unpacked(m, NULL);
    return same;
}

static void after_plan(shd_task *task)
{
    reshard_call *c = call_of(task);
    shd_error err = c->err;
    int rc = c->rc;
    if (c->job == NULL) {
        shd_fail(&err, SHD_ECANCELLED, "the job was deleted");
        answer(c, &err);
        return;
    }
    if (rc == SHD_OK && is_as_asked(c)) {
        answer(c, NULL);
        return;
    }
    rc = rc == SHD_OK ? admit(c, &err) : rc;
    if (rc < 0) {
        answer(c, &err);
        return;
    }
    reserve(c);
    c->move.ready = 1;
    shd_jobs_kick(c->jobs);
}

/* ---- the item ---- */

static int on_begin(shd_job_move *move, shd_error *err)
{
    reshard_call *c = (reshard_call *)move;
    SHD_TRY(shd_reshard_create(c->job->trainer, &c->spec, &c->plan,
                               shd_jobs_get_options(c->jobs)->ranks + c->first_rank, &c->reshard,
                               err));
    move->item.work.reshard = c->reshard;
    return SHD_OK;
}

/* "zero3 (4,4,4 of 4)" */
static void describe(const shd_spec *spec, char out[64])
{
    const shd_strategy *s = &spec->strategy;
    snprintf(out, 64, "%s (%u,%u,%u of %u)", shd_strategy_name(s), s->p, s->g, s->o, s->world);
}

/* The job is what the new plan says from here on. */
static void take_over(reshard_call *c)
{
    shd_job *job = c->job;
    char from[64], to[64], note[256];
    describe(&job->spec, from);
    describe(&c->spec, to);
    snprintf(note, sizeof(note), "resharded from %s to %s in %.0f ms", from, to,
             c->move.item.work.ms);
    shd_reshard_adopt(c->reshard);
    shd_jobs_release(c->jobs, job);
    const shd_spec before = job->spec;
    job->spec = c->spec;
    c->spec = before;
    job->plan = c->plan;
    job->first_rank = c->first_rank;
    job->reserved = c->needs;
    shard__v1__job_spec__free_unpacked(job->spec_message, NULL);
    job->spec_message = shd_spec_to_proto(&job->spec);
    shd_job_note(job, note);
}

static void on_moved(shd_item *item, const shd_error *failed)
{
    reshard_call *c = (reshard_call *)item;
    shd_job *job = c->job;
    const uint32_t world = c->spec.strategy.world;
    shd_jobs_unreserve(c->jobs, c->move.first, c->move.n, SHD_RESHARD_STAGING);
    if (failed == NULL) {
        take_over(c);
    } else {
        shd_jobs_unreserve(c->jobs, c->first_rank, world, c->needs);
        shd_log(SHD_LOG_WARNING, "job %s (%s): not resharded: %s", job->id, job->spec.name,
                failed->message);
    }
    shd_reshard_free(c->reshard);
    c->reshard = NULL;
    answer(c, failed);
}

/* The job is deleted while the plan is being made. */
static void on_removed(shd_job_move *move)
{
    ((reshard_call *)move)->job = NULL;
}

static void on_gone(void *arg)
{
    ((reshard_call *)arg)->call = NULL;
}

static void reshard(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__ReshardRequest *q = (const Shard__V1__ReshardRequest *)request;
    shd_jobs *jobs = service;
    const shd_jobs_options *options = shd_jobs_get_options(jobs);
    shd_job *job;
    shd_error err;
    if (shd_jobs_find(jobs, shd_call_identity(call), q->job, SHD_RIGHT_MANAGE, &job, &err) < 0 ||
        check(jobs, job, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    if (!shd_reshard_asks(q)) {
        shd_call_failf(call, SHD_EINVAL,
                       "nothing to change; give a strategy, degrees, ranks, a micro-batch or a "
                       "level of determinism");
        return;
    }
    Shard__V1__JobSpec *message = shd_reshard_spec(job->spec_message, q);
    if (shd_reshard_check_batch(message, options->n_ranks, &err) < 0) {
        shard__v1__job_spec__free_unpacked(message, NULL);
        shd_call_fail(call, &err);
        return;
    }
    reshard_call *c = shd_calloc(1, sizeof(*c));
    shd_work_init(&c->move.item.work, SHD_WORK_RESHARD);
    c->move.item.finish = on_moved;
    c->move.item.job = job;
    c->move.begin = on_begin;
    c->move.removed = on_removed;
    c->call = call;
    c->jobs = jobs;
    c->job = job;
    c->message = message;
    c->files = shd_model_files_ref(job->model_files);
    c->n_ranks = options->n_ranks;
    c->threads_per_rank = options->threads_per_rank;
    c->task = (shd_task){.run = run_plan, .done = after_plan, .uid = shd_call_identity(call)->uid};
    job->move = &c->move;
    shd_jobs_hold(jobs);
    shd_call_callbacks(call, on_gone, NULL, c);
    /* However many wait: a job has one at a time. */
    shd_workers_run(shd_jobs_workers(jobs, SHD_WORKERS_PLAN), &c->task);
}

const shd_rpc_method *shd_rpc_reshard_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/Reshard", &shard__v1__reshard_request__descriptor, reshard, 0},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

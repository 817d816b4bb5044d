#include "daemon/service/job_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/service/jobs.h"

static void own_finish(shd_item *item, const shd_error *failed)
{
    (void)item; /* what its results mean for the job was settled before */
    (void)failed;
}

double shd_job_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

const char *shd_job_state_name(Shard__V1__JobState state)
{
    static const char *const names[] = {"unspecified", "queued", "running",  "paused",
                                        "done",        "failed", "cancelled"};
    return state >= 0 && state <= STATE(CANCELLED) ? names[state] : "unspecified";
}

int shd_job_client_driven(const shd_job *job)
{
    return job->spec.data_path == NULL;
}

int shd_job_ended(const shd_job *job)
{
    return job->state == STATE(DONE) || job->state == STATE(FAILED) ||
           job->state == STATE(CANCELLED);
}

/* ---- events ---- */

void shd_job_notify(shd_job *job)
{
    for (shd_job_observer *o = job->observers, *next; o != NULL; o = next) {
        next = o->next;
        o->changed(o);
    }
    for (shd_job_tracer *t = job->tracers, *next; t != NULL && shd_job_ended(job); t = next) {
        next = t->next;
        t->over(t);
    }
}

static void record_state(shd_job *job, const char *text)
{
    char reason[SHD_ERROR_MESSAGE_MAX];
    snprintf(reason, sizeof(reason), "%s", text);
    shd_event event = {.step = job->step, .kind = SHD_EVENT_STATE, .state = (uint8_t)job->state};
    event.change.unix_time = shd_job_now();
    event.change.reason = reason[0] != '\0' ? reason : NULL;
    shd_history_append(job->history, &event);
    shd_log(job->state == STATE(FAILED) ? SHD_LOG_WARNING : SHD_LOG_INFO,
            "job %s (%s, %s): %s at step %llu%s%s", job->id, job->spec.name, job->owner,
            shd_job_state_name(job->state), (unsigned long long)job->step,
            reason[0] != '\0' ? ": " : "", reason);
    shd_job_notify(job);
}

void shd_job_set_state(shd_job *job, Shard__V1__JobState state, int code, const char *reason)
{
    job->state = state;
    job->reason_code = code;
    snprintf(job->reason, sizeof(job->reason), "%s", reason);
    record_state(job, reason);
}

void shd_job_note(shd_job *job, const char *text)
{
    record_state(job, text);
}

void shd_job_fail_waiting(shd_job *job, const shd_error *why)
{
    if (job->move != NULL && job->move->ready && job->running != &job->move->item) {
        job->move->item.finish(&job->move->item, why);
    }
    shd_item_queue_fail(&job->training, why);
    shd_item_queue_fail(&job->interactive, why);
    shd_item_queue_fail(&job->parked, why);
    shd_item_queue_fail(&job->evaluations, why);
}

/* ---- making and freeing ---- */

int shd_job_create(const shd_job_params *params, shd_job **out, shd_error *err)
{
    shd_job *job = shd_calloc(1, sizeof(*job));
    job->jobs = params->jobs;
    snprintf(job->id, sizeof(job->id), "%s", params->id);
    job->spec = *params->spec;
    memset(params->spec, 0, sizeof(*params->spec));
    if (job->spec.name[0] == '\0') {
        snprintf(job->spec.name, sizeof(job->spec.name), "%s", job->id);
    }
    job->owner_uid = params->who->uid;
    job->owner_gid = params->who->gid;
    snprintf(job->owner, sizeof(job->owner), "%s", params->owner);
    job->created_unix = shd_job_now();
    job->plan = *params->plan;
    job->first_rank = params->first_rank;
    job->spec_message = shd_spec_to_proto(&job->spec);

    const shd_jobs_options *options = shd_jobs_get_options(job->jobs);
    const uint32_t world = job->spec.strategy.world;
    job->history = shd_history_create(options->limits.watch_history);
    job->answers = shd_answers_create(SHD_JOB_ANSWERS, SHD_JOB_ANSWER_BYTES);
    job->next_seq = 1;
    job->own.job = job;
    job->own.finish = own_finish;
    job->turn = (shd_sched_entity){
        .first = job->first_rank, .n = world, .weight = job->spec.priority, .owner = job};

    job->tokenizer = params->files->tokenizer;
    params->files->tokenizer = NULL;
    job->model_files = shd_model_files_ref(params->model);
    shd_import *import = params->model != NULL ? params->model->import : NULL;
    const shd_param_source from = {shd_import_load, import};
    int rc = shd_trainer_create(&job->spec, &job->plan, options->ranks + job->first_rank, NULL,
                                NULL, import != NULL ? &from : NULL, &job->trainer, err);
    rc = rc == SHD_OK ? shd_job_prepare(job, params->files, err) : rc;
    shd_job_data_fini(params->files);
    if (rc < 0) {
        shd_job_free(job);
        return rc;
    }
    shd_job_set_state(job, STATE(QUEUED), SHD_OK, "");
    *out = job;
    return SHD_OK;
}

void shd_job_free(shd_job *job)
{
    if (job == NULL) {
        return;
    }
    assert(job->running == NULL);
    shd_error gone;
    shd_fail(&gone, SHD_ECANCELLED, "job %s was deleted", job->id);
    shd_job_fail_waiting(job, &gone);
    shd_job_fail_waits(job, &gone);
    while (job->observers != NULL) {
        shd_job_observer *observer = job->observers;
        shd_job_unobserve(job, observer);
        observer->removed(observer);
    }
    if (job->move != NULL) {
        job->move->removed(job->move);
    }
    while (job->tracers != NULL) {
        shd_job_untrace(job->tracers); /* they have what they asked for, and still send it */
    }
    shd_job_prepare_end(job);
    shd_trainer_free(job->trainer);
    shd_tokenizer_free(job->tokenizer);
    shd_model_files_unref(job->model_files);
    shd_work_fini(&job->own.work);
    shd_history_free(job->history);
    shd_answers_free(job->answers);
    if (job->spec_message != NULL) {
        shard__v1__job_spec__free_unpacked(job->spec_message, NULL);
    }
    shd_spec_fini(&job->spec);
    free(job->last_usage);
    free(job->last_total_peak);
    free(job);
}

/* Gives the ranks' memory back and keeps the figures to be shown. */
static void free_memory(shd_job *job)
{
    if (job->trainer == NULL || job->running != NULL) {
        return;
    }
    const uint32_t world = job->spec.strategy.world;
    job->last_usage = shd_calloc(world, sizeof(*job->last_usage));
    job->last_total_peak = shd_calloc(world, sizeof(*job->last_total_peak));
    for (uint32_t r = 0; r < world; r++) {
        uint64_t reserved;
        shd_trainer_usage(job->trainer, r, job->last_usage[r], &job->last_total_peak[r], &reserved);
        for (int tag = 0; tag < SHD_TAG_COUNT; tag++) {
            job->last_usage[r][tag].now = 0;
        }
    }
    shd_trainer_comm(job->trainer, 0, job->last_comm);
    shd_trainer_free(job->trainer);
    job->trainer = NULL;
    shd_jobs_release(job->jobs, job);
}

int shd_job_loading(const shd_job *job, uint64_t *done, uint64_t *total)
{
    const shd_model_files *files = job->model_files;
    if (files == NULL || files->import == NULL || job->initialised || shd_job_ended(job)) {
        return 0;
    }
    *done = shd_import_done(files->import);
    *total = files->total;
    return 1;
}

/* ---- observers and waits ---- */

void shd_job_observe(shd_job *job, shd_job_observer *observer)
{
    observer->next = job->observers;
    observer->link = &job->observers;
    if (observer->next != NULL) {
        observer->next->link = &observer->next;
    }
    job->observers = observer;
    job->n_observers++;
}

void shd_job_unobserve(shd_job *job, shd_job_observer *observer)
{
    *observer->link = observer->next;
    if (observer->next != NULL) {
        observer->next->link = observer->link;
    }
    job->n_observers--;
}

void shd_job_trace(shd_job *job, shd_job_tracer *tracer)
{
    tracer->armed = 0;
    tracer->next = job->tracers;
    tracer->link = &job->tracers;
    if (tracer->next != NULL) {
        tracer->next->link = &tracer->next;
    }
    job->tracers = tracer;
}

void shd_job_untrace(shd_job_tracer *tracer)
{
    if (tracer->link == NULL) {
        return; /* the job has gone before */
    }
    *tracer->link = tracer->next;
    if (tracer->next != NULL) {
        tracer->next->link = tracer->link;
    }
    tracer->link = NULL;
}

static void wait_link(shd_job_wait **list, shd_job_wait *wait)
{
    while (*list != NULL) {
        list = &(*list)->next;
    }
    wait->next = NULL;
    wait->link = list;
    *list = wait;
}

static void wait_unlink(shd_job_wait *wait)
{
    *wait->link = wait->next;
    if (wait->next != NULL) {
        wait->next->link = wait->link;
    }
}

/* Takes the first wait out of the list that deletes or does not; NULL: none. */
static shd_job_wait *wait_take(shd_job_wait **list, int deletes)
{
    for (shd_job_wait *wait = *list; wait != NULL; wait = wait->next) {
        if (wait->deletes == deletes) {
            wait_unlink(wait);
            return wait;
        }
    }
    return NULL;
}

int shd_job_settle(shd_job *job)
{
    if (job->state == STATE(FAILED) || job->state == STATE(CANCELLED)) {
        free_memory(job);
    }
    const int must_stop = job->deleting || (shd_job_ended(job) && job->state != STATE(DONE));
    if (job->pause_wanted || (must_stop && job->running != NULL)) {
        return 1;
    }
    for (shd_job_wait *w; (w = wait_take(&job->waits, 0)) != NULL;) {
        w->fn(w, job, NULL);
    }
    if (!job->deleting) {
        return 1;
    }
    shd_job_wait *rest = job->waits;
    if (rest != NULL) {
        rest->link = &rest;
        job->waits = NULL;
    }
    shd_jobs_remove(job->jobs, job);
    for (shd_job_wait *w; (w = wait_take(&rest, 1)) != NULL;) {
        w->fn(w, NULL, NULL);
    }
    return 0;
}

void shd_job_fail_waits(shd_job *job, const shd_error *why)
{
    while (job->waits != NULL) {
        shd_job_wait *wait = job->waits;
        wait_unlink(wait);
        wait->fn(wait, NULL, why);
    }
}

void shd_job_await(shd_job *job, shd_job_wait *wait)
{
    wait_link(&job->waits, wait);
    shd_job_settle(job);
}

/* ---- life ---- */

static int ended_error(const shd_job *job, const char *verb, shd_error *err)
{
    return shd_fail(err, SHD_ESTATE, "job %s cannot be %s: it is %s%s%s", job->id, verb,
                    shd_job_state_name(job->state), job->reason[0] != '\0' ? ": " : "",
                    job->reason);
}

int shd_job_is_training(const shd_job *job, const shd_item *item)
{
    return item == &job->own || item->work.kind == SHD_WORK_FORWARD_BACKWARD ||
           item->work.kind == SHD_WORK_OPTIM_STEP || item->work.kind == SHD_WORK_TRAIN_STEP;
}

int shd_job_pause(shd_job *job, shd_error *err)
{
    if (shd_job_ended(job)) {
        return ended_error(job, "paused", err);
    }
    if (job->state == STATE(PAUSED)) {
        return SHD_OK;
    }
    job->pause_wanted = 1;
    if (job->initialised && (job->running == NULL || !shd_job_is_training(job, job->running))) {
        job->pause_wanted = 0;
        shd_job_set_state(job, STATE(PAUSED), SHD_OK, "");
    }
    return SHD_OK;
}

int shd_job_resume(shd_job *job, shd_error *err)
{
    if (shd_job_ended(job)) {
        return ended_error(job, "resumed", err);
    }
    if (job->pause_wanted) {
        job->pause_wanted = 0;
        shd_job_settle(job);
    } else if (job->state == STATE(PAUSED)) {
        shd_job_set_state(job, STATE(RUNNING), SHD_OK, "");
        shd_jobs_kick(job->jobs);
    }
    return SHD_OK;
}

void shd_job_end(shd_job *job, Shard__V1__JobState state, int code, const char *reason)
{
    job->pause_wanted = 0;
    job->eval_due = 0;
    shd_job_prepare_end(job);
    if (job->running != NULL) {
        shd_trainer_abort(job->trainer);
    }
    shd_job_set_state(job, state, code, reason);
    shd_error why;
    shd_fail(&why, code, "job %s %s%s%s", job->id,
             state == STATE(FAILED) ? "failed" : "was cancelled", reason[0] != '\0' ? ": " : "",
             reason);
    shd_job_fail_waiting(job, &why);
}

int shd_job_cancel(shd_job *job, const char *reason, shd_error *err)
{
    if (job->state == STATE(CANCELLED)) {
        return SHD_OK;
    }
    if (shd_job_ended(job)) {
        return ended_error(job, "cancelled", err);
    }
    shd_job_end(job, STATE(CANCELLED), SHD_ECANCELLED, reason);
    if (shd_job_settle(job)) {
        shd_jobs_kick(job->jobs);
    }
    return SHD_OK;
}

void shd_job_hurry(shd_job *job, const char *reason)
{
    if (!shd_job_ended(job)) {
        shd_job_cancel(job, reason, NULL);
    } else if (job->running != NULL) {
        shd_trainer_abort(job->trainer);
    }
}

int shd_job_delete(shd_job *job, shd_error *err)
{
    if (!shd_job_ended(job)) {
        return shd_fail(err, SHD_ESTATE, "job %s is %s; cancel it first", job->id,
                        shd_job_state_name(job->state));
    }
    if (!job->deleting) {
        job->deleting = 1;
        shd_error gone;
        shd_fail(&gone, SHD_ECANCELLED, "job %s was deleted", job->id);
        shd_job_fail_waiting(job, &gone);
        if (job->running != NULL) {
            shd_trainer_abort(job->trainer);
        }
    }
    return SHD_OK;
}

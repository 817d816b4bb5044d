#include "daemon/service/job.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"

#define STATE(name) SHARD__V1__JOB_STATE__JOB_STATE_##name

static void own_finish(shd_item *item, const shd_error *failed)
{
    (void)item; /* what its results mean for the job was settled before */
    (void)failed;
}

static double unix_now(void)
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

static void notify(shd_job *job)
{
    for (shd_job_observer *o = job->observers, *next; o != NULL; o = next) {
        next = o->next;
        o->changed(o);
    }
}

static void set_state(shd_job *job, Shard__V1__JobState state, int code, const char *reason)
{
    job->state = state;
    job->reason_code = code;
    snprintf(job->reason, sizeof(job->reason), "%s", reason);
    shd_event event = {.step = job->step, .kind = SHD_EVENT_STATE, .state = (uint8_t)state};
    event.change.unix_time = unix_now();
    event.change.reason = reason[0] != '\0' ? job->reason : NULL;
    shd_history_append(job->history, &event);
    shd_log(state == STATE(FAILED) ? SHD_LOG_WARNING : SHD_LOG_INFO,
            "job %s (%s, %s): %s at step %llu%s%s", job->id, job->spec.name, job->owner,
            shd_job_state_name(state), (unsigned long long)job->step,
            reason[0] != '\0' ? ": " : "", reason);
    notify(job);
}

/* ---- queues ---- */

uint64_t shd_item_bytes(const shd_item *item)
{
    const shd_batch *batch = &item->work.batch;
    return (uint64_t)batch->sequences * batch->length * 2 * sizeof(int32_t);
}

static void queue_push(shd_item_queue *queue, shd_item *item)
{
    item->next = NULL;
    if (queue->tail != NULL) {
        queue->tail->next = item;
    } else {
        queue->head = item;
    }
    queue->tail = item;
    queue->n++;
    queue->bytes += shd_item_bytes(item);
}

static shd_item *queue_pop(shd_item_queue *queue)
{
    shd_item *item = queue->head;
    if (item != NULL) {
        queue->head = item->next;
        queue->tail = queue->head != NULL ? queue->tail : NULL;
        queue->n--;
        queue->bytes -= shd_item_bytes(item);
    }
    return item;
}

static int queue_remove(shd_item_queue *queue, const shd_item *item)
{
    shd_item *before = NULL;
    for (shd_item *i = queue->head; i != NULL; before = i, i = i->next) {
        if (i == item) {
            *(before != NULL ? &before->next : &queue->head) = i->next;
            queue->tail = queue->tail == i ? before : queue->tail;
            queue->n--;
            queue->bytes -= shd_item_bytes(item);
            return 1;
        }
    }
    return 0;
}

static void queue_fail(shd_item_queue *queue, const shd_error *why)
{
    /* What a finish function queues again must not be failed here once more. */
    shd_item_queue old = *queue;
    memset(queue, 0, sizeof(*queue));
    for (shd_item *item = queue_pop(&old); item != NULL; item = queue_pop(&old)) {
        item->finish(item, why);
    }
}

void shd_job_fail_waiting(shd_job *job, const shd_error *why)
{
    queue_fail(&job->training, why);
    queue_fail(&job->interactive, why);
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
    job->created_unix = unix_now();
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

    int rc = shd_trainer_create(&job->spec, &job->plan, options->ranks + job->first_rank,
                                params->data, params->eval, &job->trainer, err);
    if (rc < 0) {
        shd_job_free(job);
        return rc;
    }
    set_state(job, STATE(QUEUED), SHD_OK, "");
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
    shd_trainer_free(job->trainer);
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

/* Brings to an end what had to wait for the running item. 0: the job is gone. */
static int settle(shd_job *job)
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
    settle(job);
}

/* ---- life ---- */

static int ended_error(const shd_job *job, const char *verb, shd_error *err)
{
    return shd_fail(err, SHD_ESTATE, "job %s cannot be %s: it is %s%s%s", job->id, verb,
                    shd_job_state_name(job->state), job->reason[0] != '\0' ? ": " : "",
                    job->reason);
}

static int is_training(const shd_job *job, const shd_item *item)
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
    if (job->initialised && (job->running == NULL || !is_training(job, job->running))) {
        job->pause_wanted = 0;
        set_state(job, STATE(PAUSED), SHD_OK, "");
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
        settle(job);
    } else if (job->state == STATE(PAUSED)) {
        set_state(job, STATE(RUNNING), SHD_OK, "");
        shd_jobs_kick(job->jobs);
    }
    return SHD_OK;
}

/* Ends a job whose memory goes, as FAILED or CANCELLED. The caller settles. */
static void end(shd_job *job, Shard__V1__JobState state, int code, const char *reason)
{
    job->pause_wanted = 0;
    job->eval_due = 0;
    if (job->running != NULL) {
        shd_trainer_abort(job->trainer);
    }
    set_state(job, state, code, reason);
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
    end(job, STATE(CANCELLED), SHD_ECANCELLED, reason);
    if (settle(job)) {
        shd_jobs_kick(job->jobs);
    }
    return SHD_OK;
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

/* ---- work comes ---- */

static int check_usable(const shd_job *job, shd_error *err)
{
    if (job->deleting || job->trainer == NULL || job->state == STATE(FAILED) ||
        job->state == STATE(CANCELLED)) {
        return shd_fail(err, SHD_ESTATE, "job %s is %s%s%s; its weights are gone", job->id,
                        job->deleting ? "being deleted" : shd_job_state_name(job->state),
                        job->reason[0] != '\0' ? ": " : "", job->reason);
    }
    if (shd_jobs_stopping(job->jobs)) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    return SHD_OK;
}

int shd_job_push_interactive(shd_job *job, shd_item *item, int goes_on, shd_error *err)
{
    SHD_TRY(check_usable(job, err));
    const uint32_t most = shd_jobs_get_options(job->jobs)->limits.max_queue;
    if (!goes_on && job->interactive.n >= most) {
        return shd_fail(err, SHD_EFULL,
                        "%u calls wait for job %s already (max_queue); try again later", most,
                        job->id);
    }
    if (!goes_on) {
        SHD_TRY(shd_jobs_check_waiting(job->jobs, job, shd_item_bytes(item), err));
    }
    item->job = job;
    queue_push(&job->interactive, item);
    shd_jobs_kick(job->jobs);
    return SHD_OK;
}

void shd_job_push_training(shd_job *job, shd_item *item)
{
    item->job = job;
    queue_push(&job->training, item);
    shd_jobs_kick(job->jobs);
}

int shd_job_withdraw(shd_job *job, shd_item *item)
{
    return queue_remove(&job->interactive, item);
}

static void project(const shd_item *item, uint64_t *steps, uint32_t *accumulated)
{
    switch (item->work.kind) {
    case SHD_WORK_FORWARD_BACKWARD:
        (*accumulated)++;
        break;
    case SHD_WORK_OPTIM_STEP:
    case SHD_WORK_TRAIN_STEP:
        (*steps)++;
        *accumulated = 0;
        break;
    default:
        break;
    }
}

void shd_job_projected(const shd_job *job, uint64_t *steps, uint32_t *accumulated)
{
    *steps = job->step;
    *accumulated = job->accumulated;
    if (job->running != NULL) {
        project(job->running, steps, accumulated);
    }
    for (const shd_item *item = job->training.head; item != NULL; item = item->next) {
        project(item, steps, accumulated);
    }
}

/* ---- work goes ---- */

/* Is there a training item to run now? */
static int training_waits(const shd_job *job)
{
    if (job->state == STATE(QUEUED)) {
        return !job->initialised;
    }
    if (job->state != STATE(RUNNING) || job->pause_wanted) {
        return 0;
    }
    return job->eval_due || !shd_job_client_driven(job) || job->training.n > 0;
}

static int interactive_waits(const shd_job *job)
{
    return job->initialised && !job->deleting && job->trainer != NULL && job->interactive.n > 0;
}

int shd_job_has_work(const shd_job *job)
{
    return training_waits(job) || interactive_waits(job);
}

static shd_item *own_item(shd_job *job, shd_work_kind kind)
{
    shd_work_fini(&job->own.work);
    shd_work_init(&job->own.work, kind);
    return &job->own;
}

static shd_item *next_training(shd_job *job)
{
    if (!job->initialised) {
        return own_item(job, SHD_WORK_INIT);
    }
    if (job->eval_due) {
        return own_item(job, SHD_WORK_EVAL);
    }
    return shd_job_client_driven(job) ? queue_pop(&job->training)
                                      : own_item(job, SHD_WORK_DATA_STEP);
}

int shd_job_start(shd_job *job)
{
    assert(job->running == NULL);
    for (;;) {
        const int training = training_waits(job), interactive = interactive_waits(job);
        if (!training && !interactive) {
            return 0;
        }
        const int take_interactive = interactive && (!training || job->interactive_turn);
        shd_item *item = take_interactive ? queue_pop(&job->interactive) : next_training(job);
        job->interactive_turn = !take_interactive;
        if (item->work.kind == SHD_WORK_OPTIM_STEP && job->accumulated == 0) {
            /* The ForwardBackward calls before it were accepted, but then failed. */
            shd_error none;
            shd_fail(&none, SHD_ESTATE, "no gradients are accumulated; call ForwardBackward first");
            item->finish(item, &none);
            continue;
        }
        shd_comm_count count[SHD_COMM_KIND_COUNT];
        shd_trainer_comm(job->trainer, 0, count);
        for (int kind = 0; kind < SHD_COMM_KIND_COUNT; kind++) {
            job->comm_before[kind] = count[kind].bytes;
        }
        job->running = item;
        item->work.done = shd_jobs_work_done;
        item->work.done_arg = item;
        shd_trainer_submit(job->trainer, &item->work);
        return 1;
    }
}

/* ---- results ---- */

static void count_comm(shd_job *job)
{
    shd_comm_count count[SHD_COMM_KIND_COUNT];
    shd_trainer_comm(job->trainer, 0, count);
    for (int kind = 0; kind < SHD_COMM_KIND_COUNT; kind++) {
        job->comm_sum[kind] += count[kind].bytes - job->comm_before[kind];
    }
}

static void finish_training(shd_job *job)
{
    job->eval_due = 0;
    set_state(job, STATE(DONE), SHD_OK, "");
}

/* An optimizer step: its result is the sum of what was accumulated since the one before. */
static void on_step(shd_job *job, const shd_work *work)
{
    const int own_tokens = work->kind != SHD_WORK_OPTIM_STEP;
    if (own_tokens && work->valid_tokens > 0) {
        job->loss_sum += work->loss * (double)work->valid_tokens;
        job->tokens_sum += work->valid_tokens;
    }
    job->ms_sum += work->ms;
    job->step = work->step;
    job->samples = work->samples;
    shd_event event = {.step = work->step, .kind = SHD_EVENT_STEP, .skipped = work->skipped != 0};
    event.result.loss = job->tokens_sum > 0 ? job->loss_sum / (double)job->tokens_sum : 0.0;
    if (job->accumulated == 0) {
        event.result.loss = work->loss; /* to the bit as the ranks have it */
    }
    event.result.grad_norm = work->grad_norm;
    event.result.lr = work->lr_used;
    event.result.tokens = job->tokens_sum;
    event.result.step_ms = job->ms_sum;
    event.result.tokens_per_s =
        job->ms_sum > 0.0 ? (double)job->tokens_sum * 1000.0 / job->ms_sum : 0.0;
    event.result.samples = work->samples;
    job->last = event;
    job->has_last = 1;
    shd_history_append(job->history, &event);

    memcpy(job->comm_last_step, job->comm_sum, sizeof(job->comm_last_step));
    memset(job->comm_sum, 0, sizeof(job->comm_sum));
    job->accumulated = 0;
    job->loss_sum = job->ms_sum = 0.0;
    job->tokens_sum = 0;
    if (work->skipped) {
        job->skipped++;
        job->skipped_in_a_row++;
        shd_log(SHD_LOG_WARNING, "job %s (%s): step %llu skipped: the gradient is not finite",
                job->id, job->spec.name, (unsigned long long)work->step);
    } else {
        job->skipped_in_a_row = 0;
    }
    notify(job);
    if (job->skipped_in_a_row >= SHD_JOB_MAX_SKIPPED) {
        char reason[SHD_ERROR_MESSAGE_MAX];
        snprintf(reason, sizeof(reason),
                 "the gradient was not finite in %u steps in a row; lower the learning rate or "
                 "look at the data",
                 SHD_JOB_MAX_SKIPPED);
        end(job, STATE(FAILED), SHD_ENONFINITE, reason);
        return;
    }
    const int last = job->spec.steps != 0 && job->step >= job->spec.steps;
    const uint64_t every = job->spec.eval_every;
    const int evaluated = job->has_eval && job->last_eval.step == job->step;
    job->eval_due = every != 0 && (last || job->step % every == 0) && !evaluated;
    if (last && !job->eval_due) {
        finish_training(job);
    }
}

static void on_eval(shd_job *job, const shd_work *work)
{
    shd_event event = {.step = job->step, .kind = SHD_EVENT_EVAL};
    event.eval.loss = work->loss;
    event.eval.tokens = work->valid_tokens;
    event.eval.ms = work->ms;
    job->last_eval = event;
    job->has_eval = 1;
    job->eval_due = 0;
    shd_history_append(job->history, &event);
    notify(job);
    if (job->spec.steps != 0 && job->step >= job->spec.steps) {
        finish_training(job);
    }
}

static void account(shd_job *job, const shd_work *work)
{
    switch (work->kind) {
    case SHD_WORK_INIT:
        job->initialised = 1;
        job->step = work->step;
        job->samples = work->samples;
        set_state(job, job->pause_wanted ? STATE(PAUSED) : STATE(RUNNING), SHD_OK, "");
        job->pause_wanted = 0;
        break;
    case SHD_WORK_FORWARD_BACKWARD:
        count_comm(job);
        job->accumulated++;
        job->loss_sum += work->valid_tokens > 0 ? work->loss * (double)work->valid_tokens : 0.0;
        job->tokens_sum += work->valid_tokens;
        job->ms_sum += work->ms;
        job->samples = work->samples;
        break;
    case SHD_WORK_DATA_STEP:
    case SHD_WORK_OPTIM_STEP:
    case SHD_WORK_TRAIN_STEP:
        count_comm(job);
        on_step(job, work);
        break;
    case SHD_WORK_EVAL:
        on_eval(job, work);
        break;
    case SHD_WORK_FORWARD:
    case SHD_WORK_NEXT_LOGITS:
        break;
    }
}

int shd_job_finished(shd_job *job, shd_item *item)
{
    assert(job->running == item);
    job->running = NULL;
    shd_error why = item->work.err;
    int failed = item->work.rc < 0;
    if (job->deleting || (shd_job_ended(job) && job->state != STATE(DONE))) {
        shd_fail(&why, job->deleting ? SHD_ECANCELLED : job->reason_code, "job %s %s%s%s", job->id,
                 job->deleting                  ? "was deleted"
                 : job->state == STATE(FAILED) ? "failed"
                                                : "was cancelled",
                 job->reason[0] != '\0' ? ": " : "", job->reason);
        failed = 1;
    } else if (failed && (item->work.rc != SHD_EINVAL || item == &job->own)) {
        why.code = item->work.rc;
        char reason[SHD_ERROR_MESSAGE_MAX];
        snprintf(reason, sizeof(reason), "%s", why.message);
        end(job, STATE(FAILED), why.code, reason);
    } else if (!failed) {
        account(job, &item->work);
    } else {
        why.code = item->work.rc;
    }
    item->finish(item, failed ? &why : NULL);
    if (job->pause_wanted && job->state == STATE(RUNNING)) {
        job->pause_wanted = 0;
        set_state(job, STATE(PAUSED), SHD_OK, "");
    }
    if (shd_job_ended(job)) {
        job->pause_wanted = 0;
    }
    return settle(job);
}

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/service/job_internal.h"
#include "daemon/service/jobs.h"

/* Does the memory go, once the running item has come back? */
static int ending(const shd_job *job)
{
    return job->deleting || job->state == STATE(FAILED) || job->state == STATE(CANCELLED);
}

/* ---- work comes ---- */

static int check_usable(const shd_job *job, shd_error *err)
{
    if (ending(job) || job->trainer == NULL) {
        return shd_fail(err, SHD_ESTATE, "job %s is %s%s%s; its weights are gone", job->id,
                        job->deleting ? "being deleted" : shd_job_state_name(job->state),
                        job->reason[0] != '\0' ? ": " : "", job->reason);
    }
    if (shd_jobs_stopping(job->jobs)) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    return SHD_OK;
}

int shd_job_check_interactive(const shd_job *job, uint64_t bytes, shd_error *err)
{
    SHD_TRY(check_usable(job, err));
    const uint32_t most = shd_jobs_get_options(job->jobs)->limits.max_queue;
    if (job->interactive.n + job->gated + job->evaluations.n >= most) {
        return shd_fail(err, SHD_EFULL,
                        "%u calls wait for job %s already (max_queue); try again later", most,
                        job->id);
    }
    return shd_jobs_check_waiting(job->jobs, job, bytes, err);
}

int shd_job_push_interactive(shd_job *job, shd_item *item, int goes_on, shd_error *err)
{
    SHD_TRY(goes_on ? check_usable(job, err)
                    : shd_job_check_interactive(job, shd_item_bytes(item), err));
    item->job = job;
    shd_item_queue_push(&job->interactive, item);
    shd_jobs_kick(job->jobs);
    return SHD_OK;
}

/* Lets the next evaluation in. In a job that has ended they are being failed. */
static void begin_evaluation(shd_job *job)
{
    if (job->evaluation == NULL && job->evaluations.n > 0 && check_usable(job, NULL) == SHD_OK) {
        job->evaluation = shd_item_queue_pop(&job->evaluations);
        shd_item_queue_push(&job->interactive, job->evaluation);
        shd_jobs_kick(job->jobs);
    }
}

int shd_job_push_evaluation(shd_job *job, shd_item *item, shd_error *err)
{
    SHD_TRY(shd_job_check_interactive(job, shd_item_bytes(item), err));
    item->job = job;
    shd_item_queue_push(&job->evaluations, item);
    begin_evaluation(job);
    return SHD_OK;
}

int shd_job_go_on_evaluation(shd_job *job, shd_item *item, shd_error *err)
{
    return shd_job_push_interactive(job, item, 1, err);
}

void shd_job_end_evaluation(shd_job *job, const shd_item *item)
{
    if (job->evaluation == item) {
        job->evaluation = NULL;
        job->held = 0;
        begin_evaluation(job);
        shd_jobs_kick(job->jobs); /* a step may have waited */
    }
}

void shd_job_push_training(shd_job *job, shd_item *item)
{
    item->job = job;
    shd_item_queue_push(&job->training, item);
    shd_jobs_kick(job->jobs);
}

void shd_job_park(shd_job *job, shd_item *item)
{
    shd_item_queue_push(&job->parked, item);
}

int shd_job_withdraw(shd_job *job, shd_item *item)
{
    return shd_item_queue_remove(&job->interactive, item) ||
           shd_item_queue_remove(&job->parked, item) ||
           shd_item_queue_remove(&job->evaluations, item);
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
        return !job->initialised && !shd_job_preparing(job);
    }
    if (job->state != STATE(RUNNING) || job->pause_wanted || job->held) {
        return 0;
    }
    return job->eval_due || !shd_job_client_driven(job) || job->training.n > 0;
}

static int interactive_waits(const shd_job *job)
{
    return job->initialised && !job->deleting && job->trainer != NULL && job->interactive.n > 0;
}

/* Gradients are summed over the ranks that they were computed on, and an evaluation is of one size
 * of micro-batches: a move is between two steps. */
static int move_waits(const shd_job *job)
{
    return job->move != NULL && job->move->ready && job->running == NULL && job->initialised &&
           !job->deleting && !job->held && job->trainer != NULL && job->accumulated == 0;
}

int shd_job_has_work(const shd_job *job)
{
    return job->between_turns || move_waits(job) || training_waits(job) || interactive_waits(job);
}

void shd_job_window(const shd_job *job, uint32_t *first, uint32_t *n)
{
    const int moves = job->move != NULL && (move_waits(job) || job->running == &job->move->item);
    *first = moves ? job->move->first : job->first_rank;
    *n = moves ? job->move->n : job->spec.strategy.world;
}

/* The item of the move; NULL: it failed before it began. */
static shd_item *begin_move(shd_job *job)
{
    shd_job_move *move = job->move;
    shd_error why;
    if (move->begin(move, &why) < 0) {
        move->item.finish(&move->item, &why);
        return NULL;
    }
    return &move->item;
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
    return shd_job_client_driven(job) ? shd_item_queue_pop(&job->training)
                                      : own_item(job, SHD_WORK_DATA_STEP);
}

/* The next turn of the item that is under way; 0: it was given up. A stop waits for a step, not for
 * all of a job's own evaluation or loading. In a job that is ending the communicator is aborted:
 * the turn is short, and when it comes back, whoever waits for the end is answered. */
static int go_on(shd_job *job)
{
    shd_item *item = job->running;
    const int stops =
        item == &job->own && item->work.kind != SHD_WORK_DATA_STEP && shd_jobs_stopping(job->jobs);
    job->between_turns = 0;
    if (ending(job) || (!item->withdrawn && !stops)) {
        shd_trainer_submit(job->trainer, &item->work);
        return 1;
    }
    shd_trainer_drop(job->trainer);
    job->running = NULL;
    shd_error why;
    shd_fail(&why, stops ? SHD_EUNAVAILABLE : SHD_ECANCELLED, "%s",
             stops ? "the daemon is stopping" : "the caller has gone");
    item->finish(item, &why);
    return 0;
}

static int advances(shd_work_kind kind)
{
    return kind == SHD_WORK_DATA_STEP || kind == SHD_WORK_FORWARD_BACKWARD ||
           kind == SHD_WORK_OPTIM_STEP || kind == SHD_WORK_TRAIN_STEP;
}

/* Whoever waits to see a step sees it whole: from its first item. */
static int traced(shd_job *job, shd_work_kind kind)
{
    int any = 0;
    for (shd_job_tracer *t = job->tracers; t != NULL && advances(kind); t = t->next) {
        t->armed |= job->accumulated == 0;
        any |= t->armed;
    }
    return any;
}

static void show_to_tracers(shd_job *job, const shd_work *work)
{
    for (shd_job_tracer *t = job->tracers, *next; t != NULL; t = next) {
        next = t->next;
        if (t->armed) {
            t->worked(t, work);
        }
    }
}

int shd_job_start(shd_job *job)
{
    assert(job->running == NULL || job->between_turns);
    if (job->between_turns && go_on(job)) {
        return 1;
    }
    if (shd_jobs_stopping(job->jobs)) {
        return 0; /* nothing begins any more */
    }
    for (;;) {
        const int move = move_waits(job);
        const int training = training_waits(job), interactive = interactive_waits(job);
        if (move && (job->turn.first != job->move->first || job->turn.n != job->move->n)) {
            return 0; /* it became ready just now: its ranks are not this turn's */
        }
        if (!move && !training && !interactive) {
            return 0;
        }
        const int take_interactive = !move && interactive && (!training || job->interactive_turn);
        shd_item *item = move               ? begin_move(job)
                         : take_interactive ? shd_item_queue_pop(&job->interactive)
                                            : next_training(job);
        if (item == NULL) {
            return 0; /* the job's own ranks may be others */
        }
        job->interactive_turn = !move && !take_interactive;
        job->held |= item == job->evaluation;
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
        item->work.trace = traced(job, item->work.kind);
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
    shd_job_set_state(job, STATE(DONE), SHD_OK, "");
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
    job->exposed_ms_sum += work->exposed_ms;
    job->exposed_last_step = job->ms_sum > 0 ? job->exposed_ms_sum / job->ms_sum : 0.0;
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
    event.result.loss_scale = work->loss_scale;
    event.result.unix_time = shd_job_now();
    event.result.samples = work->samples;
    job->last = event;
    job->has_last = 1;
    shd_history_append(job->history, &event);

    memcpy(job->comm_last_step, job->comm_sum, sizeof(job->comm_last_step));
    memset(job->comm_sum, 0, sizeof(job->comm_sum));
    job->accumulated = 0;
    job->loss_sum = job->ms_sum = job->exposed_ms_sum = 0.0;
    job->tokens_sum = 0;
    if (work->skipped) {
        job->skipped++;
        job->skipped_in_a_row += work->overflow ? 0 : 1; /* fp16's loss scale has a floor */
        shd_log(SHD_LOG_WARNING, "job %s (%s): step %llu skipped: the gradient is not finite",
                job->id, job->spec.name, (unsigned long long)work->step);
    } else {
        job->skipped_in_a_row = 0;
    }
    shd_job_notify(job);
    if (job->skipped_in_a_row >= SHD_JOB_MAX_SKIPPED) {
        char reason[SHD_ERROR_MESSAGE_MAX];
        snprintf(reason, sizeof(reason),
                 "the gradient was not finite in %u steps in a row; lower the learning rate or "
                 "look at the data",
                 SHD_JOB_MAX_SKIPPED);
        shd_job_end(job, STATE(FAILED), SHD_ENONFINITE, reason);
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
    event.eval.unix_time = shd_job_now();
    job->last_eval = event;
    job->has_eval = 1;
    job->eval_due = 0;
    shd_history_append(job->history, &event);
    shd_job_notify(job);
    if (job->spec.steps != 0 && job->step >= job->spec.steps) {
        finish_training(job);
    }
}

static void account(shd_job *job, const shd_work *work)
{
    if (work->trace) {
        show_to_tracers(job, work); /* before what follows may start the next item */
    }
    switch (work->kind) {
    case SHD_WORK_INIT:
        job->initialised = 1;
        if (job->model_files != NULL && job->model_files->import != NULL) {
            shd_import_close(job->model_files->import);
        }
        job->step = work->step;
        job->samples = work->samples;
        shd_job_set_state(job, job->pause_wanted ? STATE(PAUSED) : STATE(RUNNING), SHD_OK, "");
        job->pause_wanted = 0;
        break;
    case SHD_WORK_FORWARD_BACKWARD:
        count_comm(job);
        job->accumulated++;
        job->loss_sum += work->valid_tokens > 0 ? work->loss * (double)work->valid_tokens : 0.0;
        job->tokens_sum += work->valid_tokens;
        job->ms_sum += work->ms;
        job->exposed_ms_sum += work->exposed_ms;
        job->samples = work->samples;
        break;
    case SHD_WORK_DATA_STEP:
    case SHD_WORK_OPTIM_STEP:
    case SHD_WORK_TRAIN_STEP:
        count_comm(job);
        on_step(job, work);
        break;
    case SHD_WORK_EVAL:
        if (work->part == NULL) {
            on_eval(job, work);
        }
        break;
    case SHD_WORK_FORWARD:
    case SHD_WORK_NEXT_LOGITS:
    case SHD_WORK_EXPORT:
    case SHD_WORK_RESHARD:
        break;
    }
}

int shd_job_finished(shd_job *job, shd_item *item)
{
    assert(job->running == item);
    if (item->work.rc == 0 && item->work.more) {
        job->between_turns = 1;
        return 1;
    }
    job->running = NULL;
    shd_error why = item->work.err;
    int failed = item->work.rc < 0;
    if (ending(job)) {
        shd_fail(&why, job->deleting ? SHD_ECANCELLED : job->reason_code, "job %s %s%s%s", job->id,
                 job->deleting                 ? "was deleted"
                 : job->state == STATE(FAILED) ? "failed"
                                               : "was cancelled",
                 job->reason[0] != '\0' ? ": " : "", job->reason);
        failed = 1;
    } else if (failed && item->work.kind != SHD_WORK_RESHARD &&
               (item->work.rc != SHD_EINVAL || item == &job->own) &&
               item->work.rc != SHD_ECANCELLED) { /* cancelled, but not with the job: hurry */
        why.code = item->work.rc;
        char reason[SHD_ERROR_MESSAGE_MAX];
        snprintf(reason, sizeof(reason), "%s", why.message);
        shd_job_end(job, STATE(FAILED), why.code, reason);
    } else if (!failed) {
        account(job, &item->work);
    } else {
        why.code = item->work.rc;
    }
    item->finish(item, failed ? &why : NULL);
    if (job->pause_wanted && job->state == STATE(RUNNING)) {
        job->pause_wanted = 0;
        shd_job_set_state(job, STATE(PAUSED), SHD_OK, "");
    }
    if (shd_job_ended(job)) {
        job->pause_wanted = 0;
    }
    return shd_job_settle(job);
}

#include "daemon/service/rpc_evaluate.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/data/windows.h"
#include "daemon/service/job.h"
#include "daemon/service/job_data.h"
#include "daemon/service/jobs.h"
#include "daemon/service/prepare.h"
#include "daemon/service/workers.h"
#include "proto/shard.pb-c.h"

enum {
    MAX_UNDER_WAY = 32, /* evaluations of all jobs */
    MAX_OF_USER = 8,
    PROGRESS_MS = 200,
    GROWTH = 8 /* of a part against the one before, at most */
};

/* Where an evaluation is. */
typedef enum place {
    ON_THREAD = 0, /* its file is opened, or cut into windows */
    PREPARING,     /* is tokenized */
    AT_WORK        /* in the job's queues, or on the ranks */
} place;

typedef struct evaluation {
    shd_item item; /* first */
    struct evaluation *next;
    shd_call *call; /* NULL once the client is gone */
    shd_jobs *jobs;
    place place;
    shd_task task;
    uv_timer_t timer; /* of progress */
    /* The request. */
    shd_identity who;
    char job_id[9];
    char **roots; /* copies for the thread */
    uint32_t n_roots;
    char *path;
    shd_data_format format;
    int has_packing, packing; /* without has_packing: as the job trains */
    shd_windows_options cut;
    /* Of the job. */
    shd_tokenizer *tok;    /* NULL: it has none */
    uint32_t vocab, round; /* round: windows of a micro-batch on every rank */
    /* Made on the way. */
    shd_job_file file;
    shd_preparation *preparation;
    shd_source *source;
    shd_windows *windows;
    uint32_t *token_bytes; /* [vocab], or NULL */
    uint64_t n_windows, done;
    uint64_t part; /* windows of a part */
    shd_eval_part now;
    double ms;
    int rc;
    shd_error err;
} evaluation;

static evaluation *all; /* loop thread */

static evaluation *of_task(shd_task *task)
{
    return (evaluation *)((char *)task - offsetof(evaluation, task));
}

/* ---- its end ---- */

static void on_timer_closed(uv_handle_t *handle)
{
    evaluation *e = handle->data;
    shd_auth_roots_free(e->roots, e->n_roots);
    free(e->path);
    free(e->token_bytes);
    shd_work_fini(&e->item.work);
    shd_tokenizer_free(e->tok);
    shd_job_file_fini(&e->file);
    shd_windows_free(e->windows);
    shd_source_free(e->source);
    free(e);
}

static void evaluation_free(evaluation *e)
{
    evaluation **at = &all;
    while (*at != e) {
        at = &(*at)->next;
    }
    *at = e->next;
    shd_prepare_cancel(e->preparation);
    uv_close((uv_handle_t *)&e->timer, on_timer_closed);
}

static void give_up(evaluation *e, const shd_error *why)
{
    if (e->call != NULL) {
        shd_call_fail(e->call, why);
    }
    evaluation_free(e);
}

/* ---- on another thread ---- */

/* The job's way with documents is a default that token files, which have none, need not follow. */
static int open_file(evaluation *e, shd_error *err)
{
    const shd_opener opener = {&e->who, e->roots, e->n_roots};
    SHD_TRY(shd_job_file_open(&opener, e->path, e->format, &e->file, err));
    const int text = shd_job_file_is_text(&e->file);
    if (text && e->tok == NULL) {
        return shd_fail(err, SHD_EINVAL,
                        "'%s' is text, and job %s has no tokenizer: submit it with --tokenizer, or "
                        "give a token file (.bin)",
                        e->path, e->job_id);
    }
    e->packing = e->has_packing || text ? e->packing : 1;
    SHD_TRY(shd_job_file_finish(&e->file, e->path, e->tok, e->packing, err));
    e->source = e->file.source;
    e->file.source = NULL;
    return SHD_OK;
}

static int cut(evaluation *e, shd_error *err)
{
    SHD_TRY(shd_source_check(e->source, e->vocab, err));
    e->cut.packing = e->packing;
    const int rc = shd_windows_create(e->source, &e->cut, &e->windows, err);
    if (rc < 0) {
        return shd_error_prefix(err, rc, "'%s'", e->path);
    }
    e->n_windows = shd_windows_count(e->windows);
    if (e->tok != NULL) {
        e->token_bytes = shd_reallocarray(NULL, e->vocab, sizeof(*e->token_bytes));
        for (uint32_t id = 0; id < e->vocab; id++) {
            e->token_bytes[id] = shd_tokenizer_token_bytes(e->tok, (int32_t)id);
        }
    }
    return SHD_OK;
}

/* First the file; when nothing has to be tokenized, or all is, its windows. */
static void on_thread(shd_task *task)
{
    evaluation *e = of_task(task);
    e->rc = e->source == NULL ? open_file(e, &e->err) : SHD_OK;
    if (e->rc == SHD_OK && e->source != NULL) {
        e->rc = cut(e, &e->err);
    }
}

/* ---- on the ranks ---- */

static void send_progress(uv_timer_t *timer)
{
    evaluation *e = timer->data;
    if (e->call == NULL || !shd_call_writable(e->call)) {
        return; /* the next one will do */
    }
    Shard__V1__EvaluateResponse m = SHARD__V1__EVALUATE_RESPONSE__INIT;
    Shard__V1__Progress progress = SHARD__V1__PROGRESS__INIT;
    m.progress = &progress;
    progress.what = (char *)"waiting";
    progress.unit = (char *)"windows";
    if (e->preparation != NULL) {
        progress.what = (char *)"tokenizing";
        progress.unit = (char *)"";
        shd_prepare_progress(e->preparation, &progress.done, &progress.total);
    } else if (e->place == AT_WORK) {
        const int begun = e->item.job->evaluation == &e->item;
        progress.what = (char *)(begun ? "evaluating" : "waiting");
        progress.done = e->done;
        progress.total = e->n_windows;
    }
    shd_call_send(e->call, &m.base);
}

/* The sums are complete. */
static void answer(evaluation *e)
{
    const shd_work *work = &e->item.work;
    Shard__V1__EvaluateResponse m = SHARD__V1__EVALUATE_RESPONSE__INIT;
    if (work->valid_tokens == 0) {
        shd_fail(&e->err, SHD_EDATA,
                 "no token of '%s' is to be predicted: it holds prompts and first tokens alone",
                 e->path);
        give_up(e, &e->err);
        return;
    }
    shd_log(SHD_LOG_INFO, "job %s: evaluated %s at step %llu: loss %.4f on %llu tokens", e->job_id,
            e->path, (unsigned long long)work->step, work->loss,
            (unsigned long long)work->valid_tokens);
    m.step = work->step;
    m.loss = work->loss;
    m.perplexity = exp(work->loss);
    m.tokens = work->valid_tokens;
    m.windows = e->n_windows;
    m.text_bytes = work->text_bytes;
    m.bits_per_byte =
        work->text_bytes > 0 ? work->loss_sum / log(2.0) / (double)work->text_bytes : 0.0;
    m.ms = e->ms;
    shd_call_send(e->call, &m.base);
    shd_call_end(e->call);
    evaluation_free(e);
}

/* The next part goes on from the sums of the one before. */
static void set_part(evaluation *e)
{
    shd_work *work = &e->item.work;
    const shd_work before = *work;
    const uint64_t left = e->n_windows - e->done;
    shd_work_init(work, SHD_WORK_EVAL);
    work->loss_sum = before.loss_sum;
    work->valid_tokens = before.valid_tokens;
    work->text_bytes = before.text_bytes;
    e->now = (shd_eval_part){.windows = e->windows,
                             .first = e->done,
                             .n = left < e->part ? left : e->part,
                             .token_bytes = e->token_bytes};
    work->part = &e->now;
}

/* Parts of about a turn, by how long the last one took. */
static void size_part(evaluation *e)
{
    const double rounds = ceil((double)e->now.n / e->round);
    const double fit = e->item.work.ms > 0 ? SHD_TURN_MS / e->item.work.ms * rounds : rounds;
    const double most = GROWTH * rounds, next = fit < 1 ? 1 : fit > most ? most : floor(fit);
    e->part = (uint64_t)next * e->round;
}

static void on_part(shd_item *item, const shd_error *failed)
{
    evaluation *e = (evaluation *)item;
    shd_job *job = item->job;
    if (failed != NULL) {
        /* What is wrong with the file has a number of its own. */
        const int of_file = failed->code == SHD_EINVAL && item->work.err.code != 0;
        e->err = of_file ? item->work.err : *failed;
    } else if (e->call != NULL) {
        e->done += e->now.n;
        e->ms += item->work.ms;
        if (e->done < e->n_windows) {
            size_part(e);
            set_part(e);
            if (shd_job_go_on_evaluation(job, item, &e->err) == SHD_OK) {
                return;
            }
            failed = &e->err;
        }
    }
    shd_job_end_evaluation(job, item);
    if (e->call == NULL || failed != NULL) {
        give_up(e, &e->err);
    } else {
        answer(e);
    }
}

static int enter(evaluation *e, shd_error *err)
{
    shd_job *job;
    SHD_TRY(shd_jobs_find(e->jobs, &e->who, e->job_id, SHD_RIGHT_USE, &job, err));
    /* Now: the job may have been resharded since the call came. */
    e->round = job->spec.micro_batch * job->spec.strategy.world;
    e->part = e->round; /* how long a round takes is not known yet */
    shd_work_init(&e->item.work, SHD_WORK_EVAL);
    set_part(e);
    e->item.finish = on_part;
    e->place = AT_WORK;
    return shd_job_push_evaluation(job, &e->item, err);
}

/* ---- from one place to the next ---- */

static void after_thread(shd_task *task);

static void to_thread(evaluation *e)
{
    e->place = ON_THREAD;
    e->task = (shd_task){.run = on_thread, .done = after_thread, .uid = e->who.uid};
    shd_jobs_hold(e->jobs);
    shd_workers_run(shd_jobs_workers(e->jobs, SHD_WORKERS_TEXT), &e->task);
}

static void on_prepared(void *arg, shd_source *source, const shd_error *failed)
{
    evaluation *e = arg;
    e->preparation = NULL;
    if (failed != NULL) {
        give_up(e, failed);
    } else {
        e->source = source;
        to_thread(e);
    }
}

static int prepare(evaluation *e, shd_error *err)
{
    shd_preparer *preparer = shd_jobs_get_options(e->jobs)->preparer;
    if (preparer == NULL) {
        return shd_fail(err, SHD_EUNSUPPORTED,
                        "'%s' has to be tokenized, and this daemon has no token cache", e->path);
    }
    e->place = PREPARING;
    e->preparation = shd_prepare(preparer, e->who.uid, e->file.fd, e->path, e->file.format, e->tok,
                                 on_prepared, e);
    return SHD_OK;
}

static void after_thread(shd_task *task)
{
    evaluation *e = of_task(task);
    shd_jobs *jobs = e->jobs;
    if (e->rc == SHD_OK && e->call != NULL && shd_jobs_stopping(jobs)) {
        e->rc = shd_fail(&e->err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    if (e->rc == SHD_OK && e->call != NULL) {
        e->rc = e->windows != NULL ? enter(e, &e->err) : prepare(e, &e->err);
    }
    if (e->rc < 0 || e->call == NULL) {
        give_up(e, &e->err);
    }
    shd_jobs_unhold(jobs);
}

static void on_gone(void *arg)
{
    evaluation *e = arg;
    e->call = NULL;
    if (e->place == PREPARING) {
        evaluation_free(e);
    } else if (e->place == AT_WORK && shd_job_withdraw(e->item.job, &e->item)) {
        shd_job_end_evaluation(e->item.job, &e->item);
        evaluation_free(e);
    } else if (e->place == AT_WORK) {
        e->item.withdrawn = 1;
    } /* else a thread has it */
}

/* ---- the call ---- */

static int check_room(const shd_identity *who, shd_error *err)
{
    uint32_t n = 0, of_user = 0;
    for (const evaluation *e = all; e != NULL; e = e->next) {
        n++;
        of_user += e->who.uid == who->uid;
    }
    if (of_user >= MAX_OF_USER || n >= MAX_UNDER_WAY) {
        return shd_fail(err, SHD_EFULL, "%u evaluations%s are under way already; try again later",
                        of_user >= MAX_OF_USER ? of_user : n,
                        of_user >= MAX_OF_USER ? " of yours" : "");
    }
    return SHD_OK;
}

static int check(const Shard__V1__EvaluateRequest *q, const shd_job *job, shd_error *err)
{
    if (job->trainer == NULL) {
        return shd_fail(err, SHD_ESTATE, "job %s is %s%s%s; its weights are gone", job->id,
                        shd_job_state_name(job->state), job->reason[0] != '\0' ? ": " : "",
                        job->reason);
    }
    if (q->data[0] == '\0') {
        return shd_fail(err, SHD_EINVAL, "no data given; name the file to evaluate");
    }
    if (q->has_stride_case != 0 && (q->stride == 0 || q->stride > job->spec.seq_len)) {
        return shd_fail(err, SHD_EINVAL,
                        "stride %u is not in 1..%u, the sequence length of job %s: tokens would be "
                        "left out",
                        q->stride, job->spec.seq_len, job->id);
    }
    if (q->has_max_tokens_case != 0 && q->max_tokens == 0) {
        return shd_fail(err, SHD_EINVAL, "max_tokens is 0; it must be at least 1");
    }
    return SHD_OK;
}

static void copy_request(evaluation *e, const Shard__V1__EvaluateRequest *q, const shd_job *job)
{
    const shd_jobs_options *options = shd_jobs_get_options(e->jobs);
    snprintf(e->job_id, sizeof(e->job_id), "%s", job->id);
    e->n_roots = options->n_data_roots;
    e->roots = shd_auth_roots_copy(options->data_roots, e->n_roots);
    e->path = shd_strdup(q->data);
    e->has_packing = q->has_packing_case != 0;
    e->packing = e->has_packing ? q->packing : job->spec.packing;
    e->cut = (shd_windows_options){
        .seq_len = job->spec.seq_len, .whole = 1, .stride = q->stride, .limit = q->max_tokens};
    e->tok = job->tokenizer != NULL ? shd_tokenizer_ref(job->tokenizer) : NULL;
    e->vocab = (uint32_t)job->spec.model.vocab;
}

static void evaluate(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__EvaluateRequest *q = (const Shard__V1__EvaluateRequest *)request;
    const shd_identity *who = shd_call_identity(call);
    shd_jobs *jobs = service;
    shd_data_format format;
    shd_job *job;
    shd_error err;
    if (shd_jobs_stopping(jobs)) {
        shd_call_failf(call, SHD_EUNAVAILABLE, "the daemon is stopping");
        return;
    }
    if (shd_jobs_find(jobs, who, q->job, SHD_RIGHT_USE, &job, &err) < 0 ||
        check(q, job, &err) < 0 || shd_data_format_parse(q->data_format, &format, &err) < 0 ||
        check_room(who, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    evaluation *e = shd_calloc(1, sizeof(*e));
    e->call = call;
    e->jobs = jobs;
    e->who = *who;
    e->format = format;
    e->file = (shd_job_file)SHD_JOB_FILE_NONE;
    copy_request(e, q, job);
    e->next = all;
    all = e;
    uv_timer_init(shd_jobs_get_options(jobs)->loop, &e->timer);
    e->timer.data = e;
    uv_timer_start(&e->timer, send_progress, PROGRESS_MS, PROGRESS_MS);
    shd_call_callbacks(call, on_gone, NULL, e);
    to_thread(e);
}

const shd_rpc_method *shd_rpc_evaluate_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/Evaluate", &shard__v1__evaluate_request__descriptor, evaluate, 1},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

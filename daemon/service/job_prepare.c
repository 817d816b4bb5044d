/* A job whose text is still being tokenized: it is queued, and its trainer has no data yet. */
#include <stdlib.h>

#include "daemon/base/mem.h"
#include "daemon/service/job_internal.h"
#include "daemon/service/jobs.h"
#include "daemon/service/workers.h"

static shd_job_input *input_of(shd_job *job, int i)
{
    return i == 0 ? &job->data : &job->eval;
}

int shd_job_preparing(const shd_job *job)
{
    return job->data.preparation != NULL || job->eval.preparation != NULL || job->cutting != NULL;
}

int shd_job_progress(const shd_job *job, uint64_t *done, uint64_t *total)
{
    const shd_job_input *inputs[] = {&job->data, &job->eval};
    *done = *total = 0;
    for (int i = 0; i < 2; i++) {
        uint64_t d = inputs[i]->prepared, t = inputs[i]->prepared;
        if (inputs[i]->preparation != NULL) {
            shd_prepare_progress(inputs[i]->preparation, &d, &t);
        }
        *done += d;
        *total += t;
    }
    return shd_job_preparing(job);
}

/* ---- into windows: the table of documents may be long ---- */

struct shd_job_cutting {
    shd_task task; /* first */
    shd_jobs *jobs;
    shd_job *job; /* NULL: gone */
    shd_spec spec;
    shd_source *data, *eval;
    shd_train_data *cut;
    int rc;
    shd_error err;
};

static void cut(shd_task *task)
{
    shd_job_cutting *c = (shd_job_cutting *)task;
    c->rc = shd_train_data_cut(&c->spec, c->data, c->eval, &c->cut, &c->err);
}

static void on_cut(shd_task *task)
{
    shd_job_cutting *c = (shd_job_cutting *)task;
    shd_jobs *jobs = c->jobs;
    shd_job *job = c->job;
    if (job != NULL) {
        job->cutting = NULL;
    }
    if (job == NULL) {
        shd_train_data_free(c->cut);
    } else if (c->rc < 0) {
        shd_job_end(job, STATE(FAILED), c->err.code, c->err.message);
    } else {
        shd_trainer_set_data(job->trainer, c->cut);
    }
    shd_spec_fini(&c->spec);
    free(c);
    if (job != NULL) {
        shd_job_settle(job);
        shd_jobs_kick(jobs);
    }
    shd_jobs_unhold(jobs);
}

/* Everything is there: the trainer gets it, unless the daemon is stopping. */
static void hand_over(shd_job *job)
{
    if (shd_jobs_stopping(job->jobs)) {
        return;
    }
    shd_job_cutting *c = shd_calloc(1, sizeof(*c));
    c->task = (shd_task){.run = cut, .done = on_cut, .uid = job->owner_uid};
    c->jobs = job->jobs;
    c->job = job;
    shd_spec_copy(&c->spec, &job->spec);
    c->data = job->data.source;
    c->eval = job->eval.source;
    job->data.source = job->eval.source = NULL;
    job->cutting = c;
    shd_jobs_hold(job->jobs);
    shd_workers_run(shd_jobs_workers(job->jobs, SHD_WORKERS_TEXT), &c->task);
}

/* ---- into tokens ---- */

static void on_prepared(shd_job *job, shd_job_input *input, shd_source *source,
                        const shd_error *failed)
{
    shd_jobs *jobs = job->jobs;
    uint64_t done;
    shd_prepare_progress(input->preparation, &done, &input->prepared);
    input->preparation = NULL;
    input->source = source;
    if (failed != NULL) {
        shd_job_end(job, STATE(FAILED), failed->code, failed->message);
    } else if (!shd_job_preparing(job)) {
        hand_over(job);
    }
    shd_job_settle(job);
    shd_jobs_kick(jobs);
}

static void on_data(void *arg, shd_source *source, const shd_error *failed)
{
    shd_job *job = arg;
    on_prepared(job, &job->data, source, failed);
}

static void on_eval(void *arg, shd_source *source, const shd_error *failed)
{
    shd_job *job = arg;
    on_prepared(job, &job->eval, source, failed);
}

int shd_job_prepare(shd_job *job, shd_job_data *files, shd_error *err)
{
    shd_job_file *const parts[] = {&files->data, &files->eval};
    const char *const paths[] = {job->spec.data_path, job->spec.eval_path};
    shd_preparer *preparer = shd_jobs_get_options(job->jobs)->preparer;
    for (int i = 0; i < 2; i++) {
        shd_job_input *input = input_of(job, i);
        input->source = parts[i]->source;
        parts[i]->source = NULL;
        if (parts[i]->fd < 0) {
            continue;
        }
        if (preparer == NULL) {
            return shd_fail(err, SHD_EUNSUPPORTED,
                            "'%s' has to be tokenized, and this daemon has "
                            "no token cache",
                            paths[i]);
        }
        input->preparation =
            shd_prepare(preparer, job->owner_uid, parts[i]->fd, paths[i], parts[i]->format,
                        job->tokenizer, i == 0 ? on_data : on_eval, job);
    }
    if (shd_job_preparing(job) || job->data.source == NULL) {
        return SHD_OK;
    }
    shd_source *data = job->data.source, *eval = job->eval.source;
    shd_train_data *windows;
    job->data.source = job->eval.source = NULL;
    /* At once: files of tokens are one document each. */
    SHD_TRY(shd_train_data_cut(&job->spec, data, eval, &windows, err));
    shd_trainer_set_data(job->trainer, windows);
    return SHD_OK;
}

void shd_job_prepare_end(shd_job *job)
{
    for (int i = 0; i < 2; i++) {
        shd_job_input *input = input_of(job, i);
        shd_prepare_cancel(input->preparation);
        shd_source_free(input->source);
        *input = (shd_job_input){0};
    }
    if (job->cutting != NULL) {
        job->cutting->job = NULL;
        job->cutting = NULL;
    }
}

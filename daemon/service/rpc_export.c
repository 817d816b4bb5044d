#include "daemon/service/rpc_export.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/mem.h"
#include "daemon/service/job.h"
#include "daemon/service/jobs.h"
#include "daemon/service/workers.h"
#include "daemon/store/out_dir.h"
#include "daemon/train/export.h"

enum {
    MAX_OF_USER = 4, /* exports of one user at one time */
    COPY_BYTES = 1 << 20
};

typedef struct export_call {
    shd_item item;  /* first */
    shd_call *call; /* NULL once the client is gone */
    shd_jobs *jobs;
    struct export_call *next_call;
    int queued; /* the item waits for the ranks or runs there */
    shd_task task;
    /* For other threads. */
    shd_identity who;
    char job_id[9];
    char **roots;
    uint32_t n_roots;
    char *path;
    shd_model_config config;
    shd_model_files *files; /* a reference */
    uint32_t world;
    int has_dtype;
    shd_st_dtype dtype; /* has_dtype */
    uint64_t max_shard_bytes;
    shd_out_dir *dir;
    shd_export *exp;
    /* The outcome. */
    int rc;
    shd_error err;
    uint64_t bytes;
    uint32_t tensors;
    char **names;
    uint32_t n_names;
    uint64_t step;
} export_call;

static export_call *calls; /* loop thread */

static export_call *of_task(shd_task *task)
{
    return (export_call *)((char *)task - offsetof(export_call, task));
}

static void export_free(export_call *e)
{
    export_call **at = &calls;
    while (*at != e) {
        at = &(*at)->next_call;
    }
    *at = e->next_call;
    shd_jobs *jobs = e->jobs;
    shd_model_files_unref(e->files);
    for (uint32_t i = 0; i < e->n_names; i++) {
        free(e->names[i]);
    }
    shd_auth_roots_free(e->roots, e->n_roots);
    free(e->names);
    free(e->path);
    shd_work_fini(&e->item.work);
    free(e);
    shd_jobs_unhold(jobs);
}

/* ---- on other threads: everything that touches the caller's file system ---- */

/* How every parameter is written: as it was imported, unless the caller asks for another type. */
static shd_export_tensor *tensors_of(const export_call *e, uint32_t n)
{
    shd_export_tensor *tensors = shd_calloc(n, sizeof(*tensors));
    for (uint32_t i = 0; i < n; i++) {
        if (e->files->tensors != NULL) {
            tensors[i] = e->files->tensors[i];
        }
        if (e->has_dtype || e->files->tensors == NULL) {
            tensors[i].dtype = e->has_dtype ? e->dtype : SHD_ST_F32;
        }
    }
    return tensors;
}

static int make_files(export_call *e, shd_error *err)
{
    shd_model *model = NULL;
    SHD_TRY(shd_model_create(&e->config, &model, err));
    shd_export_tensor *tensors = tensors_of(e, shd_model_n_params(model));
    const int rc =
        shd_export_create(model, tensors, e->world, e->max_shard_bytes, e->dir, &e->exp, err);
    free(tensors);
    shd_model_free(model);
    return rc;
}

static int make_dir(export_call *e, shd_error *err)
{
    int parent;
    char *name;
    SHD_TRY(shd_auth_open_parent(&e->who, e->roots, e->n_roots, e->path, &parent, &name, err));
    const int rc = shd_out_dir_create(parent, e->path, name, e->who.uid, e->who.gid, &e->dir, err);
    free(name);
    return rc;
}

static void on_begin(shd_task *task)
{
    export_call *e = of_task(task);
    e->rc = make_dir(e, &e->err);
    if (e->rc == 0) {
        e->rc = make_files(e, &e->err);
    }
    if (e->rc < 0) {
        shd_out_dir_discard(e->dir);
        e->dir = NULL;
    }
}

static const char *dtype_word(shd_st_dtype dtype)
{
    return dtype == SHD_ST_F32 ? "float32" : dtype == SHD_ST_BF16 ? "bfloat16" : "float16";
}

/* The configuration as it came, but for the type of the tensors beside it; a preset's is made. */
static int write_config(export_call *e, shd_error *err)
{
    const shd_model_files *f = e->files;
    const shd_st_dtype dtype = e->has_dtype         ? e->dtype
                               : f->tensors != NULL ? f->tensors[0].dtype
                                                    : SHD_ST_F32;
    char *text;
    if (f->config_json == NULL) {
        text = shd_hf_config_write(&e->config, dtype_word(dtype));
    } else if (f->tensors != NULL && (!e->has_dtype || dtype == f->tensors[0].dtype)) {
        return shd_out_dir_write(e->dir, "config.json", f->config_json, f->config_bytes, err);
    } else {
        SHD_TRY(shd_hf_config_with_dtype(f->config_json, f->config_bytes, dtype_word(dtype), &text,
                                         err));
    }
    const int rc = shd_out_dir_write(e->dir, "config.json", text, strlen(text), err);
    free(text);
    return rc;
}

static int copy_carried(export_call *e, const shd_carried *carried, char *buffer, shd_error *err)
{
    int fd;
    SHD_TRY(shd_out_dir_file(e->dir, carried->name, carried->bytes, &fd, err));
    char *path = shd_asprintf("%s/%s", e->path, carried->name);
    int rc = 0;
    for (uint64_t at = 0; rc == 0 && at < carried->bytes;) {
        const uint64_t left = carried->bytes - at, n = left < COPY_BYTES ? left : COPY_BYTES;
        rc = shd_carried_read(carried, buffer, n, at, err);
        if (rc == 0) {
            rc = shd_safetensors_write(fd, path, buffer, n, at, err);
        }
        at += n;
    }
    free(path);
    close(fd);
    return rc;
}

static int copy_all_carried(export_call *e, shd_error *err)
{
    char *buffer = shd_malloc(COPY_BYTES);
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < e->files->n_carried; i++) {
        rc = copy_carried(e, &e->files->carried[i], buffer, err);
    }
    free(buffer);
    return rc;
}

static int complete(export_call *e, shd_error *err)
{
    SHD_TRY(write_config(e, err));
    SHD_TRY(copy_all_carried(e, err));
    e->n_names = shd_out_dir_n(e->dir);
    e->names = shd_calloc(e->n_names, sizeof(*e->names));
    for (uint32_t i = 0; i < e->n_names; i++) {
        e->names[i] = shd_strdup(shd_out_dir_name(e->dir, i));
    }
    shd_out_dir *dir = e->dir;
    e->dir = NULL;
    return shd_out_dir_finish(dir, err);
}

/* The last part, whatever came before it. */
static void on_end(shd_task *task)
{
    export_call *e = of_task(task);
    if (e->rc == 0) {
        e->rc = complete(e, &e->err);
    }
    shd_out_dir_discard(e->dir);
    e->dir = NULL;
    if (e->exp != NULL) {
        e->bytes = shd_export_bytes(e->exp);
        e->tensors = shd_export_tensors(e->exp);
        shd_export_free(e->exp); /* here: closing a file may wait for its file system too */
        e->exp = NULL;
    }
}

/* ---- on the loop ---- */

static void reply(export_call *e)
{
    Shard__V1__ExportModelResponse m = SHARD__V1__EXPORT_MODEL_RESPONSE__INIT;
    m.bytes = e->bytes;
    m.tensors = e->tensors;
    m.step = e->step;
    m.files = e->names;
    m.n_files = e->n_names;
    shd_call_reply(e->call, &m.base);
}

static void after_end(shd_task *task)
{
    export_call *e = of_task(task);
    shd_log(SHD_LOG_INFO, "job %s: export to %s%s%s", e->job_id, e->path,
            e->rc < 0 ? " failed: " : " done", e->rc < 0 ? e->err.message : "");
    if (e->call != NULL && e->rc < 0) {
        shd_call_fail(e->call, &e->err);
    } else if (e->call != NULL) {
        reply(e);
    }
    export_free(e);
}

static void run(export_call *e, void (*fn)(shd_task *task), void (*done)(shd_task *task))
{
    e->task = (shd_task){.run = fn, .done = done, .uid = e->who.uid};
    shd_workers_run(shd_jobs_workers(e->jobs, SHD_WORKERS_FILES), &e->task);
}

static void end(export_call *e)
{
    e->queued = 0;
    run(e, on_end, after_end);
}

static void on_written(shd_item *item, const shd_error *failed)
{
    export_call *e = (export_call *)item;
    if (failed != NULL) {
        e->err = *failed;
        e->rc = failed->code;
    } else {
        e->rc = shd_export_result(e->exp, &e->err);
        e->step = item->work.step;
    }
    end(e);
}

static int push(export_call *e, shd_error *err)
{
    if (e->call == NULL) {
        return shd_fail(err, SHD_ECANCELLED, "the caller has gone");
    }
    shd_job *job;
    SHD_TRY(shd_jobs_find(e->jobs, &e->who, e->job_id, SHD_RIGHT_MANAGE, &job, err));
    shd_work_init(&e->item.work, SHD_WORK_EXPORT);
    e->item.work.exp = e->exp;
    e->item.finish = on_written;
    e->queued = 1; /* it may be executed at once */
    const int rc = shd_job_push_interactive(job, &e->item, 0, err);
    e->queued = rc == SHD_OK ? e->queued : 0;
    return rc;
}

static void after_begin(shd_task *task)
{
    export_call *e = of_task(task);
    if (e->rc == 0) {
        e->rc = push(e, &e->err);
        if (e->rc == 0) {
            return;
        }
    }
    end(e);
}

static void on_gone(void *arg)
{
    export_call *e = arg;
    e->call = NULL;
    if (!e->queued) {
        return; /* a thread has it; it is looked at afterwards */
    }
    if (shd_job_withdraw(e->item.job, &e->item)) {
        e->rc = shd_fail(&e->err, SHD_ECANCELLED, "the caller has gone");
        end(e);
    } else {
        e->item.withdrawn = 1;
    }
}

static int parse_dtype(const char *word, export_call *e, shd_error *err)
{
    static const char *const words[] = {"fp32", "bf16", "fp16"};
    static const shd_st_dtype dtypes[] = {SHD_ST_F32, SHD_ST_BF16, SHD_ST_F16};
    for (int i = 0; i < 3; i++) {
        if (strcmp(word, words[i]) == 0) {
            e->has_dtype = 1;
            e->dtype = dtypes[i];
            return SHD_OK;
        }
    }
    return word[0] == '\0' ? SHD_OK
                           : shd_fail(err, SHD_EINVAL,
                                      "dtype '%s' is not known; choose fp32, bf16 or fp16", word);
}

static void copy_roots(export_call *e)
{
    const shd_jobs_options *options = shd_jobs_get_options(e->jobs);
    e->n_roots = options->n_data_roots;
    e->roots = shd_auth_roots_copy(options->data_roots, e->n_roots);
}

static int check(const shd_jobs *jobs, const shd_job *job, const shd_identity *who,
                 const char *path, shd_error *err)
{
    uint32_t of_user = 0;
    for (const export_call *e = calls; e != NULL; e = e->next_call) {
        of_user += e->who.uid == who->uid;
    }
    if (shd_jobs_stopping(jobs)) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    if (job->trainer == NULL) {
        return shd_fail(err, SHD_ESTATE, "job %s is %s%s%s; its weights are gone", job->id,
                        shd_job_state_name(job->state), job->reason[0] != '\0' ? ": " : "",
                        job->reason);
    }
    if (path[0] == '\0') {
        return shd_fail(err, SHD_EINVAL, "no path given; name the directory to be made");
    }
    if (of_user >= MAX_OF_USER) {
        return shd_fail(err, SHD_EFULL, "%u exports of yours are under way already; try again",
                        of_user);
    }
    return SHD_OK;
}

static void export_model(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__ExportModelRequest *q = (const Shard__V1__ExportModelRequest *)request;
    const shd_identity *who = shd_call_identity(call);
    shd_jobs *jobs = service;
    shd_job *job;
    shd_error err;
    if (shd_jobs_find(jobs, who, q->job, SHD_RIGHT_MANAGE, &job, &err) < 0 ||
        check(jobs, job, who, q->path, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    export_call *e = shd_calloc(1, sizeof(*e));
    if (parse_dtype(q->dtype, e, &err) < 0) {
        free(e);
        shd_call_fail(call, &err);
        return;
    }
    e->next_call = calls;
    calls = e;
    shd_jobs_hold(jobs);
    e->call = call;
    e->jobs = jobs;
    e->who = *who;
    snprintf(e->job_id, sizeof(e->job_id), "%s", job->id);
    copy_roots(e);
    e->path = shd_strdup(q->path);
    e->config = job->spec.model;
    e->files = shd_model_files_ref(job->model_files);
    e->world = shd_jobs_get_options(jobs)->n_ranks; /* it may be resharded before its turn */
    e->max_shard_bytes = q->max_shard_bytes;
    shd_call_callbacks(call, on_gone, NULL, e);
    run(e, on_begin, after_begin);
}

const shd_rpc_method *shd_rpc_export_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/ExportModel", &shard__v1__export_model_request__descriptor, export_model,
         0},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

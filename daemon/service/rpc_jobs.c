#include "daemon/service/rpc_jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/service/admission.h"
#include "daemon/service/encode.h"
#include "daemon/service/job.h"
#include "daemon/service/jobs.h"
#include "daemon/service/requests.h"

static void reply_job(shd_call *call, const shd_job *job)
{
    shd_scratch scratch = SHD_SCRATCH_INIT;
    shd_call_reply(call, &shd_encode_job(job, &scratch)->base);
    shd_scratch_free(&scratch);
}

/* ---- CreateJob ---- */

/* A creation under way. Further calls with its request id wait for its outcome. */
typedef struct creation {
    shd_jobs *jobs;
    char *request_id; /* "": no idempotence */
    uid_t uid;
    shd_call **calls;
    size_t n_calls;
    struct creation *next;
} creation;

static creation *creations; /* loop thread */

static void add_call(creation *c, shd_call *call)
{
    c->calls = shd_reallocarray(c->calls, c->n_calls + 1, sizeof(*c->calls));
    c->calls[c->n_calls++] = call;
}

static creation *find_creation(const shd_jobs *jobs, uid_t uid, const char *request_id)
{
    creation *c = creations;
    while (c != NULL &&
           (c->jobs != jobs || c->uid != uid || strcmp(c->request_id, request_id) != 0)) {
        c = c->next;
    }
    return c;
}

static void creation_free(creation *c)
{
    creation **at = &creations;
    while (*at != c) {
        at = &(*at)->next;
    }
    *at = c->next;
    free(c->calls);
    free(c->request_id);
    free(c);
}

/* Turns an admission that fits into a job of the table. */
static int make_job(shd_admission *a, creation *c, shd_job **out, shd_error *err)
{
    if (shd_jobs_stopping(c->jobs)) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    /* Others may have been made while the plan was. */
    SHD_TRY(shd_jobs_check_room(c->jobs, &a->who, a->spec.name, err));
    char id[9];
    shd_jobs_new_id(c->jobs, id);
    const shd_job_params params = {
        .jobs = c->jobs,
        .id = id,
        .spec = &a->spec,
        .plan = &a->plan,
        .first_rank = a->first_rank,
        .who = &a->who,
        .owner = a->owner,
        .files = &a->files,
        .model = a->model,
    };
    SHD_TRY(shd_job_create(&params, out, err));
    shd_jobs_add(c->jobs, *out);
    if (c->request_id[0] != '\0') {
        shd_requests_put(shd_jobs_requests(c->jobs), c->uid, c->request_id, id);
    }
    return SHD_OK;
}

static void on_admission(shd_admission *a)
{
    creation *c = a->arg;
    shd_job *job = NULL;
    int rc = a->rc;
    if (rc == SHD_OK) {
        rc = make_job(a, c, &job, &a->err);
    }
    for (size_t i = 0; i < c->n_calls; i++) {
        if (rc < 0) {
            shd_call_fail(c->calls[i], &a->err);
        } else {
            reply_job(c->calls[i], job);
        }
    }
    creation_free(c);
    shd_admission_free(a);
}

/* Answers a call whose request id is known. 0: it is not known. */
static int answer_known(shd_call *call, shd_jobs *jobs, const char *request_id)
{
    const shd_identity *who = shd_call_identity(call);
    creation *c = find_creation(jobs, who->uid, request_id);
    if (c != NULL) {
        add_call(c, call);
        return 1;
    }
    const char *id = shd_requests_get(shd_jobs_requests(jobs), who->uid, request_id);
    if (id == NULL) {
        return 0;
    }
    shd_job *job;
    shd_error err;
    if (shd_jobs_find(jobs, who, id, SHD_RIGHT_SEE, &job, &err) < 0) {
        shd_call_failf(call, SHD_ENOTFOUND,
                       "request '%s' made job %s, which has been deleted; use another request id",
                       request_id, id);
    } else {
        reply_job(call, job);
    }
    return 1;
}

static void create_job(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__CreateJobRequest *q = (const Shard__V1__CreateJobRequest *)request;
    shd_jobs *jobs = service;
    const shd_identity *who = shd_call_identity(call);
    shd_error err;
    if (!shd_auth_may_connect(shd_jobs_get_options(jobs)->rules, who)) {
        shd_call_failf(call, SHD_EPERM, "uid %u may not use this daemon (allow_groups)",
                       (unsigned)who->uid);
        return;
    }
    if (strlen(q->request_id) > SHD_REQUEST_ID_MAX) {
        shd_call_failf(call, SHD_EINVAL, "request_id has %zu characters; at most %u are accepted",
                       strlen(q->request_id), SHD_REQUEST_ID_MAX);
        return;
    }
    if (q->request_id[0] != '\0' && answer_known(call, jobs, q->request_id)) {
        return;
    }
    if (q->spec == NULL) {
        shd_call_failf(call, SHD_EINVAL, "no spec given; a job needs at least a model");
        return;
    }
    if (shd_jobs_stopping(jobs)) {
        shd_call_failf(call, SHD_EUNAVAILABLE, "the daemon is stopping");
        return;
    }
    creation *c = shd_calloc(1, sizeof(*c));
    c->jobs = jobs;
    c->uid = who->uid;
    c->request_id = shd_strdup(q->request_id);
    c->next = creations;
    creations = c;
    if (shd_jobs_check_room(jobs, who, q->spec->name, &err) < 0 ||
        shd_admission_start(jobs, who, q->spec, 1, on_admission, c, &err) < 0) {
        creation_free(c);
        shd_call_fail(call, &err);
        return;
    }
    add_call(c, call);
}

/* ---- reading ---- */

static void get_job(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__JobRef *q = (const Shard__V1__JobRef *)request;
    shd_job *job;
    shd_error err;
    if (shd_jobs_find(service, shd_call_identity(call), q->job, SHD_RIGHT_SEE, &job, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    reply_job(call, job);
}

static void list_jobs(shd_call *call, const ProtobufCMessage *request, void *service)
{
    (void)request;
    const shd_identity *who = shd_call_identity(call);
    shd_scratch scratch = SHD_SCRATCH_INIT;
    Shard__V1__ListJobsResponse response = SHARD__V1__LIST_JOBS_RESPONSE__INIT;
    size_t n = 0;
    for (shd_job *job = NULL; (job = shd_jobs_next(service, who, job)) != NULL;) {
        n++;
    }
    response.jobs = shd_scratch_take(&scratch, n, sizeof(*response.jobs));
    for (shd_job *job = NULL; (job = shd_jobs_next(service, who, job)) != NULL;) {
        response.jobs[response.n_jobs++] = shd_encode_job(job, &scratch);
    }
    shd_call_reply(call, &response.base);
    shd_scratch_free(&scratch);
}

/* ---- pause, resume, cancel, delete: answered when it has happened ---- */

typedef struct pending {
    shd_job_wait wait;
    shd_call *call;
} pending;

static void on_rest(shd_job_wait *wait, shd_job *job, const shd_error *failed)
{
    pending *p = (pending *)wait;
    if (failed != NULL) {
        shd_call_fail(p->call, failed);
    } else if (job != NULL) {
        reply_job(p->call, job);
    } else {
        const Shard__V1__DeleteJobResponse response = SHARD__V1__DELETE_JOB_RESPONSE__INIT;
        shd_call_reply(p->call, &response.base);
    }
    free(p);
}

static int cancel(shd_job *job, const shd_identity *who, shd_error *err)
{
    char reason[64] = "";
    if (who->uid != job->owner_uid) {
        snprintf(reason, sizeof(reason), "by uid %u", (unsigned)who->uid);
    }
    return shd_job_cancel(job, reason, err);
}

static int pause_job(shd_job *job, const shd_identity *who, shd_error *err)
{
    (void)who;
    return shd_job_pause(job, err);
}

static int resume(shd_job *job, const shd_identity *who, shd_error *err)
{
    (void)who;
    return shd_job_resume(job, err);
}

static int delete_job(shd_job *job, const shd_identity *who, shd_error *err)
{
    (void)who;
    return shd_job_delete(job, err);
}

typedef int (*life_fn)(shd_job *job, const shd_identity *who, shd_error *err);

static void change(shd_call *call, const ProtobufCMessage *request, void *service, life_fn fn,
                   int deletes)
{
    const Shard__V1__JobRef *q = (const Shard__V1__JobRef *)request;
    const shd_identity *who = shd_call_identity(call);
    shd_job *job;
    shd_error err;
    if (shd_jobs_stopping(service)) {
        shd_call_failf(call, SHD_EUNAVAILABLE, "the daemon is stopping");
        return;
    }
    if (shd_jobs_find(service, who, q->job, SHD_RIGHT_MANAGE, &job, &err) < 0 ||
        fn(job, who, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    pending *p = shd_calloc(1, sizeof(*p));
    p->wait.fn = on_rest;
    p->wait.deletes = deletes;
    p->call = call;
    shd_job_await(job, &p->wait);
}

static void cancel_job_rpc(shd_call *call, const ProtobufCMessage *request, void *service)
{
    change(call, request, service, cancel, 0);
}

static void pause_job_rpc(shd_call *call, const ProtobufCMessage *request, void *service)
{
    change(call, request, service, pause_job, 0);
}

static void resume_job_rpc(shd_call *call, const ProtobufCMessage *request, void *service)
{
    change(call, request, service, resume, 0);
}

static void delete_job_rpc(shd_call *call, const ProtobufCMessage *request, void *service)
{
    change(call, request, service, delete_job, 1);
}

/* ---- durable state: not in this version ---- */

static void refuse_durable(shd_call *call, const char *ref, void *service, const char *what)
{
    shd_job *job;
    shd_error err;
    if (shd_jobs_find(service, shd_call_identity(call), ref, SHD_RIGHT_MANAGE, &job, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    shd_call_failf(call, SHD_EUNSUPPORTED, "%s; job %s is unchanged", what, job->id);
}

static void save_checkpoint(shd_call *call, const ProtobufCMessage *request, void *service)
{
    refuse_durable(call, ((const Shard__V1__SaveCheckpointRequest *)request)->job, service,
                   "SaveCheckpoint: this version has no checkpoints");
}

const shd_rpc_method *shd_rpc_jobs_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/CreateJob", &shard__v1__create_job_request__descriptor, create_job, 0},
        {"/shard.v1.Shard/GetJob", &shard__v1__job_ref__descriptor, get_job, 0},
        {"/shard.v1.Shard/ListJobs", &shard__v1__list_jobs_request__descriptor, list_jobs, 0},
        {"/shard.v1.Shard/CancelJob", &shard__v1__job_ref__descriptor, cancel_job_rpc, 0},
        {"/shard.v1.Shard/PauseJob", &shard__v1__job_ref__descriptor, pause_job_rpc, 0},
        {"/shard.v1.Shard/ResumeJob", &shard__v1__job_ref__descriptor, resume_job_rpc, 0},
        {"/shard.v1.Shard/DeleteJob", &shard__v1__job_ref__descriptor, delete_job_rpc, 0},
        {"/shard.v1.Shard/SaveCheckpoint", &shard__v1__save_checkpoint_request__descriptor,
         save_checkpoint, 0},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

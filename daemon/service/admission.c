#include "daemon/service/admission.h"

#include <pwd.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/service/hint.h"
#include "daemon/service/jobs.h"
#include "daemon/service/message.h"
#include "daemon/service/room.h"
#include "daemon/service/tokenizer_files.h"
#include "daemon/service/verdict.h"
#include "daemon/service/workers.h"

enum {
    MAX_OF_USER = 128,         /* what of a user may wait or run there at one time */
    MAX_SPEC_BYTES = 256 << 10 /* each holds its specification meanwhile */
};

typedef struct request {
    shd_admission admission; /* first: freed through it */
    shd_task task;
    shd_jobs *jobs;
    Shard__V1__JobSpec *message;
    int open_files;
    void (*done)(shd_admission *admission);

    /* Copies for the thread. */
    char **roots;
    uint32_t n_roots;
    char *state_dir; /* NULL: none */
    uint32_t n_ranks;
    int threads_per_rank;
    uint64_t budget;
    uint64_t *planned; /* [n_ranks] when it did not fit */
    char hint[SHD_HINT_LEN];
} request;

static request *request_of(shd_task *task)
{
    return (request *)((char *)task - offsetof(request, task));
}

/* ---- on a thread beside the loop ---- */

/* The daemon has been told to stop: there is no need to go on. */
static int is_cancelled(request *r)
{
    return __atomic_load_n(&r->task.cancel, __ATOMIC_RELAXED)
               ? shd_fail(&r->admission.err, SHD_EUNAVAILABLE, "the daemon is stopping")
               : SHD_OK;
}

static void look_up_owner(uid_t uid, char out[33])
{
    struct passwd entry, *found = NULL;
    char buffer[4096];
    if (getpwuid_r(uid, &entry, buffer, sizeof(buffer), &found) == 0 && found != NULL) {
        snprintf(out, 33, "%s", entry.pw_name);
    } else {
        snprintf(out, 33, "%u", (unsigned)uid);
    }
}

static shd_auth_dir dir_of(const request *r, const char *path)
{
    return (shd_auth_dir){
        .who = &r->admission.who, .roots = r->roots, .n_roots = r->n_roots, .path = path};
}

static int open_data(request *r)
{
    shd_admission *a = &r->admission;
    const char *model_dir = strchr(r->message->model, '/') != NULL ? r->message->model : NULL;
    const shd_opener opener = {&a->who, r->roots, r->n_roots};
    return shd_job_data_open(&opener, model_dir, &a->spec, &a->files, &a->err);
}

/* The model's directory; its configuration is all that a plan needs. */
static int open_model(request *r)
{
    shd_admission *a = &r->admission;
    if (strchr(r->message->model, '/') == NULL) {
        a->model = shd_model_files_none();
        return SHD_OK;
    }
    if (r->open_files && shd_model_files_alone(r->message->model)) {
        return shd_fail(&a->err, SHD_EINVAL,
                        "--model '%s' is a configuration alone, which can be planned and not "
                        "trained; give its directory",
                        r->message->model);
    }
    const shd_auth_dir dir = dir_of(r, r->message->model);
    const int rc = shd_model_files_open(&dir, &a->model, &a->err);
    return rc < 0 ? shd_error_prefix(&a->err, rc, "--model") : SHD_OK;
}

/* NULL: the preset's own. */
static const shd_model_config *config_of(const request *r)
{
    const shd_model_files *model = r->admission.model;
    return model->config_json != NULL ? &model->config : NULL;
}

/* The directory of weights; NULL: random ones. */
static const char *weights_of(const request *r)
{
    const char *from = r->admission.spec.init_from;
    return strcmp(from, "random") == 0       ? NULL
           : strcmp(from, "pretrained") == 0 ? r->message->model
                                             : from;
}

/* What the parameters begin with. */
static int open_weights(request *r)
{
    shd_admission *a = &r->admission;
    const char *path = weights_of(r);
    if (path == NULL) {
        return SHD_OK;
    }
    const shd_auth_dir from = dir_of(r, path);
    const int rc = shd_model_files_weights(a->model, &from, &a->spec, &a->err);
    const char *flag = path == r->message->model ? "--model" : "--init-from";
    return rc < 0 ? shd_error_prefix(&a->err, rc, flag) : SHD_OK;
}

/* What an export will carry along: the tokenizer that was asked for, else that of the model's
 * directory, or of the one that a preset's weights come from. */
static int carry(request *r)
{
    shd_admission *a = &r->admission;
    const int own = config_of(r) != NULL;
    const char *path = own ? r->message->model : weights_of(r);
    const char *flag = own ? "--model" : "--init-from", *tokenizer = r->message->tokenizer;
    int rc = SHD_OK;
    if (path != NULL) {
        const shd_auth_dir dir = dir_of(r, path);
        rc = shd_model_files_generation(a->model, &dir, a->spec.model.vocab, r->state_dir, &a->err);
        if (rc == SHD_OK && tokenizer[0] == '\0') {
            rc = shd_model_files_tokenizer(a->model, &dir, 0, r->state_dir, &a->err);
        }
    }
    if (rc == SHD_OK && tokenizer[0] == '/') {
        const shd_auth_dir at = dir_of(r, tokenizer);
        flag = "--tokenizer";
        rc = shd_model_files_tokenizer(a->model, &at, shd_tokenizer_is_file(tokenizer),
                                       r->state_dir, &a->err);
    }
    return rc < 0 ? shd_error_prefix(&a->err, rc, flag) : SHD_OK;
}

static int prepare(request *r)
{
    shd_admission *a = &r->admission;
    SHD_TRY(is_cancelled(r));
    look_up_owner(a->who.uid, a->owner);
    SHD_TRY(open_model(r));
    SHD_TRY(shd_spec_resolve(r->message, r->n_ranks, 0, config_of(r), &a->spec, &a->err));
    if (r->open_files) {
        SHD_TRY(open_weights(r));
        SHD_TRY(open_data(r));
        SHD_TRY(carry(r));
    }
    SHD_TRY(is_cancelled(r));
    return shd_plan_make(&a->spec, r->threads_per_rank, &a->plan, &a->err);
}

static void run_prepare(shd_task *task)
{
    request *r = request_of(task);
    r->admission.rc = prepare(r);
}

static shd_room room_of(const request *r, const uint64_t *planned)
{
    return (shd_room){.planned = planned, .n_ranks = r->n_ranks, .budget = r->budget};
}

/* What would fit instead. */
static int advise(request *r)
{
    shd_admission *a = &r->admission;
    const Shard__V1__Machine unstated = SHARD__V1__MACHINE__INIT;
    shd_machine machine;
    shd_advice *advice;
    uint32_t n;
    SHD_TRY(is_cancelled(r));
    SHD_TRY(shd_machine_resolve(&unstated, a->spec.strategy.world, &machine, &a->err));
    SHD_TRY(
        shd_advise(&a->spec, r->threads_per_rank, &machine, a->available, 1, &advice, &n, &a->err));
    const shd_hint_request q = {
        .message = r->message,
        .config = config_of(r),
        .spec = &a->spec,
        .max_ranks = r->n_ranks,
        .threads_per_rank = r->threads_per_rank,
        .room = room_of(r, r->planned),
        .advice = n > 0 ? advice : NULL,
        .cancel = &r->task.cancel,
    };
    shd_hint(&q, r->hint);
    free(advice);
    return is_cancelled(r);
}

static void run_advise(shd_task *task)
{
    request *r = request_of(task);
    r->admission.rc = advise(r);
}

/* ---- on the loop: the verdict ---- */

static void finish(request *r)
{
    shd_jobs *jobs = r->jobs;
    r->done(&r->admission);
    shd_jobs_unhold(jobs);
}

static void run(request *r, void (*fn)(shd_task *task), void (*done)(shd_task *task))
{
    r->task = (shd_task){.run = fn, .done = done, .uid = r->admission.who.uid};
    shd_workers_run(shd_jobs_workers(r->jobs, SHD_WORKERS_PLAN), &r->task);
}

static void after_advise(shd_task *task)
{
    request *r = request_of(task);
    shd_admission *a = &r->admission;
    if (a->rc == SHD_OK) {
        const shd_room room = room_of(r, r->planned);
        shd_verdict_refuses(&a->plan, a->spec.strategy.world, &room, a->available, r->hint,
                            a->verdict, sizeof(a->verdict));
        a->rc = shd_fail(&a->err, SHD_ENOMEM, "%s", a->verdict);
    }
    finish(r);
}

static void after_prepare(shd_task *task)
{
    request *r = request_of(task);
    shd_admission *a = &r->admission;
    if (a->rc < 0) {
        finish(r);
        return;
    }
    const uint64_t *planned = shd_jobs_planned(r->jobs);
    const shd_room room = room_of(r, planned);
    a->available = shd_room_available(&room, a->spec.strategy.world, &a->first_rank);
    a->needs = shd_plan_bytes(&a->plan);
    if (a->needs <= a->available) {
        shd_verdict_fits(&a->plan, a->spec.strategy.world, &room, a->available, a->verdict,
                         sizeof(a->verdict));
        finish(r);
        return;
    }
    if (shd_jobs_stopping(r->jobs)) {
        a->rc = shd_fail(&a->err, SHD_EUNAVAILABLE, "the daemon is stopping");
        finish(r);
        return;
    }
    r->planned = shd_reallocarray(NULL, r->n_ranks, sizeof(*r->planned));
    memcpy(r->planned, planned, r->n_ranks * sizeof(*r->planned));
    run(r, run_advise, after_advise);
}

/* ---- the request ---- */

/* "DIR/" is DIR. */
static void trim(char *path)
{
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) {
        path[n - 1] = '\0';
    }
}

int shd_admission_start(shd_jobs *jobs, const shd_identity *who, const Shard__V1__JobSpec *message,
                        int open_files, void (*done)(shd_admission *admission), void *arg,
                        shd_error *err)
{
    if (shd_workers_tasks(shd_jobs_workers(jobs, SHD_WORKERS_PLAN), who->uid) >= MAX_OF_USER) {
        return shd_fail(err, SHD_EFULL,
                        "%d jobs and plans of yours are being looked at already; try again",
                        MAX_OF_USER);
    }
    const size_t size = protobuf_c_message_get_packed_size(&message->base);
    if (size > MAX_SPEC_BYTES) {
        return shd_fail(err, SHD_EINVAL, "the specification has %zu bytes; at most %d are allowed",
                        size, MAX_SPEC_BYTES);
    }
    Shard__V1__JobSpec *copy = (Shard__V1__JobSpec *)shd_message_copy(&message->base);
    if (copy == NULL) {
        return shd_fail(err, SHD_EINVAL, "the spec holds text that is not UTF-8");
    }
    trim(copy->model);
    trim(copy->init_from);
    const shd_jobs_options *options = shd_jobs_get_options(jobs);
    request *r = shd_calloc(1, sizeof(*r));
    r->admission.who = *who;
    r->admission.arg = arg;
    r->admission.files = (shd_job_data)SHD_JOB_DATA_INIT;
    r->jobs = jobs;
    r->message = copy;
    r->open_files = open_files;
    r->done = done;
    r->n_roots = options->n_data_roots;
    r->roots = shd_auth_roots_copy(options->data_roots, r->n_roots);
    r->state_dir = options->state_dir != NULL ? shd_strdup(options->state_dir) : NULL;
    r->n_ranks = options->n_ranks;
    r->threads_per_rank = options->threads_per_rank;
    r->budget = options->limits.memory_per_rank;
    shd_jobs_hold(jobs);
    run(r, run_prepare, after_prepare);
    return SHD_OK;
}

void shd_admission_free(shd_admission *admission)
{
    if (admission == NULL) {
        return;
    }
    request *r = (request *)admission;
    shd_spec_fini(&admission->spec);
    shd_job_data_fini(&admission->files);
    shd_model_files_unref(admission->model);
    shard__v1__job_spec__free_unpacked(r->message, NULL);
    shd_auth_roots_free(r->roots, r->n_roots);
    free(r->planned);
    free(r->state_dir);
    free(r);
}

#include "daemon/service/admission.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/service/message.h"
#include "daemon/service/verdict.h"

enum {
    MAX_UNDER_WAY = 16, /* admissions at one time */
    MAX_SUGGESTIONS = 3 /* settings named in a refusal */
};

typedef struct request {
    shd_admission admission; /* first: freed through it */
    uv_work_t work;
    shd_jobs *jobs;
    Shard__V1__JobSpec *message;
    int open_files;
    void (*done)(shd_admission *admission);

    /* Copies for the pool's thread. */
    char **roots;
    uint32_t n_roots;
    char *state_dir; /* NULL: none */
    uint32_t n_ranks;
    int threads_per_rank;
    uint64_t budget;
    uint64_t *planned; /* [n_ranks] when it did not fit */
    char would_fit[240];
} request;

static uint32_t under_way; /* loop thread */

uint32_t shd_admission_place(const uint64_t *planned, uint32_t n_ranks, uint32_t world,
                             uint64_t *fullest)
{
    uint32_t best = 0;
    uint64_t best_max = UINT64_MAX, best_sum = UINT64_MAX;
    for (uint32_t first = 0; first + world <= n_ranks; first++) {
        uint64_t max = 0, sum = 0;
        for (uint32_t r = first; r < first + world; r++) {
            max = planned[r] > max ? planned[r] : max;
            sum += planned[r];
        }
        if (max < best_max || (max == best_max && sum < best_sum)) {
            best = first;
            best_max = max;
            best_sum = sum;
        }
    }
    *fullest = best_max;
    return best;
}

/* ---- on the pool's thread: files and the plan ---- */

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
    return r->open_files ? shd_job_data_open(&opener, model_dir, &a->spec, &a->files, &a->err)
                         : SHD_OK;
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

/* What the parameters begin with, and what an export will carry along. */
static int open_weights(request *r)
{
    shd_admission *a = &r->admission;
    const int own = strcmp(a->spec.init_from, "pretrained") == 0;
    const int random = strcmp(a->spec.init_from, "random") == 0;
    const shd_auth_dir from = dir_of(r, own ? r->message->model : a->spec.init_from);
    const shd_auth_dir model = dir_of(r, r->message->model);
    if (!random) {
        const int rc = shd_model_files_weights(a->model, &from, &a->spec, &a->err);
        SHD_TRY(rc < 0 ? shd_error_prefix(&a->err, rc, own ? "--model" : "--init-from") : 0);
    }
    if (config_of(r) == NULL && random) {
        return SHD_OK;
    }
    return shd_model_files_carry(a->model, config_of(r) != NULL ? &model : &from, r->state_dir,
                                 &a->err);
}

static int prepare(request *r)
{
    shd_admission *a = &r->admission;
    look_up_owner(a->who.uid, a->owner);
    SHD_TRY(open_model(r));
    SHD_TRY(shd_spec_resolve(r->message, r->n_ranks, 0, config_of(r), &a->spec, &a->err));
    if (r->open_files) {
        SHD_TRY(open_weights(r));
    }
    SHD_TRY(open_data(r));
    return shd_plan_make(&a->spec, r->threads_per_rank, &a->plan, &a->err);
}

static void on_prepare(uv_work_t *work)
{
    request *r = work->data;
    r->admission.rc = prepare(r);
}

/* ---- on the pool's thread: what would fit ---- */

typedef struct change {
    int zero3;
    uint32_t micro_batch, ranks, seq_len; /* 0: as asked for */
} change;

/* Plans the job with the change made; 1 when it fits, *needs are its bytes per rank. */
static int try_change(const request *r, const change *c, uint64_t *needs)
{
    const shd_spec *asked = &r->admission.spec;
    Shard__V1__JobSpec m = *r->message; /* pointers are borrowed */
    if (c->ranks ==
        0) { /* else the batch of the spec, or its default, which grows with the ranks */
        m.has_global_batch_case = SHARD__V1__JOB_SPEC__HAS_GLOBAL_BATCH_GLOBAL_BATCH;
        m.global_batch = asked->global_batch;
    }
    if (c->zero3) {
        m.strategy = (char *)"zero3";
        m.n_shard_degrees = 0;
        m.has_shard_group_case = SHARD__V1__JOB_SPEC__HAS_SHARD_GROUP__NOT_SET;
        m.reshard_after_forward = (char *)"";
    }
    if (c->micro_batch != 0) {
        m.has_micro_batch_case = SHARD__V1__JOB_SPEC__HAS_MICRO_BATCH_MICRO_BATCH;
        m.micro_batch = c->micro_batch;
    }
    if (c->ranks != 0) {
        m.has_ranks_case = SHARD__V1__JOB_SPEC__HAS_RANKS_RANKS;
        m.ranks = c->ranks;
        if (asked->determinism != SHD_DETERMINISM_WORLD) { /* else it stays what it is */
            m.has_reduction_width_case = SHARD__V1__JOB_SPEC__HAS_REDUCTION_WIDTH__NOT_SET;
        }
    }
    if (c->seq_len != 0) {
        m.has_seq_len_case = SHARD__V1__JOB_SPEC__HAS_SEQ_LEN_SEQ_LEN;
        m.seq_len = c->seq_len;
    }
    shd_spec spec;
    shd_plan plan;
    if (shd_spec_resolve(&m, r->n_ranks, 0, config_of(r), &spec, NULL) < 0) {
        return 0; /* e.g. the batch does not divide: not a setting to name */
    }
    int fits = 0;
    if (shd_plan_make(&spec, r->threads_per_rank, &plan, NULL) == 0) {
        uint64_t fullest;
        shd_admission_place(r->planned, r->n_ranks, spec.strategy.world, &fullest);
        *needs = shd_plan_bytes(&plan);
        fits = fullest <= r->budget && *needs <= r->budget - fullest;
    }
    shd_spec_fini(&spec);
    return fits;
}

/* Appends a change that was found to fit, as flags. */
static void name_change(request *r, const change *c, uint64_t needs)
{
    char bytes[24], text[128];
    int n = 0;
    if (c->zero3) {
        n += snprintf(text + n, sizeof(text) - (size_t)n, " --strategy zero3");
    }
    if (c->ranks != 0) {
        n += snprintf(text + n, sizeof(text) - (size_t)n, " --ranks %u", c->ranks);
    }
    if (c->micro_batch != 0) {
        n += snprintf(text + n, sizeof(text) - (size_t)n, " --micro-batch %u", c->micro_batch);
    }
    if (c->seq_len != 0) {
        n += snprintf(text + n, sizeof(text) - (size_t)n, " --seq-len %u", c->seq_len);
    }
    const size_t used = strlen(r->would_fit);
    snprintf(r->would_fit + used, sizeof(r->would_fit) - used, "%s%s (%s)", used > 0 ? "," : "",
             text, shd_verdict_bytes(needs, bytes));
}

/* Halves the micro-batch until it fits, the global batch as it was. */
static int try_micro_batches(const request *r, change *c, uint64_t *needs)
{
    for (uint32_t micro = r->admission.spec.micro_batch / 2; micro > 0; micro /= 2) {
        c->micro_batch = micro;
        if (try_change(r, c, needs)) {
            return 1;
        }
    }
    c->micro_batch = 0;
    return 0;
}

static void on_suggest(uv_work_t *work)
{
    request *r = work->data;
    const shd_spec *asked = &r->admission.spec;
    const uint32_t world = asked->strategy.world;
    const int can_shard = world > 1 && asked->strategy.p < world;
    uint64_t needs;
    int named = 0;
    if (can_shard) {
        change c = {.zero3 = 1};
        if (try_change(r, &c, &needs) || try_micro_batches(r, &c, &needs)) {
            name_change(r, &c, needs);
            named++;
        }
    }
    change smaller = {.zero3 = 0};
    if (try_micro_batches(r, &smaller, &needs)) {
        name_change(r, &smaller, needs);
        named++;
    }
    const char *strategy = r->message->strategy;
    const int names_zero3 = r->message->n_shard_degrees == 0 &&
                            (strategy[0] == '\0' || strcmp(strategy, "zero3") == 0 ||
                             strcmp(strategy, "full_shard") == 0);
    for (uint32_t ranks = world + 1; ranks <= r->n_ranks && named < MAX_SUGGESTIONS; ranks++) {
        change c = {.zero3 = !names_zero3, .ranks = ranks};
        if (try_change(r, &c, &needs)) {
            name_change(r, &c, needs);
            named++;
            break;
        }
    }
    for (uint32_t len = asked->seq_len / 2; len >= 8 && named < MAX_SUGGESTIONS; len /= 2) {
        change c = {.zero3 = 0, .seq_len = len};
        if (try_change(r, &c, &needs)) {
            name_change(r, &c, needs);
            named++;
            break;
        }
        c.zero3 = can_shard;
        c.micro_batch = asked->micro_batch > 1;
        if ((c.zero3 || c.micro_batch) && named == 0 && try_change(r, &c, &needs)) {
            name_change(r, &c, needs);
            named++;
            break;
        }
    }
}

/* ---- on the loop: the verdict ---- */

static void finish(request *r)
{
    under_way--;
    shd_jobs *jobs = r->jobs;
    r->done(&r->admission);
    shd_jobs_unhold(jobs);
}

static void refuse(request *r)
{
    shd_admission *a = &r->admission;
    char needs[24], has[24], budget[24], tags[96];
    shd_verdict_tags(&a->plan, tags, sizeof(tags));
    const char *none = "no strategy, micro-batch, rank count or sequence length makes it fit: take "
                       "a smaller model, end other jobs or raise memory_per_rank";
    a->rc = shd_fail(
        &a->err, SHD_ENOMEM,
        "does not fit: needs %llu bytes (%s) on each of %u ranks, has %llu (%s) of %s free; "
        "largest: %s; %s%s",
        (unsigned long long)a->needs, shd_verdict_bytes(a->needs, needs), a->spec.strategy.world,
        (unsigned long long)a->available, shd_verdict_bytes(a->available, has),
        shd_verdict_bytes(r->budget, budget), tags, r->would_fit[0] != '\0' ? "would fit:" : none,
        r->would_fit);
    snprintf(a->verdict, sizeof(a->verdict), "%s", a->err.message);
}

static void after_suggest(uv_work_t *work, int status)
{
    (void)status; /* nobody cancels it */
    request *r = work->data;
    refuse(r);
    finish(r);
}

static void after_prepare(uv_work_t *work, int status)
{
    (void)status;
    request *r = work->data;
    shd_admission *a = &r->admission;
    if (a->rc < 0) {
        finish(r);
        return;
    }
    const uint64_t *planned = shd_jobs_planned(r->jobs);
    uint64_t fullest;
    a->first_rank = shd_admission_place(planned, r->n_ranks, a->spec.strategy.world, &fullest);
    a->available = fullest < r->budget ? r->budget - fullest : 0;
    a->needs = shd_plan_bytes(&a->plan);
    if (a->needs <= a->available) {
        char needs[24], has[24];
        snprintf(a->verdict, sizeof(a->verdict),
                 "fits: needs %llu bytes (%s) on each of %u ranks, %s free",
                 (unsigned long long)a->needs, shd_verdict_bytes(a->needs, needs),
                 a->spec.strategy.world, shd_verdict_bytes(a->available, has));
        finish(r);
        return;
    }
    r->planned = shd_reallocarray(NULL, r->n_ranks, sizeof(*r->planned));
    memcpy(r->planned, planned, r->n_ranks * sizeof(*r->planned));
    uv_queue_work(shd_jobs_get_options(r->jobs)->loop, &r->work, on_suggest, after_suggest);
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
    if (under_way >= MAX_UNDER_WAY) {
        return shd_fail(err, SHD_EFULL, "%u plans are being made already; try again", under_way);
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
    r->work.data = r;
    under_way++;
    shd_jobs_hold(jobs);
    uv_queue_work(options->loop, &r->work, on_prepare, after_prepare);
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

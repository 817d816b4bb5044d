#include "daemon/service/planning.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/service/admission.h"
#include "daemon/service/message.h"
#include "daemon/service/model_files.h"
#include "daemon/service/verdict.h"
#include "daemon/service/workers.h"

enum { MAX_OF_USER = 4, MAX_ADVICE = 12 };

typedef struct request {
    shd_planning planning; /* first: freed through it */
    shd_task task;
    shd_jobs *jobs;
    Shard__V1__PlanRequest *message;
    void (*done)(shd_planning *planning);

    /* Copies for the thread. */
    shd_identity who;
    char **roots;
    uint32_t n_roots;
    uint32_t n_ranks;
    int threads_per_rank;
    uint64_t budget;
    uint64_t *planned; /* [n_ranks] */
} request;

/* ---- on a thread beside the loop ---- */

/* NULL in *out: the model is a preset. */
static int open_model(request *r, shd_model_files **out)
{
    const char *model = r->message->spec->model;
    *out = NULL;
    if (strchr(model, '/') == NULL) {
        return SHD_OK;
    }
    const shd_auth_dir dir = {
        .who = &r->who, .roots = r->roots, .n_roots = r->n_roots, .path = model};
    const int rc = shd_model_files_open(&dir, out, &r->planning.err);
    return rc < 0 ? shd_error_prefix(&r->planning.err, rc, "--model") : SHD_OK;
}

static int resolve(request *r, const shd_model_config *config)
{
    shd_planning *p = &r->planning;
    const Shard__V1__Machine none = SHARD__V1__MACHINE__INIT;
    const Shard__V1__Machine *machine = p->stated ? r->message->machine : &none;
    Shard__V1__JobSpec *spec = r->message->spec;
    if (!spec->has_ranks_case) {
        spec->has_ranks_case = SHARD__V1__JOB_SPEC__HAS_RANKS_RANKS;
        spec->ranks = r->n_ranks;
    }
    SHD_TRY(shd_spec_resolve(spec, p->stated ? SHD_MAX_WORLD : r->n_ranks, machine->ranks_per_node,
                             config, &p->spec, &p->err));
    return shd_machine_resolve(machine, p->spec.strategy.world, &p->machine, &p->err);
}

/* What a rank has; the place on this daemon. */
static void find_room(request *r)
{
    shd_planning *p = &r->planning;
    if (p->stated) {
        p->available = p->machine.device_memory;
        return;
    }
    uint64_t fullest;
    p->first_rank = shd_admission_place(r->planned, r->n_ranks, p->spec.strategy.world, &fullest);
    p->available = fullest < r->budget ? r->budget - fullest : 0;
}

/* ---- the verdict ---- */

/* The flags of an advice. */
static void name_advice(const shd_advice *a, char *out, size_t size)
{
    char flags[SHD_STRATEGY_FLAGS_LEN];
    snprintf(out, size, "%s --activation-checkpointing %s", shd_strategy_flags(&a->strategy, flags),
             shd_checkpointing_name(a->checkpointing));
}

/* Halves the micro-batch under what needs least until it fits; 0 when nothing does. The global
 * batch stays as it is. */
static uint32_t smaller_micro_batch(const request *r, const shd_advice *least, uint64_t *needs)
{
    const shd_planning *p = &r->planning;
    shd_spec spec = p->spec; /* borrows its strings */
    spec.strategy = least->strategy;
    spec.checkpointing = least->checkpointing;
    while (spec.micro_batch % 2 == 0) {
        shd_plan plan;
        spec.micro_batch /= 2;
        spec.accumulation *= 2;
        if (shd_plan_make(&spec, r->threads_per_rank, &plan, NULL) < 0) {
            return 0;
        }
        *needs = shd_plan_bytes(&plan);
        if (*needs <= p->available) {
            return spec.micro_batch;
        }
    }
    return 0;
}

/* What would fit, from the advice; its first entry fits, or needs least of all. */
static void would_fit(const request *r, const shd_advice *advice, char *out, size_t size)
{
    char flags[SHD_STRATEGY_FLAGS_LEN + 48], bytes[SHD_VERDICT_BYTES];
    name_advice(advice, flags, sizeof flags);
    if (advice->fits) {
        snprintf(out, size, "would fit: %s (%s)", flags, shd_verdict_bytes(advice->bytes, bytes));
        return;
    }
    uint64_t needs = 0;
    const uint32_t micro = smaller_micro_batch(r, advice, &needs);
    if (micro > 0) {
        snprintf(out, size, "would fit: %s --micro-batch %u (%s)", flags, micro,
                 shd_verdict_bytes(needs, bytes));
        return;
    }
    snprintf(out, size,
             "no strategy, checkpointing or micro-batch makes it fit (%s needs %s): take more "
             "ranks, shorter sequences or a smaller model",
             flags, shd_verdict_bytes(advice->bytes, bytes));
}

static void judge(request *r, const shd_advice *advice)
{
    shd_planning *p = &r->planning;
    const uint64_t bytes = shd_plan_bytes(&p->plan);
    const uint32_t world = p->spec.strategy.world;
    char needs[SHD_VERDICT_BYTES], has[SHD_VERDICT_BYTES], tags[96], hint[384];
    shd_verdict_bytes(bytes, needs);
    shd_verdict_bytes(p->available, has);
    if (p->stated && p->available == 0) {
        snprintf(p->verdict, sizeof p->verdict,
                 "needs %llu bytes (%s) on each of %u ranks; give --device-memory to learn whether "
                 "it fits",
                 (unsigned long long)bytes, needs, world);
        return;
    }
    if (p->fits) {
        snprintf(p->verdict, sizeof p->verdict,
                 "fits: needs %llu bytes (%s) on each of %u ranks, %s %s",
                 (unsigned long long)bytes, needs, world, has, p->stated ? "there" : "free");
        return;
    }
    shd_verdict_tags(&p->plan, tags, sizeof tags);
    would_fit(r, advice, hint, sizeof hint);
    snprintf(p->verdict, sizeof p->verdict,
             "does not fit: needs %llu bytes (%s) on each of %u ranks, has %llu (%s); largest: %s; "
             "%s",
             (unsigned long long)bytes, needs, world, (unsigned long long)p->available, has, tags,
             hint);
}

static int make(request *r)
{
    shd_planning *p = &r->planning;
    shd_model_files *model = NULL;
    int rc = open_model(r, &model);
    if (rc == 0) {
        rc = resolve(r, model != NULL ? &model->config : NULL);
    }
    shd_model_files_unref(model); /* of this thread alone */
    SHD_TRY(rc);
    SHD_TRY(shd_plan_for(&p->spec, r->threads_per_rank, &p->machine, &p->plan, &p->estimate, NULL,
                         &p->err));
    find_room(r);
    const int unknown = p->stated && p->available == 0;
    p->fits = unknown || shd_plan_bytes(&p->plan) <= p->available;
    if (r->message->advise || !p->fits) {
        SHD_TRY(shd_advise(&p->spec, r->threads_per_rank, &p->machine,
                           unknown ? SHD_ADVISE_ANY : p->available, MAX_ADVICE, &p->advice,
                           &p->n_advice, &p->err));
    }
    judge(r, p->advice);
    p->n_advice = r->message->advise ? p->n_advice : 0;
    return SHD_OK;
}

static request *request_of(shd_task *task)
{
    return (request *)((char *)task - offsetof(request, task));
}

static void run_task(shd_task *task)
{
    request *r = request_of(task);
    shd_planning *p = &r->planning;
    p->rc = __atomic_load_n(&task->cancel, __ATOMIC_RELAXED)
                ? shd_fail(&p->err, SHD_EUNAVAILABLE, "the daemon is stopping")
                : make(r);
}

/* ---- on the loop ---- */

static void task_done(shd_task *task)
{
    request *r = request_of(task);
    shd_jobs *jobs = r->jobs;
    r->done(&r->planning);
    shd_jobs_unhold(jobs);
}

int shd_planning_start(shd_jobs *jobs, const shd_identity *who,
                       const Shard__V1__PlanRequest *message, void (*done)(shd_planning *planning),
                       void *arg, shd_error *err)
{
    shd_workers *workers = shd_jobs_workers(jobs, SHD_WORKERS_TEXT);
    if (shd_jobs_stopping(jobs)) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    if (shd_workers_tasks(workers, who->uid) >= MAX_OF_USER) {
        return shd_fail(err, SHD_EFULL,
                        "%d plans or texts of yours are being worked on already; try again",
                        MAX_OF_USER);
    }
    Shard__V1__PlanRequest *copy = (Shard__V1__PlanRequest *)shd_message_copy(&message->base);
    if (copy == NULL) {
        return shd_fail(err, SHD_EINVAL, "the spec holds text that is not UTF-8");
    }
    const shd_jobs_options *options = shd_jobs_get_options(jobs);
    request *r = shd_calloc(1, sizeof(*r));
    r->planning.arg = arg;
    r->planning.stated = copy->machine != NULL;
    r->jobs = jobs;
    r->message = copy;
    r->done = done;
    r->who = *who;
    r->n_roots = options->n_data_roots;
    r->roots = shd_auth_roots_copy(options->data_roots, r->n_roots);
    r->n_ranks = options->n_ranks;
    r->threads_per_rank = options->threads_per_rank;
    r->budget = options->limits.memory_per_rank;
    r->planned = shd_calloc(r->n_ranks, sizeof(*r->planned));
    memcpy(r->planned, shd_jobs_planned(jobs), r->n_ranks * sizeof(*r->planned));
    r->task = (shd_task){.run = run_task, .done = task_done, .uid = who->uid};
    shd_jobs_hold(jobs);
    shd_workers_run(workers, &r->task);
    return SHD_OK;
}

void shd_planning_free(shd_planning *planning)
{
    if (planning == NULL) {
        return;
    }
    request *r = (request *)planning;
    shd_spec_fini(&planning->spec);
    free(planning->advice);
    shard__v1__plan_request__free_unpacked(r->message, NULL);
    shd_auth_roots_free(r->roots, r->n_roots);
    free(r->planned);
    free(r);
}

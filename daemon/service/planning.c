#include "daemon/service/planning.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/service/hint.h"
#include "daemon/service/jobs.h"
#include "daemon/service/message.h"
#include "daemon/service/model_files.h"
#include "daemon/service/room.h"
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

static int is_cancelled(request *r)
{
    return __atomic_load_n(&r->task.cancel, __ATOMIC_RELAXED)
               ? shd_fail(&r->planning.err, SHD_EUNAVAILABLE, "the daemon is stopping")
               : SHD_OK;
}

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

/* Nobody can tell whether it fits. */
static int is_unknown(const shd_planning *p)
{
    return p->stated && p->machine.device_memory == 0;
}

static shd_room room_of(const request *r)
{
    const shd_planning *p = &r->planning;
    return p->stated
               ? (shd_room){.n_ranks = p->spec.strategy.world, .budget = p->machine.device_memory}
               : (shd_room){.planned = r->planned, .n_ranks = r->n_ranks, .budget = r->budget};
}

/* ---- the verdict ---- */

static void refuse(request *r, const shd_model_config *config, const shd_advice *advice)
{
    shd_planning *p = &r->planning;
    const Shard__V1__Machine *machine = r->message->machine;
    char hint[SHD_HINT_LEN];
    const shd_hint_request q = {
        .message = r->message->spec,
        .config = config,
        .spec = &p->spec,
        .max_ranks = p->stated ? SHD_MAX_WORLD : r->n_ranks,
        .node_ranks = p->stated ? machine->ranks_per_node : 0,
        .threads_per_rank = r->threads_per_rank,
        .room = room_of(r),
        .advice = advice,
        .cancel = &r->task.cancel,
    };
    shd_hint(&q, hint);
    shd_verdict_refuses(&p->plan, p->spec.strategy.world, &q.room, p->available, hint, p->verdict,
                        sizeof p->verdict);
}

static void say_fits(request *r)
{
    shd_planning *p = &r->planning;
    const shd_room room = room_of(r);
    if (!is_unknown(p)) {
        shd_verdict_fits(&p->plan, p->spec.strategy.world, &room, p->available, p->verdict,
                         sizeof p->verdict);
        return;
    }
    const uint64_t bytes = shd_plan_bytes(&p->plan);
    char needs[SHD_VERDICT_BYTES];
    snprintf(p->verdict, sizeof p->verdict,
             "needs %llu bytes (%s) on each of %u ranks; give --device-memory to learn whether it "
             "fits",
             (unsigned long long)bytes, shd_verdict_bytes(bytes, needs), p->spec.strategy.world);
}

static int judge(request *r, const shd_model_config *config)
{
    shd_planning *p = &r->planning;
    const shd_room room = room_of(r);
    p->available = shd_room_available(&room, p->spec.strategy.world, &p->first_rank);
    p->fits = is_unknown(p) || shd_plan_bytes(&p->plan) <= p->available;
    if (r->message->advise || !p->fits) {
        SHD_TRY(shd_advise(&p->spec, r->threads_per_rank, &p->machine,
                           is_unknown(p) ? SHD_ADVISE_ANY : p->available, MAX_ADVICE, &p->advice,
                           &p->n_advice, &p->err));
    }
    if (p->fits) {
        say_fits(r);
    } else {
        refuse(r, config, p->n_advice > 0 ? p->advice : NULL);
        SHD_TRY(is_cancelled(r));
    }
    p->n_advice = r->message->advise ? p->n_advice : 0;
    return SHD_OK;
}

static int make_of(request *r, const shd_model_config *config)
{
    shd_planning *p = &r->planning;
    SHD_TRY(resolve(r, config));
    SHD_TRY(shd_plan_for(&p->spec, r->threads_per_rank, &p->machine, &p->plan, &p->estimate, NULL,
                         &p->err));
    return judge(r, config);
}

static int make(request *r)
{
    shd_model_files *model;
    SHD_TRY(is_cancelled(r));
    SHD_TRY(open_model(r, &model));
    const int rc = make_of(r, model != NULL ? &model->config : NULL);
    shd_model_files_unref(model); /* of this thread alone */
    return rc;
}

static request *request_of(shd_task *task)
{
    return (request *)((char *)task - offsetof(request, task));
}

static void run_task(shd_task *task)
{
    request *r = request_of(task);
    r->planning.rc = make(r);
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
    shd_workers *workers = shd_jobs_workers(jobs, SHD_WORKERS_PLAN);
    if (shd_jobs_stopping(jobs)) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    if (shd_workers_tasks(workers, who->uid) >= MAX_OF_USER) {
        return shd_fail(err, SHD_EFULL,
                        "%d jobs and plans of yours are being looked at already; try again",
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

#include "daemon/service/rpc_plan.h"

#include "daemon/service/admission.h"
#include "daemon/service/encode.h"
#include "daemon/service/jobs.h"
#include "daemon/service/planning.h"

static void reply(shd_call *call, const shd_spec *spec, Shard__V1__PlanResponse *response)
{
    response->spec = shd_spec_to_proto(spec);
    shd_call_reply(call, &response->base);
    shard__v1__job_spec__free_unpacked(response->spec, NULL);
}

/* ---- a job on this daemon ---- */

static void on_admission(shd_admission *a)
{
    shd_call *call = a->arg;
    if (a->rc < 0 && a->rc != SHD_ENOMEM) {
        shd_call_fail(call, &a->err);
        shd_admission_free(a);
        return;
    }
    shd_scratch scratch = SHD_SCRATCH_INIT;
    Shard__V1__PlanResponse response = SHARD__V1__PLAN_RESPONSE__INIT;
    shd_encode_plan(&a->spec, &a->plan, a->first_rank, a->spec.strategy.world, &response, &scratch);
    response.fits = a->rc == SHD_OK;
    response.verdict = a->verdict;
    response.available = a->available;
    reply(call, &a->spec, &response);
    shd_scratch_free(&scratch);
    shd_admission_free(a);
}

/* ---- other machines, and advice ---- */

static Shard__V1__Estimate *encode_estimate(const shd_estimate *e, shd_scratch *scratch)
{
    if (e->step_s <= 0) {
        return NULL;
    }
    Shard__V1__Estimate *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__estimate__init(m);
    m->step_ms = e->step_s * 1e3;
    m->compute_ms = e->compute_s * 1e3;
    m->exposed_comm_ms = e->exposed_s * 1e3;
    m->optimizer_ms = e->optimizer_s * 1e3;
    m->tokens_per_s = e->tokens_per_s;
    m->flops_share = e->flops_share;
    return m;
}

static Shard__V1__Advice *encode_advice(const shd_advice *a, shd_scratch *scratch)
{
    Shard__V1__Advice *m = shd_scratch_take(scratch, 1, sizeof(*m));
    char *reshard = shd_scratch_take(scratch, SHD_STRATEGY_RESHARD_LEN, 1);
    char *flags = shd_scratch_take(scratch, SHD_STRATEGY_FLAGS_LEN, 1);
    shard__v1__advice__init(m);
    m->strategy = (char *)shd_strategy_name(&a->strategy);
    m->degrees = shd_encode_degrees(&a->strategy, &m->n_degrees, scratch);
    m->reshard_after_forward = (char *)shd_strategy_reshard(&a->strategy, reshard);
    m->flags = (char *)shd_strategy_flags(&a->strategy, flags);
    m->activation_checkpointing = (char *)shd_checkpointing_name(a->checkpointing);
    m->bytes = a->bytes;
    m->fits = a->fits;
    m->comm_bytes = a->comm_bytes;
    m->between_nodes = a->between;
    m->step_ms = a->step_s * 1e3;
    return m;
}

static void on_planning(shd_planning *p)
{
    shd_call *call = p->arg;
    if (p->rc < 0) {
        shd_call_fail(call, &p->err);
        shd_planning_free(p);
        return;
    }
    shd_scratch scratch = SHD_SCRATCH_INIT;
    Shard__V1__PlanResponse response = SHARD__V1__PLAN_RESPONSE__INIT;
    /* One rank of a stated machine stands for all. */
    const uint32_t shown = p->stated ? 1 : p->spec.strategy.world;
    shd_encode_plan(&p->spec, &p->plan, p->first_rank, shown, &response, &scratch);
    if (p->stated) {
        response.memory[0]->tier = (char *)"device";
    }
    response.fits = p->fits;
    response.verdict = p->verdict;
    response.available = p->available;
    response.estimate = encode_estimate(&p->estimate, &scratch);
    response.advice = shd_scratch_take(&scratch, p->n_advice, sizeof(*response.advice));
    for (uint32_t i = 0; i < p->n_advice; i++) {
        response.advice[response.n_advice++] = encode_advice(&p->advice[i], &scratch);
    }
    reply(call, &p->spec, &response);
    shd_scratch_free(&scratch);
    shd_planning_free(p);
}

static void plan(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__PlanRequest *q = (const Shard__V1__PlanRequest *)request;
    const shd_identity *who = shd_call_identity(call);
    shd_jobs *jobs = service;
    shd_error err;
    int rc = 0;
    if (q->spec == NULL) {
        shd_call_failf(call, SHD_EINVAL, "no spec given; a plan needs at least a model");
        return;
    }
    if (shd_jobs_stopping(jobs)) {
        shd_call_failf(call, SHD_EUNAVAILABLE, "the daemon is stopping");
        return;
    }
    rc = q->machine == NULL && !q->advise
             ? shd_admission_start(jobs, who, q->spec, 0, on_admission, call, &err)
             : shd_planning_start(jobs, who, q, on_planning, call, &err);
    if (rc < 0) {
        shd_call_fail(call, &err);
    }
}

const shd_rpc_method *shd_rpc_plan_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/Plan", &shard__v1__plan_request__descriptor, plan, 0},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

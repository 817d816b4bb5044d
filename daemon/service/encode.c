#include "daemon/service/encode.h"

#include "daemon/optim/optim.h"
#include "daemon/service/admission.h"

/* What the arena of a rank is mapped in: jobs run on CPU ranks, whose memory is the host's. */
#define TIER "host"

/* Text of static storage or of the job; messages never write to it. */
static char *text(const char *s)
{
    return (char *)s;
}

/* ---- events ---- */

Shard__V1__StepResult *shd_encode_step(const shd_event *event, shd_scratch *scratch)
{
    Shard__V1__StepResult *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__step_result__init(m);
    m->step = event->step;
    m->loss = event->result.loss;
    m->grad_norm = event->result.grad_norm;
    m->lr = event->result.lr;
    m->tokens = event->result.tokens;
    m->step_ms = event->result.step_ms;
    m->tokens_per_s = m->step_ms > 0.0 ? (double)m->tokens * 1000.0 / m->step_ms : 0.0;
    m->skipped = event->skipped != 0;
    m->samples = event->result.samples;
    m->loss_scale = event->result.loss_scale;
    m->unix = event->result.unix_time;
    return m;
}

static Shard__V1__EvalResult *encode_eval(const shd_event *event, shd_scratch *scratch)
{
    Shard__V1__EvalResult *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__eval_result__init(m);
    m->step = event->step;
    m->loss = event->eval.loss;
    m->tokens = event->eval.tokens;
    m->ms = event->eval.ms;
    m->unix = event->eval.unix_time;
    return m;
}

static Shard__V1__StateChange *encode_state(const shd_event *event, shd_scratch *scratch)
{
    Shard__V1__StateChange *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__state_change__init(m);
    m->state = (Shard__V1__JobState)event->state;
    m->step = event->step;
    m->unix = event->change.unix_time;
    if (event->change.reason != NULL) {
        m->reason = event->change.reason;
    }
    return m;
}

Shard__V1__Event *shd_encode_event(const shd_event *event, uint64_t index, shd_scratch *scratch)
{
    Shard__V1__Event *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__event__init(m);
    m->index = index;
    switch ((shd_event_kind)event->kind) {
    case SHD_EVENT_STEP:
        m->kind_case = SHARD__V1__EVENT__KIND_STEP;
        m->step = shd_encode_step(event, scratch);
        break;
    case SHD_EVENT_EVAL:
        m->kind_case = SHARD__V1__EVENT__KIND_EVAL;
        m->eval = encode_eval(event, scratch);
        break;
    case SHD_EVENT_STATE:
        m->kind_case = SHARD__V1__EVENT__KIND_STATE;
        m->state = encode_state(event, scratch);
        break;
    }
    return m;
}

/* ---- jobs ---- */

uint32_t *shd_encode_degrees(const shd_strategy *strategy, size_t *n, shd_scratch *scratch)
{
    uint32_t *degrees = shd_scratch_take(scratch, 4, sizeof(*degrees));
    degrees[0] = strategy->p;
    degrees[1] = strategy->g;
    degrees[2] = strategy->o;
    degrees[3] = strategy->world;
    *n = 4;
    return degrees;
}

/* NULL: the job does not prepare. */
static Shard__V1__Progress *encode_progress(const shd_job *job, shd_scratch *scratch)
{
    uint64_t done = 0, total = 0;
    const int tokenizing = shd_job_progress(job, &done, &total);
    if (!tokenizing && !shd_job_loading(job, &done, &total)) {
        return NULL;
    }
    Shard__V1__Progress *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__progress__init(m);
    m->what = text(tokenizing ? "tokenizing" : "loading");
    m->done = done;
    m->total = total;
    return m;
}

Shard__V1__Job *shd_encode_job(const shd_job *job, shd_scratch *scratch)
{
    Shard__V1__Job *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__job__init(m);
    m->id = text(job->id);
    m->spec = job->spec_message;
    m->state = job->state;
    m->reason = text(job->reason);
    m->owner_uid = job->owner_uid;
    m->owner = text(job->owner);
    m->step = job->step;
    m->samples = job->samples;
    m->next_seq = job->next_seq;
    m->last = job->has_last ? shd_encode_step(&job->last, scratch) : NULL;
    m->created_unix = job->created_unix;
    m->parameters = job->plan.parameters;
    m->degrees = shd_encode_degrees(&job->spec.strategy, &m->n_degrees, scratch);
    m->last_eval = job->has_eval ? encode_eval(&job->last_eval, scratch) : NULL;
    m->n_rank_ids = job->spec.strategy.world;
    m->rank_ids = shd_scratch_take(scratch, m->n_rank_ids, sizeof(*m->rank_ids));
    for (uint32_t r = 0; r < m->n_rank_ids; r++) {
        m->rank_ids[r] = job->first_rank + r;
    }
    m->vocab = (uint32_t)job->spec.model.vocab;
    m->context = (uint32_t)job->spec.model.context;
    m->trainable = job->plan.trainable;
    m->progress = encode_progress(job, scratch);
    return m;
}

/* ---- memory and communication ---- */

static Shard__V1__Bytes *encode_bytes(uint64_t planned, uint64_t now, uint64_t peak,
                                      shd_scratch *scratch)
{
    Shard__V1__Bytes *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__bytes__init(m);
    m->planned = planned;
    m->now = now;
    m->peak = peak;
    return m;
}

static Shard__V1__RankMemory *encode_rank(const shd_plan *plan, uint32_t rank, uint32_t daemon_rank,
                                          const shd_usage *usage, uint64_t total_peak,
                                          uint64_t reserved, shd_scratch *scratch)
{
    Shard__V1__RankMemory *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__rank_memory__init(m);
    m->rank = rank;
    m->daemon_rank = daemon_rank;
    m->tier = text(TIER);
    m->n_tags = SHD_TAG_COUNT;
    m->tags = shd_scratch_take(scratch, SHD_TAG_COUNT, sizeof(*m->tags));
    uint64_t now = 0;
    for (int tag = 0; tag < SHD_TAG_COUNT; tag++) {
        Shard__V1__TagBytes *t = shd_scratch_take(scratch, 1, sizeof(*t));
        shard__v1__tag_bytes__init(t);
        t->tag = text(shd_tag_name((shd_tag)tag));
        t->bytes = encode_bytes(plan->peak[tag], usage[tag].now, usage[tag].peak, scratch);
        m->tags[tag] = t;
        now += usage[tag].now;
    }
    m->total = encode_bytes(plan->total_peak, now, total_peak, scratch);
    m->reserved = reserved;
    return m;
}

static Shard__V1__CommStats **encode_comm(const shd_plan *plan, const shd_comm_count *count,
                                          const uint64_t *last_step, size_t *n,
                                          shd_scratch *scratch)
{
    Shard__V1__CommStats **all = shd_scratch_take(scratch, SHD_COMM_KIND_COUNT, sizeof(*all));
    for (int kind = 0; kind < SHD_COMM_KIND_COUNT; kind++) {
        Shard__V1__CommStats *m = shd_scratch_take(scratch, 1, sizeof(*m));
        shard__v1__comm_stats__init(m);
        m->kind = text(shd_comm_kind_name((shd_comm_kind)kind));
        m->bytes = count[kind].bytes;
        m->calls = count[kind].calls;
        m->planned_bytes_per_step = plan->comm_step[kind].bytes;
        m->last_step_bytes = last_step[kind];
        m->planned_between_nodes = plan->comm_between[kind];
        all[kind] = m;
    }
    *n = SHD_COMM_KIND_COUNT;
    return all;
}

Shard__V1__JobStatus *shd_encode_status(const shd_job *job, shd_scratch *scratch)
{
    static const shd_usage no_usage[SHD_TAG_COUNT];
    const shd_spec *spec = &job->spec;
    Shard__V1__JobStatus *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__job_status__init(m);
    m->job = shd_encode_job(job, scratch);
    m->strategy = text(shd_strategy_name(&spec->strategy));
    m->compute_dtype = job->spec_message->dtype;
    m->param_dtype = job->spec_message->dtype;
    m->reduce_dtype = job->spec_message->reduce_dtype;
    m->master_dtype = text("fp32");
    m->moment_dtype = text(shd_optim_states(&spec->optim) > 0 ? "fp32" : "none");
    m->optimizer = job->spec_message->optimizer;
    m->checkpointing = job->spec_message->activation_checkpointing;
    m->tokenizer = job->spec_message->tokenizer;
    m->determinism = job->spec_message->determinism;
    m->reduction_width = job->spec_message->reduction_width;
    m->n_memory = spec->strategy.world;
    m->memory = shd_scratch_take(scratch, m->n_memory, sizeof(*m->memory));
    for (uint32_t r = 0; r < spec->strategy.world; r++) {
        shd_usage live[SHD_TAG_COUNT];
        const shd_usage *usage = no_usage;
        uint64_t total_peak = 0, reserved = 0;
        if (job->trainer != NULL) {
            shd_trainer_usage(job->trainer, r, live, &total_peak, &reserved);
            usage = live;
        } else if (job->last_usage != NULL) {
            usage = job->last_usage[r];
            total_peak = job->last_total_peak[r];
        }
        m->memory[r] =
            encode_rank(&job->plan, r, job->first_rank + r, usage, total_peak, reserved, scratch);
    }
    shd_comm_count count[SHD_COMM_KIND_COUNT];
    if (job->trainer != NULL) {
        shd_trainer_comm(job->trainer, 0, count);
    }
    m->comm = encode_comm(&job->plan, job->trainer != NULL ? count : job->last_comm,
                          job->comm_last_step, &m->n_comm, scratch);
    m->queued = job->training.n + job->interactive.n + job->evaluations.n + job->gated;
    m->watchers = job->n_observers;
    m->accumulation = spec->accumulation;
    m->skipped_steps = job->skipped;
    m->exposed_comm = job->exposed_last_step;
    m->overlap = spec->pipeline.overlap;
    m->loss_scale = job->trainer != NULL ? shd_trainer_loss_scale(job->trainer) : 0.0;
    return m;
}

void shd_encode_plan(const shd_spec *spec, const shd_plan *plan, uint32_t first_rank,
                     uint32_t ranks, Shard__V1__PlanResponse *out, shd_scratch *scratch)
{
    static const shd_usage no_usage[SHD_TAG_COUNT];
    static const shd_comm_count no_count[SHD_COMM_KIND_COUNT];
    static const uint64_t no_bytes[SHD_COMM_KIND_COUNT];
    out->parameters = plan->parameters;
    out->degrees = shd_encode_degrees(&spec->strategy, &out->n_degrees, scratch);
    out->n_memory = ranks;
    out->memory = shd_scratch_take(scratch, out->n_memory, sizeof(*out->memory));
    for (uint32_t r = 0; r < ranks; r++) {
        out->memory[r] =
            encode_rank(plan, r, first_rank + r, no_usage, 0, shd_plan_bytes(plan), scratch);
    }
    out->comm = encode_comm(plan, no_count, no_bytes, &out->n_comm, scratch);
    out->units = plan->units;
    out->padding = plan->padding;
}

#include "daemon/service/rpc_drive.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/service/batch.h"
#include "daemon/service/encode.h"
#include "daemon/service/job.h"
#include "daemon/service/jobs.h"

/* ---- responses ---- */

static Shard__V1__TokenLogprobs **encode_logprobs(const shd_work *work, const uint32_t *lengths,
                                                  size_t *n, shd_scratch *scratch)
{
    *n = 0;
    if (work->logprobs == NULL) {
        return NULL;
    }
    Shard__V1__TokenLogprobs **all = shd_scratch_take(scratch, work->batch.sequences, sizeof(*all));
    for (uint32_t i = 0; i < work->batch.sequences; i++) {
        all[i] = shd_scratch_take(scratch, 1, sizeof(**all));
        shard__v1__token_logprobs__init(all[i]);
        all[i]->n_values = lengths[i];
        all[i]->values = work->logprobs + (size_t)i * work->batch.length;
    }
    *n = work->batch.sequences;
    return all;
}

/* Lengths of the sequences before they were padded; owned by the caller. */
static uint32_t *lengths_of(const Shard__V1__Batch *batch)
{
    uint32_t *lengths = shd_reallocarray(NULL, batch->n_sequences, sizeof(*lengths));
    for (size_t i = 0; i < batch->n_sequences; i++) {
        lengths[i] = (uint32_t)batch->sequences[i]->n_tokens;
    }
    return lengths;
}

/* ---- calls with a sequence number ---- */

/* One sequence number on its way, and the calls that wait for its answer: the first one and those
 * that were sent again. */
typedef struct drive {
    shd_item item; /* first */
    uint64_t seq;
    uint32_t *lengths;
    shd_call **calls;
    size_t n_calls;
} drive;

static const char *kind_name(int kind)
{
    switch (kind) {
    case SHD_WORK_FORWARD_BACKWARD:
        return "ForwardBackward";
    case SHD_WORK_OPTIM_STEP:
        return "OptimStep";
    default:
        return "TrainStep";
    }
}

static const ProtobufCMessageDescriptor *response_type(int kind)
{
    switch (kind) {
    case SHD_WORK_FORWARD_BACKWARD:
        return &shard__v1__forward_backward_response__descriptor;
    case SHD_WORK_OPTIM_STEP:
        return &shard__v1__optim_step_response__descriptor;
    default:
        return &shard__v1__train_step_response__descriptor;
    }
}

static void drive_free(drive *d)
{
    shd_work_fini(&d->item.work);
    free(d->lengths);
    free(d->calls);
    free(d);
}

static ProtobufCMessage *encode_result(const drive *d, shd_scratch *scratch)
{
    const shd_work *work = &d->item.work;
    if (work->kind == SHD_WORK_FORWARD_BACKWARD) {
        Shard__V1__ForwardBackwardResponse *m = shd_scratch_take(scratch, 1, sizeof(*m));
        shard__v1__forward_backward_response__init(m);
        m->loss = work->loss;
        m->valid_tokens = work->valid_tokens;
        m->logprobs = encode_logprobs(work, d->lengths, &m->n_logprobs, scratch);
        return &m->base;
    }
    Shard__V1__StepResult *result = shd_encode_step(&d->item.job->last, scratch);
    if (work->kind == SHD_WORK_OPTIM_STEP) {
        Shard__V1__OptimStepResponse *m = shd_scratch_take(scratch, 1, sizeof(*m));
        shard__v1__optim_step_response__init(m);
        m->result = result;
        return &m->base;
    }
    Shard__V1__TrainStepResponse *m = shd_scratch_take(scratch, 1, sizeof(*m));
    shard__v1__train_step_response__init(m);
    m->result = result;
    return &m->base;
}

static void on_executed(shd_item *item, const shd_error *failed)
{
    drive *d = (drive *)item;
    shd_job *job = item->job;
    if (failed == NULL) {
        shd_scratch scratch = SHD_SCRATCH_INIT;
        ProtobufCMessage *response = encode_result(d, &scratch);
        for (size_t i = 0; i < d->n_calls; i++) {
            shd_call_reply(d->calls[i], response);
        }
        const size_t size = protobuf_c_message_get_packed_size(response);
        uint8_t *bytes = shd_malloc(size);
        protobuf_c_message_pack(response, bytes);
        shd_answers_put(job->answers, d->seq, item->work.kind, NULL, bytes, size);
        shd_scratch_free(&scratch);
    } else {
        for (size_t i = 0; i < d->n_calls; i++) {
            shd_call_fail(d->calls[i], failed);
        }
        /* What was refused is an answer like any other; what the end of the job or daemon kept
         * from being executed is not. */
        if (!shd_job_ended(job) && !shd_jobs_stopping(job->jobs)) {
            shd_answers_put(job->answers, d->seq, item->work.kind, failed, NULL, 0);
        }
    }
    drive_free(d);
}

/* The item with a sequence number that runs or waits; NULL: none. */
static drive *in_flight(const shd_job *job, uint64_t seq)
{
    if (job->running != NULL && job->running->finish == on_executed &&
        ((drive *)job->running)->seq == seq) {
        return (drive *)job->running;
    }
    for (shd_item *item = job->training.head; item != NULL; item = item->next) {
        if (((drive *)item)->seq == seq) {
            return (drive *)item;
        }
    }
    return NULL;
}

static void add_call(drive *d, shd_call *call)
{
    d->calls = shd_reallocarray(d->calls, d->n_calls + 1, sizeof(*d->calls));
    d->calls[d->n_calls++] = call;
}

static void reply_stored(shd_call *call, const shd_answer *answer)
{
    if (answer->rc < 0) {
        shd_call_failf(call, answer->rc, "%s", answer->error);
        return;
    }
    ProtobufCMessage *response =
        protobuf_c_message_unpack(response_type(answer->kind), NULL, answer->size, answer->data);
    shd_call_reply(call, response);
    protobuf_c_message_free_unpacked(response, NULL);
}

/* A sequence number that was accepted before: its answer, now or when it is there. */
static void answer_again(shd_call *call, shd_job *job, uint64_t seq, int kind)
{
    drive *d = in_flight(job, seq);
    const shd_answer *answer = shd_answers_get(job->answers, seq);
    if (d == NULL && seq > shd_answers_latest(job->answers)) {
        shd_call_failf(call, SHD_ESTATE, "seq %llu was not executed: job %s is %s%s%s",
                       (unsigned long long)seq, job->id, shd_job_state_name(job->state),
                       job->reason[0] != '\0' ? ": " : "", job->reason);
        return;
    }
    if (d == NULL && answer == NULL) {
        shd_call_failf(call, SHD_ESEQUENCE,
                       "seq %llu was executed and its answer is no longer kept (kept are %llu and "
                       "later); the next is %llu",
                       (unsigned long long)seq,
                       (unsigned long long)shd_answers_oldest(job->answers),
                       (unsigned long long)job->next_seq);
        return;
    }
    const int first_kind = d != NULL ? (int)d->item.work.kind : answer->kind;
    if (first_kind != kind) {
        shd_call_failf(call, SHD_ESEQUENCE,
                       "seq %llu was %s and cannot be sent again as %s; the next is %llu",
                       (unsigned long long)seq, kind_name(first_kind), kind_name(kind),
                       (unsigned long long)job->next_seq);
    } else if (d != NULL) {
        add_call(d, call);
    } else {
        reply_stored(call, answer);
    }
}

/* May a call of `kind` be added now? */
static int check_accept(const shd_job *job, uint64_t seq, int kind, shd_error *err)
{
    if (shd_jobs_stopping(job->jobs)) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    if (shd_job_ended(job)) {
        return shd_fail(err, SHD_ESTATE, "job %s is %s%s%s", job->id,
                        shd_job_state_name(job->state), job->reason[0] != '\0' ? ": " : "",
                        job->reason);
    }
    if (seq != job->next_seq) {
        return shd_fail(err, SHD_ESEQUENCE, "seq %llu leaves a gap; the next is %llu",
                        (unsigned long long)seq, (unsigned long long)job->next_seq);
    }
    uint64_t steps;
    uint32_t accumulated;
    shd_job_projected(job, &steps, &accumulated);
    if (job->spec.steps != 0 && steps >= job->spec.steps) {
        return shd_fail(err, SHD_ESTATE,
                        "job %s takes %llu steps (--steps) and all are taken or queued", job->id,
                        (unsigned long long)job->spec.steps);
    }
    if (kind == SHD_WORK_OPTIM_STEP && accumulated == 0) {
        return shd_fail(err, SHD_ESTATE,
                        "no gradients are accumulated; call ForwardBackward first (seq %llu is "
                        "still free)",
                        (unsigned long long)seq);
    }
    const uint32_t most = shd_jobs_get_options(job->jobs)->limits.max_queue;
    if (job->training.n >= most) {
        return shd_fail(err, SHD_EFULL,
                        "queue full: %u calls wait for job %s (max_queue); send seq %llu again "
                        "when one is answered",
                        most, job->id, (unsigned long long)seq);
    }
    return SHD_OK;
}

/* The bounds are those of the specification. NaN stands for "as the spec says" and is never what a
 * client means. */
static int set_override(double *out, int given, double value, double most, const char *name,
                        shd_error *err)
{
    if (!given) {
        return SHD_OK;
    }
    if (!(value >= 0.0 && value <= most)) {
        return shd_fail(err, SHD_EINVAL, "override %s is %g; it must be 0 to %g", name, value,
                        most);
    }
    *out = value;
    return SHD_OK;
}

static int set_overrides(shd_work *work, const Shard__V1__StepOverrides *o, shd_error *err)
{
    if (o == NULL) {
        return SHD_OK;
    }
    SHD_TRY(set_override(&work->lr, o->has_lr_case != 0, o->lr, SHD_SPEC_LR_MAX, "lr", err));
    SHD_TRY(
        set_override(&work->clip, o->has_clip_case != 0, o->clip, SHD_SPEC_CLIP_MAX, "clip", err));
    return set_override(&work->weight_decay, o->has_weight_decay_case != 0, o->weight_decay,
                        SHD_SPEC_WEIGHT_DECAY_MAX, "weight_decay", err);
}

/* Common to the three calls. `batch` is NULL for OptimStep. */
static void drive_call(shd_call *call, shd_jobs *jobs, const char *ref, uint64_t seq, int kind,
                       const Shard__V1__Batch *batch, const Shard__V1__StepOverrides *overrides,
                       int want_logprobs)
{
    shd_job *job;
    shd_error err;
    if (shd_jobs_find(jobs, shd_call_identity(call), ref, SHD_RIGHT_MANAGE, &job, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    if (!shd_job_client_driven(job)) {
        shd_call_failf(call, SHD_ESTATE,
                       "job %s trains on its own data (%s) and takes no %s; create a job without "
                       "data to drive it from a client",
                       job->id, job->spec.data_path, kind_name(kind));
        return;
    }
    if (seq == 0) {
        shd_call_failf(call, SHD_ESEQUENCE, "seq counts from 1; the next is %llu",
                       (unsigned long long)job->next_seq);
        return;
    }
    if (seq < job->next_seq) {
        answer_again(call, job, seq, kind);
        return;
    }
    if (check_accept(job, seq, kind, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    drive *d = shd_calloc(1, sizeof(*d));
    shd_work *work = &d->item.work;
    shd_work_init(work, (shd_work_kind)kind);
    work->want_logprobs = want_logprobs;
    d->item.finish = on_executed;
    d->seq = seq;
    int rc = set_overrides(work, overrides, &err);
    if (rc == SHD_OK && kind != SHD_WORK_OPTIM_STEP) {
        rc = shd_batch_convert(batch, job->spec.seq_len, &work->batch, &err);
        if (rc == SHD_OK) {
            d->lengths = lengths_of(batch);
            rc = shd_trainer_check_batch(job->trainer, work, &err);
        }
        if (rc == SHD_OK) {
            rc = shd_jobs_check_waiting(jobs, job, shd_item_bytes(&d->item), &err);
        }
    }
    if (rc < 0) {
        drive_free(d);
        shd_call_fail(call, &err);
        return;
    }
    add_call(d, call);
    job->next_seq++;
    shd_job_push_training(job, &d->item);
}

static void forward_backward(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__ForwardBackwardRequest *q = (const Shard__V1__ForwardBackwardRequest *)request;
    if (q->loss[0] != '\0' && strcmp(q->loss, "cross_entropy") != 0) {
        shd_call_failf(call, SHD_EUNSUPPORTED, "loss '%.64s' is not available; use cross_entropy",
                       q->loss);
        return;
    }
    drive_call(call, service, q->job, q->seq, SHD_WORK_FORWARD_BACKWARD, q->batch, NULL,
               q->want_logprobs);
}

static void optim_step(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__OptimStepRequest *q = (const Shard__V1__OptimStepRequest *)request;
    drive_call(call, service, q->job, q->seq, SHD_WORK_OPTIM_STEP, NULL, q->overrides, 0);
}

static void train_step(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__TrainStepRequest *q = (const Shard__V1__TrainStepRequest *)request;
    drive_call(call, service, q->job, q->seq, SHD_WORK_TRAIN_STEP, q->batch, q->overrides, 0);
}

/* ---- Forward: no sequence number, changes nothing ---- */

typedef struct forward {
    shd_item item; /* first */
    uint32_t *lengths;
    shd_call *call; /* NULL once the client is gone */
} forward;

static void forward_free(forward *f)
{
    shd_work_fini(&f->item.work);
    free(f->lengths);
    free(f);
}

static void on_forward(shd_item *item, const shd_error *failed)
{
    forward *f = (forward *)item;
    if (f->call != NULL && failed != NULL) {
        shd_call_fail(f->call, failed);
    } else if (f->call != NULL) {
        shd_scratch scratch = SHD_SCRATCH_INIT;
        Shard__V1__ForwardResponse response = SHARD__V1__FORWARD_RESPONSE__INIT;
        response.loss = item->work.loss;
        response.valid_tokens = item->work.valid_tokens;
        response.logprobs =
            encode_logprobs(&item->work, f->lengths, &response.n_logprobs, &scratch);
        shd_call_reply(f->call, &response.base);
        shd_scratch_free(&scratch);
    }
    forward_free(f);
}

static void on_forward_gone(void *arg)
{
    forward *f = arg;
    f->call = NULL;
    if (shd_job_withdraw(f->item.job, &f->item)) {
        forward_free(f);
    } else {
        f->item.withdrawn = 1;
    }
}

static void forward_call(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__ForwardRequest *q = (const Shard__V1__ForwardRequest *)request;
    shd_job *job;
    shd_error err;
    if (shd_jobs_find(service, shd_call_identity(call), q->job, SHD_RIGHT_USE, &job, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    forward *f = shd_calloc(1, sizeof(*f));
    shd_work_init(&f->item.work, SHD_WORK_FORWARD);
    f->item.work.want_logprobs = q->want_logprobs;
    f->item.finish = on_forward;
    f->call = call;
    int rc = shd_batch_convert(q->batch, job->spec.seq_len, &f->item.work.batch, &err);
    if (rc == SHD_OK) {
        f->lengths = lengths_of(q->batch);
        rc = job->trainer != NULL ? shd_trainer_check_batch(job->trainer, &f->item.work, &err)
                                  : SHD_OK; /* the push says what became of the job */
    }
    if (rc == SHD_OK) {
        shd_call_callbacks(call, on_forward_gone, NULL, f);
        rc = shd_job_push_interactive(job, &f->item, 0, &err);
    }
    if (rc < 0) {
        forward_free(f);
        shd_call_fail(call, &err);
    }
}

const shd_rpc_method *shd_rpc_drive_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/ForwardBackward", &shard__v1__forward_backward_request__descriptor,
         forward_backward, 0},
        {"/shard.v1.Shard/OptimStep", &shard__v1__optim_step_request__descriptor, optim_step, 0},
        {"/shard.v1.Shard/TrainStep", &shard__v1__train_step_request__descriptor, train_step, 0},
        {"/shard.v1.Shard/Forward", &shard__v1__forward_request__descriptor, forward_call, 0},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

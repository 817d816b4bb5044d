#include "daemon/service/rpc_trace.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/service/job.h"
#include "daemon/service/jobs.h"
#include "daemon/service/scratch.h"
#include "daemon/train/timeline.h"

enum {
    EVENTS_PER_MESSAGE = 2048,
    MAX_WAITING = 1 << 18, /* events that a slow reader may leave behind; later ones are dropped */
    MAX_TRACERS = 4,       /* of a job */
    MAX_STEPS = 1000,
};

typedef struct waiting {
    shd_span span;
    uint64_t step;
    uint32_t rank;
} waiting;

typedef struct tracer {
    shd_job_tracer base; /* first */
    shd_job *job;
    shd_call *call;
    uint32_t steps;        /* still to be seen */
    uint64_t zero_ns;      /* the beginning of the first event; 0: none yet */
    uint64_t dropped;      /* of the step at hand */
    uint64_t last_dropped; /* of the steps before; not yet said */
    waiting *events;       /* [room]; those from `sent` on are to be sent */
    size_t n, room, sent;
} tracer;

static void tracer_free(tracer *t)
{
    shd_job_untrace(&t->base);
    free(t->events);
    free(t);
}

static void encode(const tracer *t, const waiting *from, Shard__V1__TraceEvent *to)
{
    const char *of = shd_span_of(from->span.kind);
    shard__v1__trace_event__init(to);
    to->rank = from->rank;
    to->lane = (char *)shd_span_lane(from->span.kind);
    to->name = (char *)shd_span_name(from->span.kind);
    to->begin_ns = from->span.begin_ns - t->zero_ns;
    to->end_ns = from->span.end_ns - t->zero_ns;
    to->step = from->step;
    to->round = from->span.round;
    to->bytes = from->span.bytes;
    if (of != NULL && of[0] == 's') {
        to->has_segment_case = SHARD__V1__TRACE_EVENT__HAS_SEGMENT_SEGMENT;
        to->segment = from->span.index;
    } else if (of != NULL && of[0] == 'u') {
        to->has_unit_case = SHARD__V1__TRACE_EVENT__HAS_UNIT_UNIT;
        to->unit = from->span.index;
    }
}

/* Sends the next events, all of one step. */
static void send_some(tracer *t)
{
    const waiting *first = &t->events[t->sent];
    size_t n = 1;
    while (n < EVENTS_PER_MESSAGE && t->sent + n < t->n && first[n].step == first->step) {
        n++;
    }
    shd_scratch scratch = SHD_SCRATCH_INIT;
    Shard__V1__TraceEvent *events = shd_scratch_take(&scratch, n, sizeof(*events));
    Shard__V1__TraceEvent **list = shd_scratch_take(&scratch, n, sizeof(Shard__V1__TraceEvent *));
    for (size_t i = 0; i < n; i++) {
        encode(t, &first[i], &events[i]);
        list[i] = &events[i];
    }
    Shard__V1__TraceResponse m = SHARD__V1__TRACE_RESPONSE__INIT;
    m.n_events = n;
    m.events = list;
    m.step = first->step;
    t->sent += n;
    if (t->last_dropped > 0 && (t->sent == t->n || t->events[t->sent].step != m.step)) {
        m.dropped = t->last_dropped;
        t->last_dropped = 0;
    }
    shd_call_send(t->call, &m.base);
    shd_scratch_free(&scratch);
}

/* Sends what the client can take; ends the stream after the last step. */
static void pump(tracer *t)
{
    while (t->sent < t->n && shd_call_writable(t->call)) {
        send_some(t);
    }
    if (t->sent < t->n) {
        return;
    }
    t->n = t->sent = 0;
    if (t->steps == 0) {
        shd_call_end(t->call);
        tracer_free(t);
    }
}

static void keep(tracer *t, const shd_span *span, uint32_t rank, uint64_t step)
{
    if (t->n - t->sent == MAX_WAITING) {
        t->dropped++;
        return;
    }
    if (t->n == t->room && t->sent > t->room / 2) { /* what was sent makes room first */
        memmove(t->events, t->events + t->sent, (t->n - t->sent) * sizeof(*t->events));
        t->n -= t->sent;
        t->sent = 0;
    }
    if (t->n == t->room) {
        t->room = t->room == 0 ? 4096 : 2 * t->room;
        t->events = shd_reallocarray(t->events, t->room, sizeof(*t->events));
    }
    t->events[t->n++] = (waiting){*span, step, rank};
}

/* One of the ranks began first. */
static void find_zero(tracer *t)
{
    for (size_t i = 0; i < t->n; i++) {
        if (t->zero_ns == 0 || t->events[i].span.begin_ns < t->zero_ns) {
            t->zero_ns = t->events[i].span.begin_ns;
        }
    }
}

static void worked(shd_job_tracer *base, const shd_work *work)
{
    tracer *t = (tracer *)base;
    const int takes_step = work->kind != SHD_WORK_FORWARD_BACKWARD;
    const uint64_t step = work->step + (takes_step ? 0 : 1);
    if (t->steps == 0) {
        return; /* has all it asked for, but not yet sent */
    }
    for (uint32_t rank = 0; rank < t->job->spec.strategy.world; rank++) {
        const shd_timeline *timeline = shd_trainer_timeline(t->job->trainer, rank);
        for (int lane = 0; lane < SHD_LANE_COUNT; lane++) {
            const shd_span *spans;
            uint64_t dropped;
            const size_t n = shd_timeline_spans(timeline, (shd_lane)lane, &spans, &dropped);
            for (size_t i = 0; i < n; i++) {
                keep(t, &spans[i], rank, step);
            }
            t->dropped += dropped;
        }
    }
    if (t->zero_ns == 0) {
        find_zero(t);
    }
    if (takes_step) {
        t->last_dropped += t->dropped;
        t->dropped = 0;
        t->steps--;
    }
    pump(t);
}

static void over(shd_job_tracer *base)
{
    tracer *t = (tracer *)base;
    if (t->steps == 0) {
        return;
    }
    shd_call_failf(t->call, SHD_ESTATE, "job %s is %s; %u of the steps to be traced did not come",
                   t->job->id, shd_job_state_name(t->job->state), t->steps);
    tracer_free(t);
}

static void on_gone(void *arg)
{
    tracer_free(arg);
}

static void on_writable(void *arg)
{
    pump(arg);
}

static int check(const shd_job *job, uint32_t steps, shd_error *err)
{
    uint32_t others = 0;
    for (const shd_job_tracer *t = job->tracers; t != NULL; t = t->next) {
        others++;
    }
    if (steps > MAX_STEPS) {
        return shd_fail(err, SHD_EINVAL, "--steps %u: at most %d steps are traced at once", steps,
                        MAX_STEPS);
    }
    if (shd_job_ended(job)) {
        return shd_fail(err, SHD_ESTATE, "job %s is %s and takes no more steps to be traced",
                        job->id, shd_job_state_name(job->state));
    }
    if (others >= MAX_TRACERS) {
        return shd_fail(err, SHD_EFULL, "job %s is being traced by %u calls already; try later",
                        job->id, others);
    }
    return SHD_OK;
}

static void trace(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__TraceRequest *q = (const Shard__V1__TraceRequest *)request;
    shd_job *job;
    shd_error err;
    if (shd_jobs_find(service, shd_call_identity(call), q->job, SHD_RIGHT_SEE, &job, &err) < 0 ||
        check(job, q->steps, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    tracer *t = shd_calloc(1, sizeof(*t));
    t->base.worked = worked;
    t->base.over = over;
    t->job = job;
    t->call = call;
    t->steps = q->steps != 0 ? q->steps : 1;
    shd_job_trace(job, &t->base);
    shd_call_callbacks(call, on_gone, on_writable, t);
}

const shd_rpc_method *shd_rpc_trace_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/Trace", &shard__v1__trace_request__descriptor, trace, 1},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

/* Spans of time by lane; see timeline.h. Floor F4. */
#include "daemon/train/timeline.h"

#include <stdlib.h>
#include <time.h>

#include "daemon/base/mem.h"

/* Written by the thread that works on the lane. */
typedef struct lane_spans {
    shd_span *spans; /* [room] */
    size_t n, room;
    uint64_t dropped;
    uint64_t began_ns;
} lane_spans;

struct shd_timeline {
    const shd_comm *comm; /* borrowed */
    shd_pipeline_hooks hooks;
    int record;
    uint32_t round;
    uint64_t in_comm_ns; /* of that thread, when the turn began */
    uint64_t exposed_ns; /* of turns that are over, and of waits */
    uint64_t sent;       /* bytes, when the span outside of passes began */
    lane_spans lanes[SHD_LANE_COUNT];
};

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t bytes_sent(const shd_comm *comm)
{
    shd_comm_count counts[SHD_COMM_KIND_COUNT];
    uint64_t sum = 0;
    shd_comm_counts(comm, counts);
    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
        sum += counts[k].bytes;
    }
    return sum;
}

static void add(lane_spans *lane, const shd_span *span)
{
    if (lane->n == SHD_TIMELINE_SPANS) {
        lane->dropped++;
        return;
    }
    if (lane->n == lane->room) {
        lane->room = lane->room == 0 ? 256 : 2 * lane->room;
        lane->spans = shd_reallocarray(lane->spans, lane->room, sizeof *lane->spans);
    }
    lane->spans[lane->n++] = *span;
}

static void began(void *arg, const shd_program *program, uint32_t instruction)
{
    shd_timeline *t = arg;
    t->lanes[program->instrs[instruction].lane].began_ns = now_ns();
}

static void ended(void *arg, const shd_program *program, uint32_t instruction)
{
    shd_timeline *t = arg;
    const shd_instr *instr = &program->instrs[instruction];
    lane_spans *lane = &t->lanes[instr->lane];
    const uint64_t end = now_ns();
    if (shd_instr_waits(instr)) {
        t->exposed_ns += end - lane->began_ns;
    }
    if (t->record) {
        add(lane, &(shd_span){.begin_ns = lane->began_ns,
                              .end_ns = end,
                              .bytes = instr->bytes,
                              .round = t->round,
                              .index = instr->index,
                              .kind = (int)instr->kind});
    }
}

shd_timeline *shd_timeline_create(const shd_comm *comm)
{
    shd_timeline *t = shd_calloc(1, sizeof *t);
    t->comm = comm;
    t->hooks = (shd_pipeline_hooks){began, ended, t};
    return t;
}

void shd_timeline_free(shd_timeline *t)
{
    for (int i = 0; t != NULL && i < SHD_LANE_COUNT; i++) {
        free(t->lanes[i].spans);
    }
    free(t);
}

const shd_pipeline_hooks *shd_timeline_hooks(shd_timeline *t)
{
    return &t->hooks;
}

void shd_timeline_turn(shd_timeline *t, int fresh, int record)
{
    if (fresh) {
        for (int i = 0; i < SHD_LANE_COUNT; i++) {
            free(t->lanes[i].spans);
            t->lanes[i] = (lane_spans){0};
        }
        t->exposed_ns = 0;
    }
    t->record = record;
    t->in_comm_ns = shd_comm_thread_ns();
}

void shd_timeline_turn_done(shd_timeline *t)
{
    t->exposed_ns += shd_comm_thread_ns() - t->in_comm_ns;
}

void shd_timeline_round(shd_timeline *t, uint32_t round)
{
    t->round = round;
}

void shd_timeline_begin(shd_timeline *t)
{
    if (t->record) {
        t->sent = bytes_sent(t->comm);
        t->lanes[SHD_LANE_COMPUTE].began_ns = now_ns();
    }
}

void shd_timeline_end(shd_timeline *t, shd_span_kind kind, uint32_t index)
{
    lane_spans *lane = &t->lanes[SHD_LANE_COMPUTE];
    if (t->record) {
        add(lane, &(shd_span){.begin_ns = lane->began_ns,
                              .end_ns = now_ns(),
                              .bytes = bytes_sent(t->comm) - t->sent,
                              .round = t->round,
                              .index = index,
                              .kind = (int)kind});
    }
}

uint64_t shd_timeline_exposed_ns(const shd_timeline *t)
{
    return t->exposed_ns;
}

size_t shd_timeline_spans(const shd_timeline *t, shd_lane lane, const shd_span **out,
                          uint64_t *dropped)
{
    *out = t->lanes[lane].spans;
    *dropped = t->lanes[lane].dropped;
    return t->lanes[lane].n;
}

static const struct kind {
    const char *name, *lane, *of;
} kinds[SHD_SPAN_KIND_COUNT] = {
    [SHD_INSTR_GATHER] = {"all_gather", "gather", "unit"},
    [SHD_INSTR_WAIT_GATHER] = {"wait_gather", "wait", "unit"},
    [SHD_INSTR_FORWARD] = {"forward", "compute", "segment"},
    [SHD_INSTR_RECOMPUTE] = {"recompute", "compute", "segment"},
    [SHD_INSTR_BACKWARD] = {"backward", "compute", "segment"},
    [SHD_INSTR_RESHARD] = {"reshard", "compute", "unit"},
    [SHD_INSTR_GRAD_BEGIN] = {"begin_gradient", "compute", "unit"},
    [SHD_INSTR_REDUCE] = {"reduce_scatter", "reduce", NULL},
    [SHD_INSTR_WAIT_REDUCE] = {"wait_reduce", "wait", NULL},
    [SHD_SPAN_COMPLETE_GRADS] = {"all_reduce", "reduce", "unit"},
    [SHD_SPAN_NORM] = {"norm", "optimizer", NULL},
    [SHD_SPAN_OPTIMIZER] = {"optimizer", "optimizer", "unit"},
    [SHD_SPAN_UPDATE] = {"all_gather_updated", "gather", "unit"},
    [SHD_SPAN_EXCHANGE] = {"exchange_losses", "reduce", NULL},
};

const char *shd_span_name(int kind)
{
    return kinds[kind].name;
}

const char *shd_span_lane(int kind)
{
    return kinds[kind].lane;
}

const char *shd_span_of(int kind)
{
    return kinds[kind].of;
}

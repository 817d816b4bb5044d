/* A discrete simulation of lanes and links; see simulate.h. Floor F4; pure. */
#include "daemon/train/simulate.h"

#include <math.h>
#include <stdlib.h>

#include "daemon/base/mem.h"

enum { INSIDE, BETWEEN, LINKS, NONE = UINT32_MAX };

/* A lane at work: what is left of its instruction. */
typedef struct lane {
    uint32_t instr; /* NONE: idle */
    double latency; /* seconds */
    double bytes[LINKS];
    double seconds;  /* of ops */
    uint32_t *queue; /* instructions that were reached, in order */
    uint32_t first, n;
} lane;

typedef struct simulation {
    const shd_instr *instrs;
    uint32_t n;
    const shd_sim_cost *costs;
    double rate[LINKS]; /* 0: no limit */
    double now;
    uint32_t next; /* that the rank's thread will reach */
    lane lanes[SHD_LANE_COUNT];
    shd_sim_event *events; /* [n], by instruction */
    unsigned char *done;   /* [n] */
} simulation;

static int moves(const lane *l)
{
    return l->instr != NONE && l->latency <= 0 && (l->bytes[INSIDE] > 0 || l->bytes[BETWEEN] > 0);
}

static void begin(simulation *s, lane *l, uint32_t i)
{
    const shd_sim_cost *cost = &s->costs[i];
    l->instr = i;
    l->latency = cost->latency;
    l->bytes[INSIDE] = s->rate[INSIDE] > 0 ? cost->inside : 0;
    l->bytes[BETWEEN] = s->rate[BETWEEN] > 0 ? cost->between : 0;
    l->seconds = cost->seconds;
    s->events[i] = (shd_sim_event){i, s->instrs[i].lane, s->now, s->now};
}

/* Ends what has nothing left; 1 when it did. */
static int end(simulation *s, lane *l)
{
    if (l->instr == NONE || l->latency > 0 || moves(l) || l->seconds > 0) {
        return 0;
    }
    s->events[l->instr].end = s->now;
    s->done[l->instr] = 1;
    l->instr = NONE;
    return 1;
}

/* The rank's thread goes as far as it can at this moment; 1 when it went anywhere. */
static int reach(simulation *s)
{
    lane *own = &s->lanes[SHD_LANE_COMPUTE];
    if (own->instr != NONE || s->next == s->n) {
        return 0;
    }
    const uint32_t i = s->next;
    const shd_instr *instr = &s->instrs[i];
    if (shd_instr_waits(instr)) {
        if (!s->done[i]) { /* first time here */
            s->events[i] = (shd_sim_event){i, instr->lane, s->now, s->now};
            s->done[i] = 1;
        }
        if (!s->done[instr->waits_for]) {
            return 0;
        }
        s->events[i].end = s->now;
    } else if (instr->lane == SHD_LANE_COMPUTE) {
        begin(s, own, i);
    } else {
        lane *l = &s->lanes[instr->lane];
        l->queue[l->n++] = i;
    }
    s->next++;
    return 1;
}

/* Everything that happens without time going by. */
static void settle(simulation *s)
{
    for (int moved = 1; moved;) {
        moved = reach(s);
        for (int k = 0; k < SHD_LANE_COUNT; k++) {
            lane *l = &s->lanes[k];
            if (l->instr == NONE && l->first < l->n) {
                begin(s, l, l->queue[l->first++]);
                moved = 1;
            }
            moved |= end(s, l);
        }
    }
}

/* Bytes per second that a moving lane gets of a link. */
static double share(const simulation *s, int link)
{
    int users = 0;
    for (int k = 0; k < SHD_LANE_COUNT; k++) {
        users += moves(&s->lanes[k]) && s->lanes[k].bytes[link] > 0;
    }
    return users > 0 ? s->rate[link] / users : s->rate[link];
}

/* Until the first change. */
static double until_next(const simulation *s, const double rate[LINKS])
{
    double least = INFINITY;
    for (int k = 0; k < SHD_LANE_COUNT; k++) {
        const lane *l = &s->lanes[k];
        if (l->instr == NONE) {
            continue;
        }
        if (l->latency > 0) {
            least = fmin(least, l->latency);
        } else if (moves(l)) {
            for (int link = 0; link < LINKS; link++) {
                least = l->bytes[link] > 0 ? fmin(least, l->bytes[link] / rate[link]) : least;
            }
        } else {
            least = fmin(least, l->seconds);
        }
    }
    return least;
}

/* What is left of `amount` that goes at `rate`; rounding leaves nothing of what ends now. */
static double left(double amount, double rate, double dt)
{
    return amount / rate <= dt * (1 + 1e-12) ? 0 : amount - dt * rate;
}

static void advance(simulation *s)
{
    const double rate[LINKS] = {share(s, INSIDE), share(s, BETWEEN)};
    const double dt = until_next(s, rate);
    for (int k = 0; k < SHD_LANE_COUNT; k++) {
        lane *l = &s->lanes[k];
        if (l->instr == NONE) {
            continue;
        }
        if (l->latency > 0) {
            l->latency = left(l->latency, 1, dt);
        } else if (moves(l)) {
            for (int link = 0; link < LINKS; link++) {
                l->bytes[link] = l->bytes[link] > 0 ? left(l->bytes[link], rate[link], dt) : 0;
            }
        } else {
            l->seconds = left(l->seconds, 1, dt);
        }
    }
    s->now += dt;
}

static int busy(const simulation *s)
{
    for (int k = 0; k < SHD_LANE_COUNT; k++) {
        if (s->lanes[k].instr != NONE) {
            return 1;
        }
    }
    return 0;
}

static int by_begin(const void *a, const void *b)
{
    const shd_sim_event *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->instruction < y->instruction ? -1 : x->instruction > y->instruction;
}

shd_sim_result shd_simulate(const shd_instr *instrs, uint32_t n, const shd_sim_cost *costs,
                            const shd_sim_links *links, shd_sim_event *events)
{
    simulation s = {.instrs = instrs,
                    .n = n,
                    .costs = costs,
                    .rate = {links->inside, links->between},
                    .events = events != NULL ? events : shd_calloc(n, sizeof *events),
                    .done = shd_calloc(n, 1)};
    shd_sim_result result = {0};
    for (int k = 0; k < SHD_LANE_COUNT; k++) {
        s.lanes[k] = (lane){.instr = NONE, .queue = shd_calloc(n, sizeof(uint32_t))};
    }
    for (settle(&s); busy(&s); settle(&s)) {
        advance(&s);
    }
    for (uint32_t i = 0; i < n; i++) {
        result.compute += instrs[i].lane == SHD_LANE_COMPUTE ? costs[i].seconds : 0;
    }
    result.seconds = s.now;
    result.exposed = fmax(0, s.now - result.compute);
    for (int k = 0; k < SHD_LANE_COUNT; k++) {
        free(s.lanes[k].queue);
    }
    free(s.done);
    if (events != NULL) {
        qsort(events, n, sizeof *events, by_begin);
    } else {
        free(s.events);
    }
    return result;
}

double shd_sim_seconds(const shd_sim_cost *cost, const shd_sim_links *links)
{
    const double inside = links->inside > 0 ? cost->inside / links->inside : 0;
    const double between = links->between > 0 ? cost->between / links->between : 0;
    return cost->latency + fmax(inside, between) + cost->seconds;
}

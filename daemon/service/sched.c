#include "daemon/service/sched.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

/* Virtual time of one item at weight 1: divisible by 1..10, 12, 14, 15, 16, 18, 20, ... */
enum { ITEM = 5040 * 1000 };

struct shd_sched {
    uint32_t n_ranks;
    uint64_t turns;
    uint64_t *now;          /* [n_ranks] virtual time: start tag of the item last begun there */
    unsigned char *busy;    /* [n_ranks] */
    unsigned char *claimed; /* [n_ranks] scratch of one decision */
    shd_sched_entity *entities;
};

shd_sched *shd_sched_create(uint32_t n_ranks)
{
    shd_sched *sched = shd_calloc(1, sizeof(*sched));
    sched->n_ranks = n_ranks;
    sched->now = shd_calloc(n_ranks, sizeof(*sched->now));
    sched->busy = shd_calloc(n_ranks, 1);
    sched->claimed = shd_calloc(n_ranks, 1);
    return sched;
}

void shd_sched_free(shd_sched *sched)
{
    if (sched == NULL) {
        return;
    }
    free(sched->now);
    free(sched->busy);
    free(sched->claimed);
    free(sched);
}

void shd_sched_add(shd_sched *sched, shd_sched_entity *entity)
{
    entity->turn = ++sched->turns;
    entity->next = sched->entities;
    sched->entities = entity;
}

void shd_sched_remove(shd_sched *sched, shd_sched_entity *entity)
{
    shd_sched_entity **at = &sched->entities;
    while (*at != NULL && *at != entity) {
        at = &(*at)->next;
    }
    if (*at == entity) {
        *at = entity->next;
    }
}

/* Ranks that did not share an entity lately have drifted apart in virtual time; one that spans them
 * brings them to the latest of theirs, or it would wait for all that the slower ones lag behind. */
static uint64_t align(shd_sched *sched, const shd_sched_entity *entity)
{
    uint64_t latest = 0;
    for (uint32_t r = entity->first; r < entity->first + entity->n; r++) {
        latest = sched->now[r] > latest ? sched->now[r] : latest;
    }
    for (uint32_t r = entity->first; r < entity->first + entity->n; r++) {
        sched->now[r] = latest;
    }
    return latest;
}

static void set_start(shd_sched *sched, shd_sched_entity *entity)
{
    const uint64_t now = align(sched, entity);
    entity->start = entity->finish > now ? entity->finish : now;
}

void shd_sched_move(shd_sched *sched, shd_sched_entity *entity, uint32_t first, uint32_t n)
{
    if (entity->first == first && entity->n == n) {
        return;
    }
    entity->first = first;
    entity->n = n;
    if (entity->ready) {
        set_start(sched, entity);
    }
}

void shd_sched_set_ready(shd_sched *sched, shd_sched_entity *entity, int ready)
{
    if (ready && !entity->ready) {
        /* Time in which it had nothing to run is neither saved up nor owed. */
        set_start(sched, entity);
    }
    entity->ready = ready;
}

static int precedes(const shd_sched_entity *a, const shd_sched_entity *b)
{
    return a->start != b->start ? a->start < b->start : a->turn < b->turn;
}

/* The first by tag of the entities that wait and were not looked at in this decision: those that
 * come after `last`. */
static shd_sched_entity *first_after(const shd_sched *sched, const shd_sched_entity *last)
{
    shd_sched_entity *best = NULL;
    for (shd_sched_entity *e = sched->entities; e != NULL; e = e->next) {
        if (e->ready && !e->running && (last == NULL || precedes(last, e)) &&
            (best == NULL || precedes(e, best))) {
            best = e;
        }
    }
    return best;
}

static int ranks_free(const shd_sched *sched, const shd_sched_entity *entity)
{
    for (uint32_t r = entity->first; r < entity->first + entity->n; r++) {
        if (sched->busy[r] || sched->claimed[r]) {
            return 0;
        }
    }
    return 1;
}

shd_sched_entity *shd_sched_next(shd_sched *sched)
{
    memset(sched->claimed, 0, sched->n_ranks);
    for (shd_sched_entity *e = first_after(sched, NULL); e != NULL; e = first_after(sched, e)) {
        if (ranks_free(sched, e)) {
            for (uint32_t r = e->first; r < e->first + e->n; r++) {
                sched->busy[r] = 1;
                sched->now[r] = e->start > sched->now[r] ? e->start : sched->now[r];
            }
            e->running = 1;
            e->turn = ++sched->turns;
            e->finish = e->start + ITEM / e->weight;
            e->start = e->finish;
            return e;
        }
        memset(sched->claimed + e->first, 1, e->n);
    }
    return NULL;
}

void shd_sched_done(shd_sched *sched, shd_sched_entity *entity)
{
    entity->running = 0;
    memset(sched->busy + entity->first, 0, entity->n);
    if (entity->ready) {
        set_start(sched, entity);
    }
}

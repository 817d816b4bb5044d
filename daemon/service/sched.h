/* Whose turn it is: start-time fair queuing (Goyal, Vin & Cheng 1996) over ranks, one work item at
 * a time on a rank. Floor F5; pure data, one thread.
 *
 * An entity (a job) runs on a window of ranks and gets 1/weight of virtual time per item. Ready
 * entities are served in the order of their start tags. One that comes first but finds a rank busy
 * still claims its idle ranks, so narrow entities cannot starve a wide one; as claims are made in
 * one total order there is no deadlock. */
#ifndef SHD_DAEMON_SERVICE_SCHED_H
#define SHD_DAEMON_SERVICE_SCHED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_sched_entity {
    uint32_t first, n; /* ranks [first, first + n) */
    uint32_t weight;   /* 1..100 */
    int ready;         /* has an item to run */
    int running;       /* has an item on its ranks */
    uint64_t start;    /* tag of the next item */
    uint64_t finish;   /* tag after the last item */
    uint64_t turn;     /* when it was last served; of two equal tags the longer waiting is first */
    struct shd_sched_entity *next;
    void *owner;
} shd_sched_entity;

typedef struct shd_sched shd_sched;

shd_sched *shd_sched_create(uint32_t n_ranks);
void shd_sched_free(shd_sched *sched); /* NULL is fine; entities are borrowed */

/* first, n, weight and owner are set by the caller, the rest is zero. */
void shd_sched_add(shd_sched *sched, shd_sched_entity *entity);
void shd_sched_remove(shd_sched *sched, shd_sched_entity *entity); /* not while running */

/* Puts it on other ranks; not while running. */
void shd_sched_move(shd_sched *sched, shd_sched_entity *entity, uint32_t first, uint32_t n);

/* Says whether the entity has an item to run (also while one is running: the one after it). */
void shd_sched_set_ready(shd_sched *sched, shd_sched_entity *entity, int ready);

/* The next entity that may start an item now, marked as running on its ranks; NULL: none. */
shd_sched_entity *shd_sched_next(shd_sched *sched);

/* Its item ended. */
void shd_sched_done(shd_sched *sched, shd_sched_entity *entity);

#ifdef __cplusplus
}
#endif
#endif

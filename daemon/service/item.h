/* Work for the ranks of a job, and queues of it. Floor F5; loop thread. */
#ifndef SHD_DAEMON_SERVICE_ITEM_H
#define SHD_DAEMON_SERVICE_ITEM_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_job shd_job;

/* Embedded in what its submitter needs to remember. */
typedef struct shd_item {
    shd_work work;
    shd_job *job;
    struct shd_item *next;
    int withdrawn; /* nobody waits for it any more: it need not have its next turn */
    /* Exactly once: NULL when it was executed (results in `work`), else why not. The item is the
     * submitter's again. */
    void (*finish)(struct shd_item *item, const shd_error *failed);
} shd_item;

/* Host bytes of the item's batch. */
uint64_t shd_item_bytes(const shd_item *item);

/* First in, first out; all zero is an empty one. Items are borrowed. */
typedef struct shd_item_queue {
    shd_item *head, *tail;
    uint32_t n;
    uint64_t bytes; /* of their batches */
} shd_item_queue;

void shd_item_queue_push(shd_item_queue *queue, shd_item *item);
shd_item *shd_item_queue_pop(shd_item_queue *queue);                    /* NULL: empty */
int shd_item_queue_remove(shd_item_queue *queue, const shd_item *item); /* 0: not in it */

/* Empties the queue: every item finishes with `why`. */
void shd_item_queue_fail(shd_item_queue *queue, const shd_error *why);

#ifdef __cplusplus
}
#endif
#endif

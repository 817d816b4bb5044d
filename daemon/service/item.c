#include "daemon/service/item.h"

#include <string.h>

uint64_t shd_item_bytes(const shd_item *item)
{
    const shd_batch *batch = &item->work.batch;
    return (uint64_t)batch->sequences * batch->length * 2 * sizeof(int32_t);
}

void shd_item_queue_push(shd_item_queue *queue, shd_item *item)
{
    item->next = NULL;
    if (queue->tail != NULL) {
        queue->tail->next = item;
    } else {
        queue->head = item;
    }
    queue->tail = item;
    queue->n++;
    queue->bytes += shd_item_bytes(item);
}

shd_item *shd_item_queue_pop(shd_item_queue *queue)
{
    shd_item *item = queue->head;
    if (item != NULL) {
        queue->head = item->next;
        queue->tail = queue->head != NULL ? queue->tail : NULL;
        queue->n--;
        queue->bytes -= shd_item_bytes(item);
    }
    return item;
}

int shd_item_queue_remove(shd_item_queue *queue, const shd_item *item)
{
    shd_item *before = NULL;
    for (shd_item *i = queue->head; i != NULL; before = i, i = i->next) {
        if (i == item) {
            *(before != NULL ? &before->next : &queue->head) = i->next;
            queue->tail = queue->tail == i ? before : queue->tail;
            queue->n--;
            queue->bytes -= shd_item_bytes(item);
            return 1;
        }
    }
    return 0;
}

void shd_item_queue_fail(shd_item_queue *queue, const shd_error *why)
{
    /* What a finish function queues again must not be failed here once more. */
    shd_item_queue old = *queue;
    memset(queue, 0, sizeof(*queue));
    for (shd_item *item = shd_item_queue_pop(&old); item != NULL; item = shd_item_queue_pop(&old)) {
        item->finish(item, why);
    }
}

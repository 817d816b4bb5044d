#include "daemon/data/ids.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

static void ids_reserve(shd_ids *ids, size_t more)
{
    if (ids->n + more > ids->capacity) {
        ids->capacity = 2 * (ids->n + more) + 16;
        ids->items = shd_reallocarray(ids->items, ids->capacity, sizeof(*ids->items));
    }
}

void shd_ids_push(shd_ids *ids, int32_t id)
{
    ids_reserve(ids, 1);
    ids->items[ids->n++] = id;
}

void shd_ids_append(shd_ids *ids, const int32_t *items, size_t n)
{
    if (n > 0) {
        ids_reserve(ids, n);
        memcpy(ids->items + ids->n, items, n * sizeof(*items));
        ids->n += n;
    }
}

void shd_ids_fini(shd_ids *ids)
{
    free(ids->items);
    *ids = (shd_ids)SHD_IDS_INIT;
}

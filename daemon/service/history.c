#include "daemon/service/history.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

enum { CHUNK_EVENTS = 256 };

typedef struct chunk {
    uint32_t steps, states; /* step results and state changes among the events */
    shd_event events[CHUNK_EVENTS];
} chunk;

/* A ring of chunks: dropping the oldest moves nothing. */
struct shd_history {
    uint64_t max_steps;
    uint64_t steps, states; /* step results and state changes kept */
    uint64_t end;           /* index of the next event */
    uint64_t first_chunk;   /* number of the oldest chunk: event i is in chunk i / CHUNK_EVENTS */
    uint64_t n_chunks;
    uint64_t capacity;     /* a power of two */
    chunk **chunks;        /* chunk number c at c % capacity */
    uint64_t dropped_step; /* step of the last event dropped; of interest when first_chunk > 0 */
};

shd_history *shd_history_create(uint64_t max_steps)
{
    shd_history *history = shd_calloc(1, sizeof(*history));
    history->max_steps = max_steps != 0 ? max_steps : 1;
    history->capacity = 4;
    history->chunks = shd_calloc(history->capacity, sizeof(*history->chunks));
    return history;
}

static chunk **slot(const shd_history *history, uint64_t number)
{
    return &history->chunks[number & (history->capacity - 1)];
}

static void chunk_free(chunk *c, uint32_t used)
{
    for (uint32_t i = 0; i < used; i++) {
        if (c->events[i].kind == SHD_EVENT_STATE) {
            free(c->events[i].change.reason);
        }
    }
    free(c);
}

void shd_history_free(shd_history *history)
{
    if (history == NULL) {
        return;
    }
    for (uint64_t i = 0; i < history->n_chunks; i++) {
        const uint64_t number = history->first_chunk + i;
        const uint64_t base = number * CHUNK_EVENTS;
        const uint64_t used =
            history->end - base < CHUNK_EVENTS ? history->end - base : CHUNK_EVENTS;
        chunk_free(*slot(history, number), (uint32_t)used);
    }
    free(history->chunks);
    free(history);
}

static void add_chunk(shd_history *history)
{
    if (history->n_chunks == history->capacity) {
        const uint64_t old = history->capacity;
        chunk **bigger = shd_calloc(old * 2, sizeof(*bigger));
        for (uint64_t i = 0; i < old; i++) {
            const uint64_t number = history->first_chunk + i;
            bigger[number & (old * 2 - 1)] = *slot(history, number);
        }
        free(history->chunks);
        history->chunks = bigger;
        history->capacity = old * 2;
    }
    chunk *c = shd_malloc(sizeof(*c));
    c->steps = c->states = 0;
    *slot(history, history->first_chunk + history->n_chunks) = c;
    history->n_chunks++;
}

/* Drops whole chunks, so up to one chunk more than the limits is kept. */
static void trim(shd_history *history)
{
    while (history->n_chunks > 1) {
        chunk *oldest = *slot(history, history->first_chunk);
        if (history->steps - oldest->steps < history->max_steps &&
            history->states <= SHD_HISTORY_STATES) {
            return;
        }
        history->steps -= oldest->steps;
        history->states -= oldest->states;
        history->dropped_step = oldest->events[CHUNK_EVENTS - 1].step;
        chunk_free(oldest, CHUNK_EVENTS);
        history->first_chunk++;
        history->n_chunks--;
    }
}

void shd_history_append(shd_history *history, const shd_event *event)
{
    const uint64_t place = history->end % CHUNK_EVENTS;
    if (place == 0) {
        add_chunk(history);
    }
    chunk *c = *slot(history, history->end / CHUNK_EVENTS);
    c->events[place] = *event;
    if (event->kind == SHD_EVENT_STATE && event->change.reason != NULL) {
        c->events[place].change.reason = shd_strdup(event->change.reason);
    }
    if (event->kind == SHD_EVENT_STEP) {
        c->steps++;
        history->steps++;
    } else if (event->kind == SHD_EVENT_STATE) {
        c->states++;
        history->states++;
    }
    history->end++;
    trim(history);
}

uint64_t shd_history_first(const shd_history *history)
{
    return history->first_chunk * CHUNK_EVENTS;
}

uint64_t shd_history_end(const shd_history *history)
{
    return history->end;
}

const shd_event *shd_history_get(const shd_history *history, uint64_t index)
{
    assert(index >= shd_history_first(history) && index < history->end);
    return &(*slot(history, index / CHUNK_EVENTS))->events[index % CHUNK_EVENTS];
}

int shd_history_seek(const shd_history *history, uint64_t step, uint64_t *index, shd_error *err)
{
    if (history->first_chunk > 0 && step <= history->dropped_step) {
        return shd_fail(err, SHD_ENOTFOUND,
                        "events of step %llu are no longer kept; the first step kept is %llu",
                        (unsigned long long)step, (unsigned long long)history->dropped_step + 1);
    }
    uint64_t low = shd_history_first(history), high = history->end;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (shd_history_get(history, middle)->step < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *index = low;
    return SHD_OK;
}

uint64_t shd_history_bytes(const shd_history *history)
{
    return sizeof(*history) + history->capacity * sizeof(*history->chunks) +
           history->n_chunks * sizeof(chunk);
}

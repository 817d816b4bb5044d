/* The events of one job, in order, kept compactly: step results, evaluations, state changes. A
 * watcher is a position in it, so any number of them costs nothing. Floor F5; one thread. */
#ifndef SHD_DAEMON_SERVICE_HISTORY_H
#define SHD_DAEMON_SERVICE_HISTORY_H

#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum shd_event_kind { SHD_EVENT_STEP = 0, SHD_EVENT_EVAL, SHD_EVENT_STATE } shd_event_kind;

/* 80 bytes; the meaning of the fields is that of the messages in proto/shard.proto. */
typedef struct shd_event {
    uint64_t step;
    uint8_t kind; /* shd_event_kind */
    uint8_t skipped;
    uint8_t state; /* number of the JobState in the service definition */
    union {
        struct {
            double loss, grad_norm, lr, step_ms, loss_scale, unix_time;
            uint64_t tokens, samples;
        } result;
        struct {
            double loss, ms, unix_time;
            uint64_t tokens;
        } eval;
        struct {
            double unix_time;
            char *reason; /* owned by the history; NULL: none */
        } change;
    };
} shd_event;

typedef struct shd_history shd_history;

/* State changes kept: whoever pauses and resumes a job without end does not take memory without
 * end. */
#define SHD_HISTORY_STATES 65536u

/* Keeps the last `max_steps` step results (>= 1) and everything between them, but no more than
 * SHD_HISTORY_STATES state changes. */
shd_history *shd_history_create(uint64_t max_steps);
void shd_history_free(shd_history *history); /* NULL is fine */

/* Appends a copy; `step` must not be below the last one's. A state change's reason is copied. */
void shd_history_append(shd_history *history, const shd_event *event);

/* Events have the indices [first, end); first grows when old ones are dropped. */
uint64_t shd_history_first(const shd_history *history);
uint64_t shd_history_end(const shd_history *history);

/* Event of an index in [first, end). Valid until the next append. */
const shd_event *shd_history_get(const shd_history *history, uint64_t index);

/* *index: the first event with event.step >= step; end when there is none yet. SHD_ENOTFOUND when
 * such events have been dropped already (names the first step that is wholly kept). */
int shd_history_seek(const shd_history *history, uint64_t step, uint64_t *index, shd_error *err);

/* Bytes in use. */
uint64_t shd_history_bytes(const shd_history *history);

#ifdef __cplusplus
}
#endif
#endif

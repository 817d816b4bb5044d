/* The answers to a job's last client-driven calls, by sequence number, so that a call that is sent
 * again gets the answer it missed and is not executed twice. Floor F5; one thread. */
#ifndef SHD_DAEMON_SERVICE_ANSWERS_H
#define SHD_DAEMON_SERVICE_ANSWERS_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_answer {
    uint64_t seq;
    int kind;      /* what the call was; the caller's numbers */
    int rc;        /* 0, or the error that was answered */
    char *error;   /* owned; its message, NULL when rc is 0 */
    uint8_t *data; /* owned; the packed response, NULL when rc is not 0 */
    size_t size;
} shd_answer;

typedef struct shd_answers shd_answers;

/* Keeps the last `count` answers (>= 1), and fewer while they exceed `max_bytes` together (but
 * always the latest). */
shd_answers *shd_answers_create(uint32_t count, size_t max_bytes);
void shd_answers_free(shd_answers *answers); /* NULL is fine */

/* Stores the answer of `seq`, which must be one more than the last one's (or the first). Takes over
 * `data` (from malloc, may be NULL); copies the message of `failed` (NULL: success). */
void shd_answers_put(shd_answers *answers, uint64_t seq, int kind, const shd_error *failed,
                     uint8_t *data, size_t size);

/* NULL when it is not (or no longer) there. Valid until the next put. */
const shd_answer *shd_answers_get(const shd_answers *answers, uint64_t seq);

/* The oldest and the latest sequence number that is kept; 0: none. */
uint64_t shd_answers_oldest(const shd_answers *answers);
uint64_t shd_answers_latest(const shd_answers *answers);

#ifdef __cplusplus
}
#endif
#endif

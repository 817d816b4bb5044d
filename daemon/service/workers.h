/* Threads beside the loop for what would hold it up: at most so many tasks at one time, and of one
 * user fewer, so that whoever's tasks are slow, or never end, keeps nobody else from the rest.
 * Waiting tasks have their turns in order of arrival, as far as their user's share allows. Floor
 * F5; loop thread, `run` on a thread of these. */
#ifndef SHD_DAEMON_SERVICE_WORKERS_H
#define SHD_DAEMON_SERVICE_WORKERS_H

#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Embedded in what its submitter needs to remember; all zero but for the first three. */
typedef struct shd_task {
    void (*run)(struct shd_task *task);  /* on a thread */
    void (*done)(struct shd_task *task); /* then, on the loop; the task is the submitter's again */
    uid_t uid;                           /* whose share it takes */
    int cancel; /* made 1 (relaxed) by the submitter or shd_workers_cancel: `run` should end */
    struct shd_task *next;
} shd_task;

typedef struct shd_workers shd_workers;

/* `most` tasks at one time, `of_user` of one user. Threads are made when they are needed. SHD_EIO.
 */
int shd_workers_create(uv_loop_t *loop, uint32_t most, uint32_t of_user, shd_workers **out,
                       shd_error *err);
/* Nothing may wait or run. The loop must run once more so that its handle closes. NULL is fine. */
void shd_workers_free(shd_workers *workers);

void shd_workers_run(shd_workers *workers, shd_task *task);

/* The user's tasks that wait or run. */
uint32_t shd_workers_tasks(const shd_workers *workers, uid_t uid);

/* Tells everything that waits or runs to end soon. */
void shd_workers_cancel(shd_workers *workers);

#ifdef __cplusplus
}
#endif
#endif

/* Plans for machines that are stated instead of this daemon, and advice on strategies. Made on a
 * thread beside the loop (workers.h). Floor F5; loop thread.
 *
 * What this daemon itself would take of a job is asked of admission.h. */
#ifndef SHD_DAEMON_SERVICE_PLANNING_H
#define SHD_DAEMON_SERVICE_PLANNING_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/service/auth.h"
#include "daemon/service/jobs.h"
#include "daemon/train/advise.h"
#include "daemon/train/plan.h"
#include "daemon/train/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_planning {
    /* Valid in `done`. */
    int rc; /* not 0: the spec or the machine is wrong, or a file cannot be used; see err */
    shd_error err;
    shd_spec spec;
    shd_machine machine;
    shd_plan plan;
    shd_estimate estimate; /* zero when the machine's rates are not known */
    shd_advice *advice;    /* [n_advice]; owned; only when asked for */
    uint32_t n_advice;
    int stated;          /* the machine was; else it is this daemon */
    uint32_t first_rank; /* of this daemon; 0 when it is not */
    uint64_t available;  /* bytes of a rank; 0: not stated */
    int fits;            /* or nobody can tell */
    char verdict[SHD_ERROR_MESSAGE_MAX + 256];
    void *arg;
} shd_planning;

/* Starts; `done` runs on the loop, later, and frees the planning. `request` is copied; no file but
 * the model's configuration is opened, with the rights of `who`: a directory's config.json, or the
 * file that the path names. SHD_EFULL when too many of the user are under way. */
int shd_planning_start(shd_jobs *jobs, const shd_identity *who,
                       const Shard__V1__PlanRequest *request, void (*done)(shd_planning *planning),
                       void *arg, shd_error *err);
void shd_planning_free(shd_planning *planning); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif

/* Admission: from a caller's spec to a plan, open files, a place on the ranks, and a verdict with
 * the numbers. Files are opened and plans made on threads beside the loop (workers.h), where every
 * user has a share. Floor F5; loop thread. */
#ifndef SHD_DAEMON_SERVICE_ADMISSION_H
#define SHD_DAEMON_SERVICE_ADMISSION_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/service/auth.h"
#include "daemon/service/job_data.h"
#include "daemon/service/model_files.h"
#include "daemon/train/plan.h"
#include "daemon/train/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_jobs shd_jobs;

typedef struct shd_admission {
    /* Valid in `done`. */
    int rc; /* SHD_ENOMEM when the job does not fit (then spec, plan and figures are valid too);
               another error when the spec is wrong or a file cannot be used */
    shd_error err;
    shd_identity who;
    shd_spec spec;
    shd_plan plan;
    uint64_t needs;      /* bytes on each of its ranks */
    uint32_t first_rank; /* the place on the ranks: [first_rank, first_rank + world) */
    uint64_t available;  /* bytes free on the fullest of them */
    char verdict[SHD_ERROR_MESSAGE_MAX]; /* one sentence */
    shd_job_data files;
    shd_model_files *model; /* a reference; NULL after a failure that came before it */
    char owner[33];         /* user name, or the number */
    void *arg;
} shd_admission;

/* Starts; `done` runs on the loop, later, and frees the admission. `message` is copied. With
 * `open_files` the data files are opened with the rights of `who`; without, they need not exist.
 * SHD_EFULL when too many of the user are under way. */
int shd_admission_start(shd_jobs *jobs, const shd_identity *who, const Shard__V1__JobSpec *message,
                        int open_files, void (*done)(shd_admission *admission), void *arg,
                        shd_error *err);

/* Frees what is still in it: set a member that was taken over to NULL or zero. */
void shd_admission_free(shd_admission *admission);

#ifdef __cplusplus
}
#endif
#endif

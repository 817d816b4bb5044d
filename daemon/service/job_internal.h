/* What the two halves of a job share: job.c (its life) and job_work.c (its work). Floor F5. */
#ifndef SHD_DAEMON_SERVICE_JOB_INTERNAL_H
#define SHD_DAEMON_SERVICE_JOB_INTERNAL_H

#include "daemon/service/job.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STATE(name) SHARD__V1__JOB_STATE__JOB_STATE_##name

/* Enters a state: event, log line, observers. */
void shd_job_set_state(shd_job *job, Shard__V1__JobState state, int code, const char *reason);

/* The time of day in seconds, for events. */
double shd_job_now(void);

/* Tells the observers that there are new events. */
void shd_job_notify(shd_job *job);

/* Does the item advance the training (a step, an evaluation, a call of the client that drives)? */
int shd_job_is_training(const shd_job *job, const shd_item *item);

/* Ends a job whose memory goes, as FAILED or CANCELLED: aborts what runs, fails what waits. The
 * caller settles. */
void shd_job_end(shd_job *job, Shard__V1__JobState state, int code, const char *reason);

/* Gives the files to the trainer, or to the preparer first; takes them over. */
int shd_job_prepare(shd_job *job, shd_job_data *files, shd_error *err);
int shd_job_preparing(const shd_job *job);
/* Gives up what is still being prepared. */
void shd_job_prepare_end(shd_job *job);

/* Brings to an end what had to wait for the running item. 0: the job is gone. */
int shd_job_settle(shd_job *job);

#ifdef __cplusplus
}
#endif
#endif

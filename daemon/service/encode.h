/* Jobs, events and plans as messages of the service. Floor F5; loop thread.
 *
 * What is returned lives in the scratch memory and borrows text and specs from the job: pack it
 * before either changes. */
#ifndef SHD_DAEMON_SERVICE_ENCODE_H
#define SHD_DAEMON_SERVICE_ENCODE_H

#include "daemon/service/history.h"
#include "daemon/service/job.h"
#include "daemon/service/scratch.h"
#include "proto/shard.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

Shard__V1__Job *shd_encode_job(const shd_job *job, shd_scratch *scratch);

/* The step result of an event of kind SHD_EVENT_STEP. */
Shard__V1__StepResult *shd_encode_step(const shd_event *event, shd_scratch *scratch);

Shard__V1__Event *shd_encode_event(const shd_event *event, uint64_t index, shd_scratch *scratch);

Shard__V1__JobStatus *shd_encode_status(const shd_job *job, shd_scratch *scratch);

/* p, g, o, W of a strategy; *n is 4. */
uint32_t *shd_encode_degrees(const shd_strategy *strategy, size_t *n, shd_scratch *scratch);

/* Fills the tables of a plan response: memory of the first `ranks` ranks of a job that begins at
 * daemon rank `first_rank`, and communication of one step. */
void shd_encode_plan(const shd_spec *spec, const shd_plan *plan, uint32_t first_rank,
                     uint32_t ranks, Shard__V1__PlanResponse *out, shd_scratch *scratch);

#ifdef __cplusplus
}
#endif
#endif

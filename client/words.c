#include "client/words.h"

const char *shc_state_name(Shard__V1__JobState state)
{
    switch (state) {
    case SHARD__V1__JOB_STATE__JOB_STATE_QUEUED:
        return "queued";
    case SHARD__V1__JOB_STATE__JOB_STATE_RUNNING:
        return "running";
    case SHARD__V1__JOB_STATE__JOB_STATE_PAUSED:
        return "paused";
    case SHARD__V1__JOB_STATE__JOB_STATE_DONE:
        return "done";
    case SHARD__V1__JOB_STATE__JOB_STATE_FAILED:
        return "failed";
    case SHARD__V1__JOB_STATE__JOB_STATE_CANCELLED:
        return "cancelled";
    default:
        return "unknown";
    }
}

int shc_state_final(Shard__V1__JobState state)
{
    return state == SHARD__V1__JOB_STATE__JOB_STATE_DONE ||
           state == SHARD__V1__JOB_STATE__JOB_STATE_FAILED ||
           state == SHARD__V1__JOB_STATE__JOB_STATE_CANCELLED;
}

const char *shc_job_name(const Shard__V1__Job *job)
{
    return job->spec && *job->spec->name ? job->spec->name : job->id;
}

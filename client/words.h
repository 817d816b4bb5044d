/* Words for jobs and their states. Pure. */
#ifndef SHD_CLIENT_WORDS_H
#define SHD_CLIENT_WORDS_H

#include "proto/shard.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "queued", "running", ... */
const char *shc_state_name(Shard__V1__JobState state);
/* Done, failed or cancelled: no step will follow. */
int shc_state_final(Shard__V1__JobState state);
/* The job's name, or its id when it has none. */
const char *shc_job_name(const Shard__V1__Job *job);

#ifdef __cplusplus
}
#endif
#endif

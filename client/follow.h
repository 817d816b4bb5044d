/* Follows a job on standard output: its steps, evaluations and states, to the end or until Ctrl-C,
 * over broken connections without a gap. Main thread. */
#ifndef SHD_CLIENT_FOLLOW_H
#define SHD_CLIENT_FOLLOW_H

#include "client/cmd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* job: as the daemon gave it last. has_from: begin with step `from` of the history; else with its
 * latest step. Gives the exit status: done or detached 0, failed or cancelled 1. */
int shc_follow(shc_env *env, const Shard__V1__Job *job, int has_from, uint64_t from);

#ifdef __cplusplus
}
#endif
#endif

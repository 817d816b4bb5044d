/* Commands whose only argument is JOB. */
#ifndef SHD_CLIENT_JOB_ARG_H
#define SHD_CLIENT_JOB_ARG_H

#include "client/cmd.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shc_job_args {
    char *job;
} shc_job_args;

#define SHC_JOB_OPERAND(args_type)                                                                 \
    {                                                                                              \
        "JOB", offsetof(args_type, job), 1                                                         \
    }

/* Connects and asks for the job. 0, or the exit status after having complained. Owned by the
 * caller. */
int shc_find_job(shc_env *env, char *name, Shard__V1__Job **out);

/* Connects, makes the call, says in which state the job is now; gives the exit status. */
int shc_change_job(shc_env *env, char *name,
                   int (*call)(shc_client *, const Shard__V1__JobRef *, Shard__V1__Job **,
                               shc_error *));

/* One line, or one JSON object, about the job. */
void shc_show_job(shc_env *env, const Shard__V1__Job *job);

#ifdef __cplusplus
}
#endif
#endif

/* shardctl pause. */
#include "client/job_arg.h"

static int run(shc_env *env, void *args)
{
    return shc_change_job(env, ((shc_job_args *)args)->job, shc_pause_job);
}

const shc_command shc_cmd_pause = {
    .syntax =
        {
            .name = "pause",
            .about = "Stops a job after its running step; its memory stays. shardctl resume lets "
                     "it go on.",
            .operands = {SHC_JOB_OPERAND(shc_job_args)},
        },
    .summary = "stop a job after its running step",
    .args_size = sizeof(shc_job_args),
    .run = run,
};

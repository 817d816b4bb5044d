/* shardctl cancel. */
#include "client/job_arg.h"

static int run(shc_env *env, void *args)
{
    return shc_change_job(env, ((shc_job_args *)args)->job, shc_cancel_job);
}

const shc_command shc_cmd_cancel = {
    .syntax =
        {
            .name = "cancel",
            .about = "Ends a job after its running step and frees its memory. Its history stays "
                     "until shardctl delete.",
            .operands = {SHC_JOB_OPERAND(shc_job_args)},
        },
    .summary = "end a job and free its memory",
    .args_size = sizeof(shc_job_args),
    .run = run,
};

/* shardctl resume. */
#include "client/job_arg.h"

static int run(shc_env *env, void *args)
{
    return shc_change_job(env, ((shc_job_args *)args)->job, shc_resume_job);
}

const shc_command shc_cmd_resume = {
    .syntax =
        {
            .name = "resume",
            .about = "Lets a paused job go on.",
            .operands = {SHC_JOB_OPERAND(shc_job_args)},
        },
    .summary = "let a paused job go on",
    .args_size = sizeof(shc_job_args),
    .run = run,
};

/* shardctl attach: follows a job that exists. */
#include "client/follow.h"
#include "client/job_arg.h"

typedef struct attach_args {
    char *job;
    int has_from;
    uint64_t from;
} attach_args;

static const shc_option options[] = {
    {.name = "from",
     .value = "STEP",
     .type = SHC_U64,
     .at = offsetof(attach_args, from),
     .has = offsetof(attach_args, has_from),
     .mark = 1,
     .help = "show the history from this step first; default: its latest step"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

static int run(shc_env *env, void *arguments)
{
    const attach_args *args = arguments;
    Shard__V1__Job *job;
    int rc = shc_find_job(env, args->job, &job);

    if (rc)
        return rc;
    rc = shc_follow(env, job, args->has_from, args->from);
    shard__v1__job__free_unpacked(job, NULL);
    return rc;
}

const shc_command shc_cmd_attach = {
    .syntax =
        {
            .name = "attach",
            .about = "Shows the progress of a job until it ends. Ctrl-C detaches: the job goes on.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(attach_args)},
        },
    .summary = "show the progress of a job",
    .args_size = sizeof(attach_args),
    .run = run,
};

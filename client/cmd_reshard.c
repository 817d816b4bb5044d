/* shardctl reshard. */
#include "client/job_arg.h"

typedef struct reshard_args {
    char *job;
    char *strategy;
    uint32_t ranks;
} reshard_args;

static const shc_option options[] = {
    {.name = "strategy",
     .value = "NAME",
     .type = SHC_TEXT,
     .at = offsetof(reshard_args, strategy),
     .help = "ddp, zero1, zero2, zero3; default: as it is"},
    {.name = "ranks",
     .value = "N",
     .type = SHC_U32,
     .at = offsetof(reshard_args, ranks),
     .min = 1,
     .help = "world size; default: as it is"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

static int run(shc_env *env, void *arguments)
{
    const reshard_args *args = arguments;
    Shard__V1__ReshardRequest request = SHARD__V1__RESHARD_REQUEST__INIT;
    Shard__V1__Job *job;
    shc_error err;
    int rc;

    if (!args->strategy && !args->ranks)
        return shc_usage("nothing to change; give --strategy NAME or --ranks N");
    if ((rc = shc_env_connect(env)))
        return rc;
    request.job = args->job;
    if (args->strategy)
        request.strategy = args->strategy;
    request.ranks = args->ranks;
    shc_set_timeout(env->client, 0);
    if (shc_reshard(env->client, &request, &job, &err))
        return shc_complain(&err);
    shc_show_job(env, job);
    shard__v1__job__free_unpacked(job, NULL);
    return SHC_EXIT_DONE;
}

const shc_command shc_cmd_reshard = {
    .syntax =
        {
            .name = "reshard",
            .about = "Changes how the state of a living job is cut, and over how many ranks.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(reshard_args)},
        },
    .summary = "change strategy or ranks of a living job",
    .args_size = sizeof(reshard_args),
    .run = run,
};

/* shardctl reshard. */
#include <inttypes.h>

#include "client/job_arg.h"
#include "client/units.h"
#include "client/view.h"

typedef struct reshard_args {
    char *job;
    Shard__V1__ReshardRequest request;
} reshard_args;

#define AT(field) offsetof(reshard_args, request.field)

static const shc_option options[] = {
    {.name = "strategy",
     .value = "NAME",
     .type = SHC_TEXT,
     .at = AT(strategy),
     .help = "as for submit; default: as status shows it (on one rank everything is ddp)"},
    {.name = "ranks",
     .value = "N",
     .type = SHC_U32,
     .at = AT(ranks),
     .min = 1,
     .help = "world size; default: as it is. --global-batch stays, and must be a multiple of ranks "
             "x micro-batch"},
    {.name = "shard-degrees",
     .value = "P,G,O",
     .type = SHC_U32_LIST,
     .at = AT(shard_degrees),
     .has = AT(n_shard_degrees),
     .min = 1,
     .max = 3,
     .help = "instead of --strategy"},
    {.name = "shard-group",
     .value = "K",
     .type = SHC_U32,
     .at = AT(shard_group),
     .has = AT(has_shard_group_case),
     .mark = SHARD__V1__RESHARD_REQUEST__HAS_SHARD_GROUP_SHARD_GROUP,
     .min = 1,
     .help = "hybrid_shard, mics, hybrid_shard_zero2, hpz, megatron: ranks that share one copy of "
             "the parameters"},
    {.name = "reshard-after-forward",
     .value = "yes|no|N",
     .type = SHC_TEXT,
     .at = AT(reshard_after_forward),
     .help = "what becomes of gathered parameters until backward"},
    {.name = "micro-batch",
     .value = "N",
     .type = SHC_U32,
     .at = AT(micro_batch),
     .has = AT(has_micro_batch_case),
     .mark = SHARD__V1__RESHARD_REQUEST__HAS_MICRO_BATCH_MICRO_BATCH,
     .min = 1,
     .help = "sequences per rank and accumulation step; another one sums gradients in another "
             "order"},
    {.name = "determinism",
     .value = "LEVEL",
     .type = SHC_TEXT,
     .at = AT(determinism),
     .help = "run, strategy, world; under world the same bits go on over any power of two of "
             "ranks, and no other number is taken"},
    {.name = "reduction-width",
     .value = "N",
     .type = SHC_U32,
     .at = AT(reduction_width),
     .has = AT(has_reduction_width_case),
     .mark = SHARD__V1__RESHARD_REQUEST__HAS_REDUCTION_WIDTH_REDUCTION_WIDTH,
     .min = 1,
     .help = "world: micro-batches that are summed as one tree; default: as it is"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

/* Fields that no flag has set; the message's own beginning is that of a parsed one. */
static void complete(reshard_args *args)
{
    const Shard__V1__ReshardRequest empty = SHARD__V1__RESHARD_REQUEST__INIT;
    Shard__V1__ReshardRequest *q = &args->request;

    q->base = empty.base;
    q->job = args->job;
    if (!q->strategy)
        q->strategy = empty.strategy;
    if (!q->reshard_after_forward)
        q->reshard_after_forward = empty.reshard_after_forward;
    if (!q->determinism)
        q->determinism = empty.determinism;
}

/* "run: zero3 p,g,o 4,4,4 of 4 ranks from step 12 on". */
static void show(const Shard__V1__Job *job)
{
    shc_buf line = {0}, how = {0};

    shc_text_clean(&line, shc_job_name(job));
    shc_buf_printf(&line, ": %s from step %" PRIu64 " on\n",
                   shc_view_degrees(&how, job->spec ? job->spec->strategy : "", job->degrees,
                                    job->n_degrees,
                                    job->spec ? job->spec->reshard_after_forward : "", ""),
                   job->step);
    shc_buf_flush(&line, stdout);
    shc_buf_fini(&line);
    shc_buf_fini(&how);
}

static int run(shc_env *env, void *arguments)
{
    reshard_args *args = arguments;
    const Shard__V1__ReshardRequest *q = &args->request;
    Shard__V1__Job *job;
    shc_error err;
    int rc;

    if (!q->strategy && !q->ranks && !q->n_shard_degrees && !q->has_shard_group_case &&
        !q->reshard_after_forward && !q->has_micro_batch_case && !q->determinism &&
        !q->has_reduction_width_case)
        return shc_usage("nothing to change; give --strategy NAME or --ranks N");
    complete(args);
    if ((rc = shc_env_connect(env)))
        return rc;
    shc_set_timeout(env->client, 0);
    if (shc_reshard(env->client, q, &job, &err))
        return shc_complain(&err);
    if (env->json)
        shc_show_job(env, job);
    else
        show(job);
    shard__v1__job__free_unpacked(job, NULL);
    return SHC_EXIT_DONE;
}

const shc_command shc_cmd_reshard = {
    .syntax =
        {
            .name = "reshard",
            .about = "Changes how the state of a living job is cut, and over how many ranks, in "
                     "memory between two of its steps, which go on as if nothing had happened. "
                     "Waits until it is done. Both the old and the new parts must fit beside each "
                     "other; what fails leaves the job as it was. Also for a job that is paused or "
                     "done.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(reshard_args)},
        },
    .summary = "change strategy or ranks of a living job",
    .args_size = sizeof(reshard_args),
    .run = run,
};

/* shardctl plan: what a job would take, without making it, here or on a machine that is stated. */
#include <stdlib.h>

#include "client/cmd.h"
#include "client/plan_view.h"
#include "client/spec_options.h"

typedef struct plan_args {
    shc_spec_args spec; /* first: its table has base 0 */
    uint32_t world;     /* 0: not given */
    Shard__V1__Machine machine;
    int advise;
} plan_args;

#define AT(field) offsetof(plan_args, machine.field)

static const shc_option options[] = {
    {.name = "world",
     .value = "N",
     .type = SHC_U32,
     .at = offsetof(plan_args, world),
     .min = 1,
     .help = "plan for this many ranks of another machine than the daemon's, up to 16384; so do "
             "the flags below but --advise"},
    {.name = "ranks-per-node",
     .value = "N",
     .type = SHC_U32,
     .at = AT(ranks_per_node),
     .min = 1,
     .help = "consecutive ranks on one node; default: all of them"},
    {.name = "device-memory",
     .value = "SIZE",
     .type = SHC_SIZE,
     .at = AT(device_memory),
     .min = 1,
     .help = "of a rank, such as 80G (powers of 1000) or 80GiB; without it: only what is needed"},
    {.name = "flops",
     .value = "RATE",
     .type = SHC_RATE,
     .at = AT(flops),
     .help = "of a rank per second in the compute dtype, such as 400T: estimates the time of a "
             "step; needs the bandwidths that there are"},
    {.name = "memory-bandwidth",
     .value = "RATE",
     .type = SHC_RATE,
     .at = AT(memory_bandwidth),
     .help = "bytes per second of a rank's memory, such as 3.35T; default: no limit"},
    {.name = "node-bandwidth",
     .value = "RATE",
     .type = SHC_RATE,
     .at = AT(node_bandwidth),
     .help = "bytes per second that a rank sends to others of its node, such as 450G"},
    {.name = "net-bandwidth",
     .value = "RATE",
     .type = SHC_RATE,
     .at = AT(net_bandwidth),
     .help = "bytes per second that a rank sends to other nodes, such as 50G"},
    {.name = "node-latency",
     .value = "TIME",
     .type = SHC_SECONDS,
     .at = AT(node_latency),
     .help = "of a collective, for every doubling of its ranks in a node, such as 2us; default 0"},
    {.name = "net-latency",
     .value = "TIME",
     .type = SHC_SECONDS,
     .at = AT(net_latency),
     .help = "of a collective, for every doubling of its nodes, such as 5us; default 0"},
    {.name = "advise",
     .type = SHC_BOOL,
     .at = offsetof(plan_args, advise),
     .help = "list the strategies that fit, the cheapest first"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};
enum { ADVISE = sizeof options / sizeof *options - 1 };

static void init(void *arguments)
{
    plan_args *args = arguments;

    shc_spec_init(&args->spec);
    shard__v1__machine__init(&args->machine);
}

/* Any flag of the table but --advise. */
static int machine_given(const unsigned char *given)
{
    for (size_t i = 0; i < ADVISE; i++)
        if (given[i])
            return 1;
    return 0;
}

/* --world says --ranks. */
static int take_world(plan_args *args)
{
    Shard__V1__JobSpec *spec = &args->spec.spec;

    if (!args->world)
        return 0;
    if (spec->has_ranks_case && spec->ranks != args->world)
        return shc_usage("--world %u and --ranks %u were both given and differ; give one",
                         args->world, spec->ranks);
    spec->has_ranks_case = SHARD__V1__JOB_SPEC__HAS_RANKS_RANKS;
    spec->ranks = args->world;
    return 0;
}

static int run(shc_env *env, void *arguments)
{
    plan_args *args = arguments;
    Shard__V1__PlanRequest request = SHARD__V1__PLAN_REQUEST__INIT;
    Shard__V1__PlanResponse *plan;
    shc_buf text = {0};
    shc_error err;
    int rc;

    rc = shc_spec_read_file(&args->spec, env->given.flags[0], &env->keep, &text);
    if (rc)
        rc = shc_usage("%s", shc_buf_str(&text));
    shc_buf_fini(&text);
    if (rc || (rc = take_world(args)))
        return rc;
    if (!*args->spec.spec.model)
        return shc_usage("--model is missing; give --model MODEL, for example gpt-byte-1m");
    if ((rc = shc_env_connect(env)))
        return rc;
    const shc_plan_asked asked = {
        .strategy = args->spec.spec.strategy,
        .machine = machine_given(env->given.flags[1]) ? &args->machine : NULL,
    };
    request.spec = &args->spec.spec;
    request.machine = (Shard__V1__Machine *)asked.machine;
    request.advise = args->advise;
    if (shc_plan(env->client, &request, &plan, &err))
        return shc_complain(&err);
    if (env->json) {
        shc_json json = {0};
        shc_plan_json(&json, plan, &asked);
        shc_json_line(&json, stdout);
        shc_json_fini(&json);
    } else {
        shc_plan_render(&text, &env->term, plan, &asked);
        shc_buf_flush(&text, stdout);
        shc_buf_fini(&text);
    }
    rc = plan->fits ? SHC_EXIT_DONE : SHC_EXIT_REFUSED;
    shard__v1__plan_response__free_unpacked(plan, NULL);
    return rc;
}

const shc_command shc_cmd_plan = {
    .syntax =
        {
            .name = "plan",
            .about = "Shows what a job would take, by tag and to the byte, and whether it fits, "
                     "without making it: here, or on a machine that is stated. Takes the flags of "
                     "submit; --model may also be the path of a config.json alone. Exit status 4: "
                     "does not fit.",
            .tables = {&shc_spec_table, &table},
        },
    .summary = "show what a job would take",
    .args_size = sizeof(plan_args),
    .init = init,
    .run = run,
};

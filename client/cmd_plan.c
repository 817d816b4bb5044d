/* shardctl plan: what a job would take, without making it. */
#include <inttypes.h>
#include <stdlib.h>

#include "client/cmd.h"
#include "client/spec_options.h"
#include "client/units.h"
#include "client/view.h"

static void init(void *args)
{
    shc_spec_init(args);
}

static void print(shc_env *env, const Shard__V1__PlanResponse *plan, const char *asked)
{
    shc_buf out = {0}, strategy = {0};
    char text[SHC_UNIT_LEN];
    const Shard__V1__JobSpec *spec = plan->spec;

    shc_buf_puts(&out, shc_bold(&env->term));
    shc_text_clean(&out, spec ? spec->model : "");
    shc_buf_printf(&out, "%s: %s parameters in %u units, %" PRIu64 " elements of padding\n",
                   shc_plain(&env->term), shc_format_count(text, (double)plan->parameters),
                   plan->units, plan->padding);
    shc_buf_puts(&out,
                 shc_view_degrees(&strategy, spec ? spec->strategy : "", plan->degrees,
                                  plan->n_degrees, spec ? spec->reshard_after_forward : "", asked));
    if (spec && *spec->dtype)
        shc_buf_printf(&out, "; %s, reduced in %s; checkpointing %s; %s", spec->dtype,
                       spec->reduce_dtype, spec->activation_checkpointing, spec->optimizer);
    shc_buf_puts(&out, "\n\n");
    shc_view_memory(&out, &env->term, plan->memory, plan->n_memory, 0);
    if (plan->n_comm) {
        shc_buf_puts(&out, "\n");
        shc_view_comm(&out, &env->term, plan->comm, plan->n_comm, 0);
    }
    shc_buf_printf(&out, "\n%s", shc_bold(&env->term));
    shc_text_clean(&out, plan->verdict);
    shc_buf_printf(&out, "%s\n", shc_plain(&env->term));
    shc_buf_flush(&out, stdout);
    shc_buf_fini(&out);
    shc_buf_fini(&strategy);
}

static void print_json(const Shard__V1__PlanResponse *plan, const char *asked)
{
    shc_json json = {0};

    shc_json_open(&json, NULL, '{');
    shc_json_bool(&json, "fits", plan->fits);
    shc_json_str(&json, "verdict", plan->verdict);
    shc_json_u64(&json, "parameters", plan->parameters);
    shc_json_u64(&json, "units", plan->units);
    shc_json_u64(&json, "padding", plan->padding);
    shc_json_bytes(&json, "available", plan->available, SHC_UNKNOWN, SHC_UNKNOWN);
    shc_json_open(&json, "degrees", '[');
    for (size_t i = 0; i < plan->n_degrees; i++)
        shc_json_u64(&json, NULL, plan->degrees[i]);
    shc_json_close(&json, ']');
    shc_json_str(&json, "asked_strategy", asked);
    if (plan->spec)
        shc_json_spec(&json, plan->spec);
    shc_json_memory(&json, plan->memory, plan->n_memory, 0);
    shc_json_comm(&json, plan->comm, plan->n_comm, 0);
    shc_json_close(&json, '}');
    shc_json_line(&json, stdout);
    shc_json_fini(&json);
}

static int run(shc_env *env, void *arguments)
{
    shc_spec_args *args = arguments;
    Shard__V1__PlanRequest request = SHARD__V1__PLAN_REQUEST__INIT;
    Shard__V1__PlanResponse *plan;
    shc_buf message = {0};
    shc_error err;
    int rc;

    rc = shc_spec_read_file(args, env->given.flags[0], &env->keep, &message);
    if (rc)
        rc = shc_usage("%s", shc_buf_str(&message));
    shc_buf_fini(&message);
    if (rc)
        return rc;
    if (!*args->spec.model)
        return shc_usage("--model is missing; give --model MODEL, for example gpt-byte-1m");
    if ((rc = shc_env_connect(env)))
        return rc;
    request.spec = &args->spec;
    if (shc_plan(env->client, &request, &plan, &err))
        return shc_complain(&err);
    if (env->json)
        print_json(plan, args->spec.strategy);
    else
        print(env, plan, args->spec.strategy);
    rc = plan->fits ? SHC_EXIT_DONE : SHC_EXIT_REFUSED;
    shard__v1__plan_response__free_unpacked(plan, NULL);
    return rc;
}

const shc_command shc_cmd_plan = {
    .syntax =
        {
            .name = "plan",
            .about = "Shows what a job would take, by tag and to the byte, and whether it fits, "
                     "without making it. Takes the flags of submit. Exit status 4: does not fit.",
            .tables = {&shc_spec_table},
        },
    .summary = "show what a job would take",
    .args_size = sizeof(shc_spec_args),
    .init = init,
    .run = run,
};

/* shardctl logs: what happened to a job, without its ordinary steps. */
#include <inttypes.h>
#include <math.h>

#include "client/job_arg.h"
#include "client/units.h"

typedef struct logs_args {
    char *job;
    uint64_t from;
} logs_args;

static const shc_option options[] = {
    {.name = "from",
     .value = "STEP",
     .type = SHC_U64,
     .at = offsetof(logs_args, from),
     .help = "the first step to look at; default 0"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

/* Every line begins with the time of day. */
static void line(const shc_env *env, const Shard__V1__Event *e, shc_buf *out, shc_json *json)
{
    char text[SHC_UNIT_LEN];

    if (env->json && !(e->kind_case == SHARD__V1__EVENT__KIND_STEP && !e->step->skipped)) {
        shc_json_open(json, NULL, '{');
        shc_json_u64(json, "index", e->index);
    }
    switch (e->kind_case) {
    case SHARD__V1__EVENT__KIND_STATE:
        if (env->json) {
            shc_json_num(json, "unix", e->state->unix);
            shc_json_u64(json, "step", e->state->step);
            shc_json_str(json, "state", shc_state_name(e->state->state));
            shc_json_str(json, "reason", e->state->reason);
            break;
        }
        shc_buf_printf(out, "%-19s  step %-8" PRIu64 "  %s", shc_format_time(text, e->state->unix),
                       e->state->step, shc_state_name(e->state->state));
        if (*e->state->reason) {
            shc_buf_puts(out, ": ");
            shc_text_clean(out, e->state->reason);
        }
        break;
    case SHARD__V1__EVENT__KIND_EVAL:
        if (env->json) {
            shc_json_num(json, "unix", e->eval->unix);
            shc_json_u64(json, "step", e->eval->step);
            shc_json_num(json, "eval_loss", e->eval->loss);
            shc_json_num(json, "perplexity", exp(e->eval->loss));
            break;
        }
        shc_buf_printf(out, "%-19s  step %-8" PRIu64 "  eval loss %.4f, perplexity %.2f",
                       shc_format_time(text, e->eval->unix), e->eval->step, e->eval->loss,
                       exp(e->eval->loss));
        break;
    case SHARD__V1__EVENT__KIND_STEP:
        if (!e->step->skipped)
            return;
        if (env->json) {
            shc_json_num(json, "unix", e->step->unix);
            shc_json_u64(json, "step", e->step->step);
            shc_json_bool(json, "skipped", 1);
            if (e->step->loss_scale > 0)
                shc_json_num(json, "loss_scale", e->step->loss_scale);
            break;
        }
        shc_buf_printf(out, "%-19s  step %-8" PRIu64 "  skipped: gradient not finite",
                       shc_format_time(text, e->step->unix), e->step->step);
        if (e->step->loss_scale > 0)
            shc_buf_printf(out, " at loss scale %.7g", e->step->loss_scale);
        break;
    default:
        break;
    }
    if (env->json) {
        shc_json_close(json, '}');
        shc_json_line(json, stdout);
    } else if (out->len) {
        shc_buf_puts(out, "\n");
        shc_buf_flush(out, stdout);
    }
}

static int run(shc_env *env, void *arguments)
{
    const logs_args *args = arguments;
    Shard__V1__WatchRequest request = SHARD__V1__WATCH_REQUEST__INIT;
    ProtobufCMessage *message;
    shc_stream *stream;
    shc_buf out = {0};
    shc_json json = {0};
    shc_error err;
    int got, rc = shc_env_connect(env);

    if (rc)
        return rc;
    request.job = args->job;
    request.has_from_step_case = SHARD__V1__WATCH_REQUEST__HAS_FROM_STEP_FROM_STEP;
    request.from_step = args->from;
    if (shc_watch(env->client, &request, &stream, &err))
        return shc_complain(&err);
    while ((got = shc_stream_next(stream, -1, &message, &err)) == SHC_MESSAGE) {
        line(env, (const Shard__V1__Event *)message, &out, &json);
        shc_message_free(message);
    }
    shc_stream_close(stream);
    shc_buf_fini(&out);
    shc_json_fini(&json);
    if (got == SHC_END || *env->interrupt)
        return SHC_EXIT_DONE;
    return shc_complain(&err);
}

const shc_command shc_cmd_logs = {
    .syntax =
        {
            .name = "logs",
            .about = "Shows what happened to a job: its states, evaluations and skipped steps.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(logs_args)},
        },
    .summary = "show states, evaluations and skipped steps",
    .args_size = sizeof(logs_args),
    .run = run,
};

/* shardctl checkpoint. */
#include <inttypes.h>

#include "client/job_arg.h"
#include "client/units.h"

typedef struct checkpoint_args {
    char *job;
    char *name;
} checkpoint_args;

static const shc_option options[] = {
    {.name = "name",
     .value = "NAME",
     .type = SHC_TEXT,
     .at = offsetof(checkpoint_args, name),
     .help = "of the checkpoint; default: by its step"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

static int run(shc_env *env, void *arguments)
{
    const checkpoint_args *args = arguments;
    Shard__V1__SaveCheckpointRequest request = SHARD__V1__SAVE_CHECKPOINT_REQUEST__INIT;
    Shard__V1__SaveCheckpointResponse *answer;
    shc_error err;
    int rc = shc_env_connect(env);

    if (rc)
        return rc;
    request.job = args->job;
    if (args->name)
        request.name = args->name;
    shc_set_timeout(env->client, 0);
    if (shc_save_checkpoint(env->client, &request, &answer, &err))
        return shc_complain(&err);
    if (env->json) {
        shc_json json = {0};
        shc_json_open(&json, NULL, '{');
        shc_json_str(&json, "path", answer->path);
        shc_json_u64(&json, "step", answer->step);
        shc_json_close(&json, '}');
        shc_json_line(&json, stdout);
        shc_json_fini(&json);
    } else {
        shc_buf out = {0};
        shc_buf_printf(&out, "step %" PRIu64 " saved in ", answer->step);
        shc_text_clean(&out, answer->path);
        shc_buf_puts(&out, "\n");
        shc_buf_flush(&out, stdout);
        shc_buf_fini(&out);
    }
    shard__v1__save_checkpoint_response__free_unpacked(answer, NULL);
    return SHC_EXIT_DONE;
}

const shc_command shc_cmd_checkpoint = {
    .syntax =
        {
            .name = "checkpoint",
            .about = "Saves the whole state of a job after its running step.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(checkpoint_args)},
        },
    .summary = "save the state of a job",
    .args_size = sizeof(checkpoint_args),
    .run = run,
};

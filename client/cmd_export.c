/* shardctl export. */
#include <stdio.h>

#include "client/job_arg.h"
#include "client/units.h"
#include "client/view.h"

typedef struct export_args {
    char *job;
    char *out;
    char *dtype;
} export_args;

static const shc_option options[] = {
    {.name = "out",
     .value = "DIR",
     .type = SHC_PATH,
     .at = offsetof(export_args, out),
     .help = "directory to write the model to"},
    {.name = "dtype",
     .value = "TYPE",
     .type = SHC_TEXT,
     .at = offsetof(export_args, dtype),
     .help = "fp32, bf16, fp16; default: the parameters' own"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

static int run(shc_env *env, void *arguments)
{
    const export_args *args = arguments;
    Shard__V1__ExportModelRequest request = SHARD__V1__EXPORT_MODEL_REQUEST__INIT;
    Shard__V1__ExportModelResponse *answer;
    char text[SHC_UNIT_LEN];
    shc_error err;
    int rc;

    if (!args->out)
        return shc_usage("--out is missing; give --out DIR");
    if ((rc = shc_env_connect(env)))
        return rc;
    request.job = args->job;
    request.path = args->out;
    if (args->dtype)
        request.dtype = args->dtype;
    shc_set_timeout(env->client, 0);
    if (shc_export_model(env->client, &request, &answer, &err))
        return shc_complain(&err);
    if (env->json) {
        shc_json json = {0};
        shc_json_open(&json, NULL, '{');
        shc_json_str(&json, "path", args->out);
        shc_json_bytes(&json, "bytes", SHC_UNKNOWN, answer->bytes, SHC_UNKNOWN);
        shc_json_close(&json, '}');
        shc_json_line(&json, stdout);
        shc_json_fini(&json);
    } else {
        printf("%s written to %s\n", shc_format_bytes(text, answer->bytes), args->out);
    }
    shard__v1__export_model_response__free_unpacked(answer, NULL);
    return SHC_EXIT_DONE;
}

const shc_command shc_cmd_export = {
    .syntax =
        {
            .name = "export",
            .about = "Writes the weights of a job as a model directory that other tools read.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(export_args)},
        },
    .summary = "write the weights as a model directory",
    .args_size = sizeof(export_args),
    .run = run,
};

/* shardctl export. */
#include <inttypes.h>
#include <stdio.h>

#include "client/job_arg.h"
#include "client/units.h"
#include "client/view.h"

typedef struct export_args {
    char *job;
    char *output;
    char *dtype;
    uint64_t max_shard;
} export_args;

static const shc_option options[] = {
    {.name = "output",
     .letter = 'o',
     .value = "DIR",
     .type = SHC_PATH,
     .at = offsetof(export_args, output),
     .help = "directory to write the model to, made new"},
    {.name = "dtype",
     .value = "TYPE",
     .type = SHC_TEXT,
     .at = offsetof(export_args, dtype),
     .help = "fp32, bf16, fp16; default: that of the files the job began with, else fp32"},
    {.name = "max-shard-size",
     .value = "SIZE",
     .type = SHC_SIZE,
     .at = offsetof(export_args, max_shard),
     .min = 1,
     .help = "of one file of weights; default 5GB"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

static void show_json(const export_args *args, const Shard__V1__ExportModelResponse *answer)
{
    shc_json json = {0};

    shc_json_open(&json, NULL, '{');
    shc_json_str(&json, "path", args->output);
    shc_json_bytes(&json, "bytes", SHC_UNKNOWN, answer->bytes, SHC_UNKNOWN);
    shc_json_open(&json, "files", '[');
    for (size_t i = 0; i < answer->n_files; i++)
        shc_json_str(&json, NULL, answer->files[i]);
    shc_json_close(&json, ']');
    shc_json_u64(&json, "tensors", answer->tensors);
    shc_json_u64(&json, "step", answer->step);
    shc_json_close(&json, '}');
    shc_json_line(&json, stdout);
    shc_json_fini(&json);
}

static void show(const export_args *args, const Shard__V1__ExportModelResponse *answer)
{
    char text[SHC_UNIT_LEN];
    shc_buf line = {0};

    shc_format_bytes(text, answer->bytes);
    shc_buf_printf(&line, "step %" PRIu64 ": %" PRIu64 " tensors, %s in ", answer->step,
                   answer->tensors, text);
    shc_text_clean(&line, args->output);
    shc_buf_puts(&line, "\n");
    for (size_t i = 0; i < answer->n_files; i++) {
        shc_buf_puts(&line, "  ");
        shc_text_clean(&line, answer->files[i]);
        shc_buf_puts(&line, "\n");
    }
    shc_buf_flush(&line, stdout);
    shc_buf_fini(&line);
}

static int run(shc_env *env, void *arguments)
{
    const export_args *args = arguments;
    Shard__V1__ExportModelRequest request = SHARD__V1__EXPORT_MODEL_REQUEST__INIT;
    Shard__V1__ExportModelResponse *answer;
    shc_error err;
    int rc;

    if (!args->output)
        return shc_usage("--output is missing; give --output DIR");
    if ((rc = shc_env_connect(env)))
        return rc;
    request.job = args->job;
    request.path = args->output;
    request.max_shard_bytes = args->max_shard;
    if (args->dtype)
        request.dtype = args->dtype;
    shc_set_timeout(env->client, 0);
    if (shc_export_model(env->client, &request, &answer, &err))
        return shc_complain(&err);
    if (env->json)
        show_json(args, answer);
    else
        show(args, answer);
    shard__v1__export_model_response__free_unpacked(answer, NULL);
    return SHC_EXIT_DONE;
}

const shc_command shc_cmd_export = {
    .syntax =
        {
            .name = "export",
            .about = "Writes the weights of a job as a Hugging Face model directory: safetensors, "
                     "configuration and tokenizer. The daemon writes it, as the caller may.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(export_args)},
        },
    .summary = "write the weights as a model directory",
    .args_size = sizeof(export_args),
    .run = run,
};

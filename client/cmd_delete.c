/* shardctl delete. */
#include <stdio.h>

#include "client/job_arg.h"

static int run(shc_env *env, void *arguments)
{
    const shc_job_args *args = arguments;
    Shard__V1__JobRef ref = SHARD__V1__JOB_REF__INIT;
    Shard__V1__DeleteJobResponse *answer;
    shc_error err;
    int rc = shc_env_connect(env);

    if (rc)
        return rc;
    ref.job = args->job;
    shc_set_timeout(env->client, 0); /* work of it that still runs ends first */
    if (shc_delete_job(env->client, &ref, &answer, &err))
        return shc_complain(&err);
    shard__v1__delete_job_response__free_unpacked(answer, NULL);
    if (env->json) {
        shc_json json = {0};
        shc_json_open(&json, NULL, '{');
        shc_json_str(&json, "deleted", args->job);
        shc_json_close(&json, '}');
        shc_json_line(&json, stdout);
        shc_json_fini(&json);
    } else {
        printf("%s: deleted\n", args->job);
    }
    return SHC_EXIT_DONE;
}

const shc_command shc_cmd_delete = {
    .syntax =
        {
            .name = "delete",
            .about = "Removes a job that is over, its weights and its history.",
            .operands = {SHC_JOB_OPERAND(shc_job_args)},
        },
    .summary = "remove a job that is over",
    .args_size = sizeof(shc_job_args),
    .run = run,
};

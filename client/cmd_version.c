/* shardctl version: of the client and, when it answers, of the daemon. */
#include <stdio.h>

#include "client/cmd.h"
#include "client/units.h"

enum { ANSWER_MS = 3000 };

static int run(shc_env *env, void *args)
{
    Shard__V1__StatusRequest request = SHARD__V1__STATUS_REQUEST__INIT;
    Shard__V1__StatusResponse *status = NULL;
    shc_buf out = {0};
    shc_error err;
    int rc = shc_env_connect(env);

    (void)args;
    if (rc)
        return rc;
    shc_set_timeout(env->client, ANSWER_MS);
    shc_status(env->client, &request, &status, &err);
    if (env->json) {
        shc_json json = {0};
        shc_json_open(&json, NULL, '{');
        shc_json_str(&json, "shardctl", SHD_VERSION);
        if (status)
            shc_json_str(&json, "shardd", status->version);
        else
            shc_json_null(&json, "shardd");
        shc_json_close(&json, '}');
        shc_json_line(&json, stdout);
        shc_json_fini(&json);
    } else {
        shc_buf_puts(&out, "shardctl " SHD_VERSION "\nshardd ");
        if (status)
            shc_text_clean(&out, status->version);
        else
            shc_buf_puts(&out, "unknown: ");
        if (!status)
            shc_text_clean(&out, err.message);
        shc_buf_puts(&out, "\n");
        shc_buf_flush(&out, stdout);
        shc_buf_fini(&out);
    }
    if (status)
        shard__v1__status_response__free_unpacked(status, NULL);
    return SHC_EXIT_DONE;
}

const shc_command shc_cmd_version = {
    .syntax = {.name = "version",
               .about = "Shows the version of shardctl and, when it answers, of the daemon."},
    .summary = "show versions",
    .run = run,
};

#include "client/job_arg.h"

#include <inttypes.h>

#include "client/units.h"
#include "client/view.h"

void shc_show_job(shc_env *env, const Shard__V1__Job *job)
{
    shc_buf line = {0};

    if (env->json) {
        shc_json json = {0};
        shc_json_open(&json, NULL, '{');
        shc_json_job(&json, job);
        shc_json_close(&json, '}');
        shc_json_line(&json, stdout);
        shc_json_fini(&json);
        return;
    }
    shc_text_clean(&line, shc_job_name(job));
    shc_buf_printf(&line, ": %s at step %" PRIu64, shc_state_name(job->state), job->step);
    if (*job->reason) {
        shc_buf_puts(&line, ": ");
        shc_text_clean(&line, job->reason);
    }
    shc_buf_puts(&line, "\n");
    shc_buf_flush(&line, stdout);
    shc_buf_fini(&line);
}

static int ask(shc_env *env, char *name,
               int (*call)(shc_client *, const Shard__V1__JobRef *, Shard__V1__Job **, shc_error *),
               int patient, Shard__V1__Job **out)
{
    Shard__V1__JobRef ref = SHARD__V1__JOB_REF__INIT;
    shc_error err;
    int rc = shc_env_connect(env);

    if (rc)
        return rc;
    ref.job = name;
    if (patient) /* the answer comes when it has happened: after the running step */
        shc_set_timeout(env->client, 0);
    return call(env->client, &ref, out, &err) ? shc_complain(&err) : 0;
}

int shc_find_job(shc_env *env, char *name, Shard__V1__Job **out)
{
    return ask(env, name, shc_get_job, 0, out);
}

int shc_change_job(shc_env *env, char *name,
                   int (*call)(shc_client *, const Shard__V1__JobRef *, Shard__V1__Job **,
                               shc_error *))
{
    Shard__V1__Job *job;
    int rc = ask(env, name, call, 1, &job);

    if (rc)
        return rc;
    shc_show_job(env, job);
    shard__v1__job__free_unpacked(job, NULL);
    return SHC_EXIT_DONE;
}

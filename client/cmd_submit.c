/* shardctl submit: makes a job and follows it. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "client/cmd.h"
#include "client/follow.h"
#include "client/spec_options.h"
#include "client/units.h"
#include "client/view.h"

enum { TRIES = 5 };

typedef struct submit_args {
    shc_spec_args spec; /* first: its table has base 0 */
    int detach;
} submit_args;

static const shc_option options[] = {
    {.name = "detach",
     .type = SHC_BOOL,
     .at = offsetof(submit_args, detach),
     .help = "print the job and return at once"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

static void init(void *args)
{
    shc_spec_init(&((submit_args *)args)->spec);
}

/* An id that no other request has, so that asking again cannot make a second job. */
static int random_id(char out[33])
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return -1;
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

static int create(shc_env *env, Shard__V1__JobSpec *spec, Shard__V1__Job **job, shc_error *err)
{
    Shard__V1__CreateJobRequest request = SHARD__V1__CREATE_JOB_REQUEST__INIT;
    char id[33] = "";
    int rc;

    *job = NULL;
    if (random_id(id)) {
        *err = (shc_error){.shd_errno = SHD_EIO};
        snprintf(err->message, sizeof err->message,
                 "no random bytes for a request id: %s; try again", strerror(errno));
        return SHD_EIO;
    }
    request.request_id = id;
    request.spec = spec;
    for (int attempt = 1;; attempt++) {
        rc = shc_create_job(env->client, &request, job, err);
        /* Again only where the connection broke and somebody still listens. */
        if (!rc || err->shd_errno != SHD_EUNAVAILABLE || attempt == TRIES ||
            shc_probe(env->client, NULL))
            return rc;
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
}

/* Bytes that the plan takes on the fullest rank; 0 when the daemon does not tell. */
static uint64_t planned_bytes(shc_env *env, const char *id)
{
    Shard__V1__StatusRequest request = SHARD__V1__STATUS_REQUEST__INIT;
    Shard__V1__StatusResponse *status;
    uint64_t most = 0;

    if (shc_status(env->client, &request, &status, NULL))
        return 0;
    for (size_t i = 0; i < status->n_jobs; i++) {
        const Shard__V1__JobStatus *s = status->jobs[i];
        if (!s->job || strcmp(s->job->id, id))
            continue;
        for (size_t r = 0; r < s->n_memory; r++)
            if (s->memory[r]->total && s->memory[r]->total->planned > most)
                most = s->memory[r]->total->planned;
    }
    shard__v1__status_response__free_unpacked(status, NULL);
    return most;
}

/* `asked` is the strategy's name as it was given. */
static void announce(shc_env *env, const Shard__V1__Job *job, const char *asked)
{
    const uint64_t bytes = planned_bytes(env, job->id);
    char text[SHC_UNIT_LEN];
    shc_buf line = {0}, strategy = {0};
    const Shard__V1__JobSpec *spec = job->spec;

    if (env->json) {
        shc_json json = {0};
        shc_json_open(&json, NULL, '{');
        shc_json_str(&json, "job", job->id);
        shc_json_job(&json, job);
        shc_json_str(&json, "asked_strategy", asked);
        shc_json_bytes(&json, "rank_bytes", bytes ? bytes : SHC_UNKNOWN, SHC_UNKNOWN, SHC_UNKNOWN);
        shc_json_close(&json, '}');
        shc_json_line(&json, stdout);
        shc_json_fini(&json);
        return;
    }
    shc_view_degrees(&strategy, spec ? spec->strategy : "", job->degrees, job->n_degrees,
                     spec ? spec->reshard_after_forward : "", asked);
    shc_buf_puts(&line, "job ");
    shc_text_clean(&line, job->id);
    if (strcmp(shc_job_name(job), job->id)) {
        shc_buf_puts(&line, " (");
        shc_text_clean(&line, shc_job_name(job));
        shc_buf_puts(&line, ")");
    }
    shc_buf_puts(&line, ": ");
    shc_text_clean(&line, spec ? spec->model : "");
    shc_buf_printf(&line, ", %s parameters", shc_format_count(text, (double)job->parameters));
    if (job->trainable && job->trainable < job->parameters)
        shc_buf_printf(&line, ", %s of them trained",
                       shc_format_count(text, (double)job->trainable));
    shc_buf_printf(&line, ", %s", shc_buf_str(&strategy));
    if (spec && *spec->dtype && strcmp(spec->dtype, "fp32"))
        shc_buf_printf(&line, ", %s", spec->dtype);
    if (bytes) {
        shc_format_bytes(text, bytes);
        shc_buf_printf(&line, ", %s planned per rank", text);
    }
    shc_buf_puts(&line, "\n");
    shc_buf_flush(&line, stdout);
    shc_buf_fini(&line);
    shc_buf_fini(&strategy);
}

static int run(shc_env *env, void *arguments)
{
    submit_args *args = arguments;
    Shard__V1__Job *job;
    shc_buf message = {0};
    shc_error err;
    int rc;

    rc = shc_spec_read_file(&args->spec, env->given.flags[0], &env->keep, &message);
    if (rc)
        rc = shc_usage("%s", shc_buf_str(&message));
    shc_buf_fini(&message);
    if (rc)
        return rc;
    if (!*args->spec.spec.model)
        return shc_usage("--model is missing; give --model MODEL, for example gpt-byte-1m");
    if ((rc = shc_env_connect(env)))
        return rc;
    if (create(env, &args->spec.spec, &job, &err))
        return shc_complain(&err);
    announce(env, job, args->spec.spec.strategy);
    rc = args->detach ? SHC_EXIT_DONE : shc_follow(env, job, 1, 0);
    shard__v1__job__free_unpacked(job, NULL);
    return rc;
}

const shc_command shc_cmd_submit = {
    .syntax =
        {
            .name = "submit",
            .about =
                "Makes a job and shows its progress. Ctrl-C detaches: the job goes on. Numbers "
                "left out take the daemon's defaults.",
            .tables = {&shc_spec_table, &table},
        },
    .summary = "make a job and show its progress",
    .args_size = sizeof(submit_args),
    .init = init,
    .run = run,
};

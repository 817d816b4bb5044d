/* shardctl jobs: the list of jobs. */
#include <inttypes.h>
#include <math.h>
#include <time.h>

#include "client/cmd.h"
#include "client/progress.h"
#include "client/table.h"
#include "client/units.h"
#include "client/view.h"

static void row(shc_table *table, const Shard__V1__Job *job, double now)
{
    const Shard__V1__JobSpec *spec = job->spec;
    char age[SHC_UNIT_LEN];
    shc_buf strategy = {0};

    shc_table_cell(table, "%s", job->id);
    shc_table_cell(table, "%s", shc_job_name(job));
    shc_table_cell(table, "%s", job->owner);
    if (job->progress && job->progress->total)
        shc_table_cell(table, "%s %.0f%%", job->progress->what,
                       floor(shc_preparing_share(job->progress) * 100));
    else
        shc_table_cell(table, "%s", shc_state_name(job->state));
    if (spec && spec->steps)
        shc_table_cell(table, "%" PRIu64 "/%" PRIu64, job->step, spec->steps);
    else
        shc_table_cell(table, "%" PRIu64, job->step);
    if (job->last)
        shc_table_cell(table, "%.4f", job->last->loss);
    else
        shc_table_cell(table, "-");
    shc_table_cell(
        table, "%s",
        shc_view_strategy(&strategy, spec ? spec->strategy : "", job->degrees, job->n_degrees));
    shc_table_cell(table, "%zu", job->n_rank_ids);
    shc_table_cell(table, "%s", shc_format_age(age, now - job->created_unix));
    if (shc_state_final(job->state))
        shc_table_row_dim(table);
    shc_buf_fini(&strategy);
}

static int run(shc_env *env, void *args)
{
    static const shc_column columns[] = {
        {"ID", SHC_LEFT},       {"NAME", SHC_SHRINK}, {"OWNER", SHC_SHRINK},
        {"STATE", SHC_LEFT},    {"STEP", SHC_RIGHT},  {"LOSS", SHC_RIGHT},
        {"STRATEGY", SHC_LEFT}, {"RANKS", SHC_RIGHT}, {"AGE", SHC_RIGHT},
    };
    Shard__V1__ListJobsRequest request = SHARD__V1__LIST_JOBS_REQUEST__INIT;
    Shard__V1__ListJobsResponse *list;
    shc_error err;
    int rc = shc_env_connect(env);

    (void)args;
    if (rc)
        return rc;
    if (shc_list_jobs(env->client, &request, &list, &err))
        return shc_complain(&err);
    if (env->json) {
        shc_json json = {0};
        for (size_t i = 0; i < list->n_jobs; i++) {
            shc_json_open(&json, NULL, '{');
            shc_json_job(&json, list->jobs[i]);
            shc_json_close(&json, '}');
            shc_json_line(&json, stdout);
        }
        shc_json_fini(&json);
    } else {
        shc_buf out = {0};
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        shc_table *table = shc_table_create(columns, sizeof columns / sizeof *columns);
        for (size_t i = 0; i < list->n_jobs; i++)
            row(table, list->jobs[i], (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
        shc_table_render(table, &env->term, 0, &out);
        shc_buf_flush(&out, stdout);
        shc_buf_fini(&out);
        shc_table_free(table);
    }
    shard__v1__list_jobs_response__free_unpacked(list, NULL);
    return SHC_EXIT_DONE;
}

const shc_command shc_cmd_jobs = {
    .syntax = {.name = "jobs", .about = "Lists the jobs that you may see, the oldest first."},
    .summary = "list jobs",
    .run = run,
};

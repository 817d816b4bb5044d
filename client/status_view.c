#include "client/status_view.h"

#include <inttypes.h>
#include <string.h>

#include "client/progress.h"
#include "client/table.h"
#include "client/units.h"
#include "client/view.h"
#include "client/words.h"

enum { BAR_CELLS = 16 };

static const char *dot(const shc_term *term)
{
    return term->utf8 ? " \xC2\xB7 " : " | ";
}

static void header(shc_buf *out, const shc_term *term, const Shard__V1__StatusResponse *s)
{
    char text[SHC_UNIT_LEN];

    shc_buf_printf(out, "%sshardd ", shc_bold(term));
    shc_text_clean(out, s->version);
    shc_buf_printf(out, "%s%sup %s%spid %u", shc_plain(term), dot(term),
                   shc_format_hms(text, s->uptime_s), dot(term), s->pid);
    shc_buf_printf(out, "%sresident %s%s%u connection%s\n", dot(term),
                   shc_format_bytes(text, s->resident), dot(term), s->connections,
                   s->connections == 1 ? "" : "s");
    shc_buf_printf(out, "%ssocket ", shc_dim(term));
    shc_text_clean(out, s->socket);
    shc_buf_printf(out, "%sstate ", dot(term));
    shc_text_clean(out, s->state_dir);
    shc_buf_printf(out, "%s\n", shc_plain(term));
}

static void ranks(shc_buf *out, const shc_term *term, const Shard__V1__StatusResponse *s)
{
    static const shc_column columns[] = {
        {"RANK", SHC_RIGHT},    {"DEVICE", SHC_LEFT}, {"ISA", SHC_LEFT},
        {"THREADS", SHC_RIGHT}, {"BUSY", SHC_RIGHT},  {"PLANNED", SHC_RIGHT},
        {"BUDGET", SHC_RIGHT},  {"", SHC_LEFT},
    };
    char text[SHC_UNIT_LEN];
    shc_buf bar = {0};

    if (!s->n_ranks)
        return;
    shc_buf_puts(out, "\n");
    shc_table *table = shc_table_create(columns, sizeof columns / sizeof *columns);
    for (size_t i = 0; i < s->n_ranks; i++) {
        const Shard__V1__RankStatus *r = s->ranks[i];
        shc_table_cell(table, "%u", r->rank);
        shc_table_cell(table, "%s", r->device);
        shc_table_cell(table, "%s", r->isa);
        shc_table_cell(table, "%u", r->threads);
        shc_table_cell(table, "%.0f%%", r->busy * 100);
        shc_table_cell(table, "%s", shc_format_bytes(text, r->planned));
        shc_table_cell(table, "%s", shc_format_bytes(text, r->budget));
        shc_buf_clear(&bar);
        if (r->budget)
            shc_bar(&bar, (double)r->planned / (double)r->budget, BAR_CELLS, term);
        shc_table_cell(table, "%s", shc_buf_str(&bar));
    }
    shc_table_render(table, term, 0, out);
    shc_table_free(table);
    shc_buf_fini(&bar);
}

static void job_lines(shc_buf *out, const shc_term *term, const Shard__V1__JobStatus *s)
{
    const Shard__V1__Job *job = s->job;
    const Shard__V1__JobSpec *spec = job->spec;
    shc_buf strategy = {0};
    char text[SHC_UNIT_LEN];

    shc_buf_printf(out, "\n%s", shc_bold(term));
    shc_text_clean(out, shc_job_name(job));
    shc_buf_puts(out, shc_plain(term));
    if (strcmp(shc_job_name(job), job->id)) {
        shc_buf_puts(out, " (job ");
        shc_text_clean(out, job->id);
        shc_buf_puts(out, ")");
    }
    shc_buf_printf(out, "%s%s%sstep %" PRIu64, dot(term), shc_state_name(job->state), dot(term),
                   job->step);
    if (spec && spec->steps)
        shc_buf_printf(out, "/%" PRIu64, spec->steps);
    if (job->last)
        shc_buf_printf(out, "%sloss %.4f%s%s tokens/s", dot(term), job->last->loss, dot(term),
                       shc_format_count(text, job->last->tokens_per_s));
    if (job->last_eval)
        shc_buf_printf(out, "%seval %.4f at %" PRIu64, dot(term), job->last_eval->loss,
                       job->last_eval->step);
    if (s->skipped_steps)
        shc_buf_printf(out, "%s%" PRIu64 " skipped", dot(term), s->skipped_steps);
    shc_buf_puts(out, "\n");
    if (*job->reason) {
        shc_buf_puts(out, "  ");
        shc_text_clean(out, job->reason);
        shc_buf_puts(out, "\n");
    }

    shc_buf_puts(out, "  ");
    shc_text_clean(out, spec ? spec->model : "");
    shc_buf_printf(out, "%s%s parameters%s", dot(term),
                   shc_format_count(text, (double)job->parameters), dot(term));
    shc_buf_puts(out, shc_view_strategy(&strategy, s->strategy, job->degrees, job->n_degrees));
    if (job->n_degrees >= 4)
        shc_buf_printf(out, " p,g,o %u,%u,%u of %u ranks", job->degrees[0], job->degrees[1],
                       job->degrees[2], job->degrees[3]);
    if (spec)
        shc_buf_printf(out, "%sbatch %u = %u x %u x %zu of %u tokens", dot(term),
                       spec->global_batch, spec->micro_batch, s->accumulation, job->n_rank_ids,
                       spec->seq_len);
    shc_buf_puts(out, "\n  params ");
    shc_text_clean(out, s->param_dtype);
    shc_buf_puts(out, ", reduce ");
    shc_text_clean(out, s->reduce_dtype);
    shc_buf_puts(out, ", master ");
    shc_text_clean(out, s->master_dtype);
    shc_buf_puts(out, ", moments ");
    shc_text_clean(out, s->moment_dtype);
    shc_buf_printf(out, "%sdeterminism ", dot(term));
    shc_text_clean(out, s->determinism);
    shc_buf_printf(out, " (width %u)%s%u queued%s%u watching%sowner ", s->reduction_width,
                   dot(term), s->queued, dot(term), s->watchers, dot(term));
    shc_text_clean(out, job->owner);
    shc_buf_puts(out, "\n");
    shc_buf_fini(&strategy);
}

void shc_status_render(shc_buf *out, const shc_term *term, const Shard__V1__StatusResponse *status)
{
    header(out, term, status);
    ranks(out, term, status);
    if (!status->n_jobs)
        shc_buf_puts(out, "\nno jobs; shardctl submit makes one\n");
    for (size_t i = 0; i < status->n_jobs; i++) {
        const Shard__V1__JobStatus *s = status->jobs[i];
        if (!s->job)
            continue;
        job_lines(out, term, s);
        if (s->n_memory) {
            shc_buf_puts(out, "\n");
            shc_view_memory(out, term, s->memory, s->n_memory, 1);
        }
        if (s->n_comm) {
            shc_buf_puts(out, "\n");
            shc_view_comm(out, term, s->comm, s->n_comm, 1);
        }
    }
}

static void json_job_status(shc_json *json, const Shard__V1__JobStatus *s)
{
    shc_json_open(json, NULL, '{');
    shc_json_job(json, s->job);
    shc_json_str(json, "strategy_in_use", s->strategy);
    shc_json_str(json, "param_dtype", s->param_dtype);
    shc_json_str(json, "reduce_dtype", s->reduce_dtype);
    shc_json_str(json, "master_dtype", s->master_dtype);
    shc_json_str(json, "moment_dtype", s->moment_dtype);
    shc_json_str(json, "determinism", s->determinism);
    shc_json_u64(json, "reduction_width", s->reduction_width);
    shc_json_u64(json, "queued", s->queued);
    shc_json_u64(json, "watchers", s->watchers);
    shc_json_u64(json, "accumulation", s->accumulation);
    shc_json_u64(json, "skipped_steps", s->skipped_steps);
    if (s->job->last) {
        shc_json_num(json, "grad_norm", s->job->last->grad_norm);
        shc_json_num(json, "lr", s->job->last->lr);
        shc_json_num(json, "step_ms", s->job->last->step_ms);
        shc_json_num(json, "tokens_per_s", s->job->last->tokens_per_s);
    }
    if (s->job->spec)
        shc_json_spec(json, s->job->spec);
    shc_json_memory(json, s->memory, s->n_memory, 1);
    shc_json_comm(json, s->comm, s->n_comm, 1);
    shc_json_close(json, '}');
}

void shc_status_json(shc_json *json, const Shard__V1__StatusResponse *s)
{
    shc_json_open(json, NULL, '{');
    shc_json_str(json, "version", s->version);
    shc_json_u64(json, "pid", s->pid);
    shc_json_num(json, "uptime_s", s->uptime_s);
    shc_json_bytes(json, "resident", SHC_UNKNOWN, s->resident, SHC_UNKNOWN);
    shc_json_u64(json, "connections", s->connections);
    shc_json_str(json, "socket", s->socket);
    shc_json_str(json, "state_dir", s->state_dir);
    shc_json_open(json, "ranks", '[');
    for (size_t i = 0; i < s->n_ranks; i++) {
        const Shard__V1__RankStatus *r = s->ranks[i];
        shc_json_open(json, NULL, '{');
        shc_json_u64(json, "rank", r->rank);
        shc_json_str(json, "device", r->device);
        shc_json_str(json, "isa", r->isa);
        shc_json_u64(json, "threads", r->threads);
        shc_json_num(json, "busy", r->busy);
        shc_json_bytes(json, "memory", r->planned, SHC_UNKNOWN, SHC_UNKNOWN);
        /* The most that may be planned. */
        shc_json_bytes(json, "budget", r->budget, SHC_UNKNOWN, SHC_UNKNOWN);
        shc_json_close(json, '}');
    }
    shc_json_close(json, ']');
    shc_json_open(json, "jobs", '[');
    for (size_t i = 0; i < s->n_jobs; i++)
        if (s->jobs[i]->job)
            json_job_status(json, s->jobs[i]);
    shc_json_close(json, ']');
    shc_json_close(json, '}');
}

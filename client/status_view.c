#include "client/status_view.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/progress.h"
#include "client/table.h"
#include "client/units.h"
#include "client/view.h"
#include "client/words.h"

enum { BAR_CELLS = 16 };

/* Items with dots between, on as many lines as the terminal needs. */
typedef struct items {
    shc_buf *out;
    const shc_term *term;
    size_t indent; /* of further lines */
    size_t column; /* 0: at the beginning */
} items;

static void items_open(items *i, size_t indent)
{
    shc_buf_fill(i->out, ' ', indent);
    i->indent = indent + 2;
    i->column = 0;
}

static void items_close(items *i)
{
    shc_buf_puts(i->out, "\n");
}

/* `style`: shc_bold, shc_dim or NULL. */
static void item(items *i, const char *(*style)(const shc_term *), const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void item(items *i, const char *(*style)(const shc_term *), const char *fmt, ...)
{
    va_list ap;
    char *raw = NULL;
    shc_buf text = {0};

    va_start(ap, fmt);
    if (vasprintf(&raw, fmt, ap) < 0)
        abort();
    va_end(ap);
    shc_text_clean(&text, raw);
    free(raw);
    const size_t width = shc_text_width(shc_buf_str(&text));
    if (!i->column) {
        i->column = i->indent - 2;
    } else if (i->term->width > 0 && i->column + 3 + width > (size_t)i->term->width) {
        shc_buf_puts(i->out, "\n");
        shc_buf_fill(i->out, ' ', i->indent);
        i->column = i->indent;
    } else {
        shc_buf_puts(i->out, i->term->utf8 ? " \xC2\xB7 " : " | ");
        i->column += 3;
    }
    if (style)
        shc_buf_puts(i->out, style(i->term));
    shc_buf_puts(i->out, shc_buf_str(&text));
    if (style)
        shc_buf_puts(i->out, shc_plain(i->term));
    i->column += width;
    shc_buf_fini(&text);
}

static void header(shc_buf *out, const shc_term *term, const Shard__V1__StatusResponse *s)
{
    char text[SHC_UNIT_LEN];
    items i = {.out = out, .term = term};

    items_open(&i, 0);
    item(&i, shc_bold, "shardd %s", s->version);
    item(&i, NULL, "up %s", shc_format_hms(text, s->uptime_s));
    item(&i, NULL, "pid %u", s->pid);
    item(&i, NULL, "resident %s", shc_format_bytes(text, s->resident));
    item(&i, NULL, "%u connection%s", s->connections, s->connections == 1 ? "" : "s");
    items_close(&i);
    items_open(&i, 0);
    item(&i, shc_dim, "socket %s", s->socket);
    item(&i, shc_dim, "state %s", s->state_dir);
    items_close(&i);
}

static void ranks(shc_buf *out, const shc_term *term, const Shard__V1__StatusResponse *s)
{
    static const shc_column columns[] = {
        {"RANK", SHC_RIGHT}, {"DEVICE", SHC_LEFT},   {"ISA", SHC_LEFT},     {"THREADS", SHC_RIGHT},
        {"BUSY", SHC_RIGHT}, {"PLANNED", SHC_RIGHT}, {"BUDGET", SHC_RIGHT}, {"", SHC_LEFT},
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
    shc_buf strategy = {0}, preparing = {0};
    char text[SHC_UNIT_LEN], trained[SHC_UNIT_LEN];
    items i = {.out = out, .term = term};

    shc_buf_puts(out, "\n");
    items_open(&i, 0);
    item(&i, shc_bold, "%s", shc_job_name(job));
    if (strcmp(shc_job_name(job), job->id))
        item(&i, NULL, "job %s", job->id);
    item(&i, NULL, "%s", shc_state_name(job->state));
    if (job->progress) {
        shc_preparing_plain(&preparing, job->progress);
        item(&i, NULL, "%s", shc_buf_str(&preparing));
    }
    if (spec && spec->steps)
        item(&i, NULL, "step %" PRIu64 "/%" PRIu64, job->step, spec->steps);
    else
        item(&i, NULL, "step %" PRIu64, job->step);
    if (job->last) {
        item(&i, NULL, "loss %.4f", job->last->loss);
        item(&i, NULL, "%s tokens/s", shc_format_count(text, job->last->tokens_per_s));
    }
    if (job->last_eval)
        item(&i, NULL, "eval %.4f at step %" PRIu64, job->last_eval->loss, job->last_eval->step);
    if (s->loss_scale > 0)
        item(&i, NULL, "loss scale %.7g", s->loss_scale);
    if (s->skipped_steps || s->loss_scale > 0)
        item(&i, NULL, "%" PRIu64 " skipped", s->skipped_steps);
    if (*job->reason)
        item(&i, NULL, "%s", job->reason);
    items_close(&i);

    items_open(&i, 2);
    if (spec)
        item(&i, NULL, "%s", spec->model);
    shc_format_count(text, (double)job->parameters);
    if (job->trainable && job->trainable < job->parameters)
        item(&i, NULL, "%s of %s parameters trained",
             shc_format_count(trained, (double)job->trainable), text);
    else
        item(&i, NULL, "%s parameters", text);
    item(&i, NULL, "%s",
         shc_view_degrees(&strategy, s->strategy, job->degrees, job->n_degrees,
                          spec ? spec->reshard_after_forward : "", ""));
    if (spec)
        item(&i, NULL, "batch %u = %u x %u x %zu of %u tokens", spec->global_batch,
             spec->micro_batch, s->accumulation, job->n_rank_ids, spec->seq_len);
    items_close(&i);
    items_open(&i, 2);
    item(&i, NULL, "compute %s, params %s", *s->compute_dtype ? s->compute_dtype : s->param_dtype,
         s->param_dtype);
    item(&i, NULL, "reduce %s, master %s, moments %s", s->reduce_dtype, s->master_dtype,
         s->moment_dtype);
    if (*s->optimizer)
        item(&i, NULL, "%s", s->optimizer);
    if (*s->checkpointing)
        item(&i, NULL, "checkpointing %s", s->checkpointing);
    items_close(&i);
    items_open(&i, 2);
    if (*s->tokenizer)
        item(&i, NULL, "tokenizer %s", s->tokenizer);
    item(&i, NULL, "determinism %s (width %u)", s->determinism, s->reduction_width);
    if (s->job->last && s->job->n_rank_ids > 1)
        item(&i, NULL, "exposed communication %.0f%%%s", 100 * s->exposed_comm,
             s->overlap ? "" : " (no overlap)");
    item(&i, NULL, "%u queued", s->queued);
    item(&i, NULL, "%u watching", s->watchers);
    item(&i, NULL, "owner %s", job->owner);
    items_close(&i);
    shc_buf_fini(&strategy);
    shc_buf_fini(&preparing);
}

static void job_block(shc_buf *out, const shc_term *term, const Shard__V1__JobStatus *s)
{
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

void shc_status_render(shc_buf *out, const shc_term *term, const Shard__V1__StatusResponse *status)
{
    header(out, term, status);
    ranks(out, term, status);
    if (!status->n_jobs)
        shc_buf_puts(out, "\nno jobs; shardctl submit makes one\n");
    /* Jobs at work first: a screen may end before those that are over. */
    for (int over = 0; over < 2; over++)
        for (size_t i = 0; i < status->n_jobs; i++) {
            const Shard__V1__JobStatus *s = status->jobs[i];
            if (s->job && shc_state_final(s->job->state) == over)
                job_block(out, term, s);
        }
}

static void json_job_status(shc_json *json, const Shard__V1__JobStatus *s)
{
    shc_json_open(json, NULL, '{');
    shc_json_job(json, s->job);
    shc_json_str(json, "strategy_in_use", s->strategy);
    shc_json_str(json, "compute_dtype", s->compute_dtype);
    shc_json_str(json, "param_dtype", s->param_dtype);
    shc_json_str(json, "reduce_dtype", s->reduce_dtype);
    shc_json_str(json, "master_dtype", s->master_dtype);
    shc_json_str(json, "moment_dtype", s->moment_dtype);
    shc_json_str(json, "optimizer", s->optimizer);
    shc_json_str(json, "checkpointing", s->checkpointing);
    shc_json_str(json, "tokenizer", s->tokenizer);
    shc_json_str(json, "determinism", s->determinism);
    shc_json_u64(json, "reduction_width", s->reduction_width);
    shc_json_u64(json, "queued", s->queued);
    shc_json_u64(json, "watchers", s->watchers);
    shc_json_u64(json, "accumulation", s->accumulation);
    shc_json_u64(json, "skipped_steps", s->skipped_steps);
    shc_json_num(json, "loss_scale", s->loss_scale);
    shc_json_bool(json, "overlap", s->overlap);
    if (s->job->last) {
        shc_json_num(json, "exposed_comm", s->exposed_comm);
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

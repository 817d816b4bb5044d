#include "client/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/mem.h"
#include "client/spec_options.h"
#include "client/table.h"
#include "client/units.h"
#include "client/words.h"

const char *shc_view_strategy(shc_buf *out, const char *name, const uint32_t *degrees, size_t n)
{
    shc_buf_clear(out);
    if (*name)
        shc_text_clean(out, name);
    else if (n >= 3)
        shc_buf_printf(out, "%u,%u,%u", degrees[0], degrees[1], degrees[2]);
    else
        shc_buf_puts(out, "-");
    return shc_buf_str(out);
}

const char *shc_view_degrees(shc_buf *out, const char *name, const uint32_t *degrees, size_t n,
                             const char *reshard, const char *asked)
{
    shc_view_strategy(out, name, degrees, n);
    if (n >= 4)
        shc_buf_printf(out, " p,g,o %u,%u,%u of %u ranks", degrees[0], degrees[1], degrees[2],
                       degrees[3]);
    if (*reshard && strcmp(reshard, "yes")) {
        shc_buf_puts(out, ", reshard-after-forward ");
        shc_text_clean(out, reshard);
    }
    if (*asked && *name && strcmp(asked, name)) {
        shc_buf_puts(out, " (what ");
        shc_text_clean(out, asked);
        shc_buf_puts(out, " is here)");
    }
    return shc_buf_str(out);
}

static int same_bytes(const Shard__V1__Bytes *a, const Shard__V1__Bytes *b)
{
    if (!a || !b)
        return a == b;
    return a->planned == b->planned && a->now == b->now && a->peak == b->peak;
}

static int same_memory(const Shard__V1__RankMemory *a, const Shard__V1__RankMemory *b)
{
    if (strcmp(a->tier, b->tier) || a->n_tags != b->n_tags || !same_bytes(a->total, b->total))
        return 0;
    for (size_t i = 0; i < a->n_tags; i++)
        if (strcmp(a->tags[i]->tag, b->tags[i]->tag) ||
            !same_bytes(a->tags[i]->bytes, b->tags[i]->bytes))
            return 0;
    return 1;
}

static void bytes_cells(shc_table *table, const Shard__V1__Bytes *bytes, int measured)
{
    char text[SHC_UNIT_LEN];

    shc_table_cell(table, "%s", bytes ? shc_format_bytes(text, bytes->planned) : "-");
    if (measured) {
        shc_table_cell(table, "%s", bytes ? shc_format_bytes(text, bytes->now) : "-");
        shc_table_cell(table, "%s", bytes ? shc_format_bytes(text, bytes->peak) : "-");
    }
}

/* "per rank (x2)" when all are equal, else the ranks: "rank 0,2". */
static void memory_title(shc_buf *out, Shard__V1__RankMemory *const *memory, size_t n, size_t first,
                         const unsigned char *shown)
{
    size_t count = 0;

    shc_buf_clear(out);
    for (size_t i = first; i < n; i++)
        count += shown[i] == 2;
    if (count == n && n > 1) {
        shc_buf_printf(out, "per rank (x%zu)", n);
        return;
    }
    shc_buf_puts(out, count > 1 ? "ranks " : "rank ");
    for (size_t i = first, k = 0; i < n; i++)
        if (shown[i] == 2)
            shc_buf_printf(out, "%s%u", k++ ? "," : "", memory[i]->rank);
}

void shc_view_memory(shc_buf *out, const shc_term *term, Shard__V1__RankMemory *const *memory,
                     size_t n, int measured)
{
    unsigned char *shown = shc_calloc(n, 1); /* 1: printed, 2: in the group at hand */
    shc_buf title = {0};

    for (size_t first = 0; first < n; first++) {
        if (shown[first])
            continue;
        for (size_t i = first; i < n; i++)
            if (!shown[i] && same_memory(memory[first], memory[i]))
                shown[i] = 2;
        memory_title(&title, memory, n, first, shown);

        const shc_column columns[] = {
            {"memory", SHC_LEFT},   {shc_buf_str(&title), SHC_LEFT},
            {"planned", SHC_RIGHT}, {"now", SHC_RIGHT},
            {"peak", SHC_RIGHT},
        };
        shc_table *table = shc_table_create(columns, measured ? 5 : 3);
        const Shard__V1__RankMemory *m = memory[first];
        for (size_t i = 0; i < m->n_tags; i++) {
            shc_table_cell(table, "%s", i ? "" : m->tier);
            shc_table_cell(table, "%s", m->tags[i]->tag);
            bytes_cells(table, m->tags[i]->bytes, measured);
        }
        shc_table_cell(table, "%s", m->n_tags ? "" : m->tier);
        shc_table_cell(table, "total");
        bytes_cells(table, m->total, measured);
        shc_table_row_bold(table);
        shc_table_render(table, term, 2, out);
        shc_table_free(table);
        for (size_t i = first; i < n; i++)
            if (shown[i] == 2)
                shown[i] = 1;
    }
    shc_buf_fini(&title);
    free(shown);
}

void shc_view_comm(shc_buf *out, const shc_term *term, Shard__V1__CommStats *const *comm, size_t n,
                   int measured)
{
    static const shc_column seen[] = {
        {"sent by a rank", SHC_LEFT}, {"planned/step", SHC_RIGHT}, {"last step", SHC_RIGHT},
        {"total", SHC_RIGHT},         {"calls", SHC_RIGHT},
    };
    static const shc_column planned[] = {
        {"sent by a rank", SHC_LEFT},
        {"planned/step", SHC_RIGHT},
        {"between nodes", SHC_RIGHT},
    };
    char text[SHC_UNIT_LEN];
    int nodes = 0;

    if (!n)
        return;
    for (size_t i = 0; i < n; i++)
        nodes |= comm[i]->planned_between_nodes > 0;
    shc_table *table = measured ? shc_table_create(seen, 5) : shc_table_create(planned, 2 + nodes);
    for (size_t i = 0; i < n; i++) {
        const Shard__V1__CommStats *c = comm[i];
        shc_table_cell(table, "%s", c->kind);
        shc_table_cell(table, "%s", shc_format_bytes(text, c->planned_bytes_per_step));
        if (measured) {
            shc_table_cell(table, "%s", shc_format_bytes(text, c->last_step_bytes));
            shc_table_cell(table, "%s", shc_format_bytes(text, c->bytes));
            shc_table_cell(table, "%" PRIu64, c->calls);
        } else if (nodes) {
            shc_table_cell(table, "%s", shc_format_bytes(text, c->planned_between_nodes));
        }
    }
    shc_table_render(table, term, 2, out);
    shc_table_free(table);
}

/* ---- JSON ---- */

static void maybe_u64(shc_json *json, const char *key, uint64_t value)
{
    if (value == SHC_UNKNOWN)
        shc_json_null(json, key);
    else
        shc_json_u64(json, key, value);
}

void shc_json_bytes(shc_json *json, const char *key, uint64_t planned, uint64_t now, uint64_t peak)
{
    shc_json_open(json, key, '{');
    maybe_u64(json, "planned", planned);
    maybe_u64(json, "now", now);
    maybe_u64(json, "peak", peak);
    shc_json_close(json, '}');
}

static void json_figure(shc_json *json, const char *key, const Shard__V1__Bytes *bytes,
                        int measured)
{
    if (!bytes)
        shc_json_null(json, key);
    else
        shc_json_bytes(json, key, bytes->planned, measured ? bytes->now : SHC_UNKNOWN,
                       measured ? bytes->peak : SHC_UNKNOWN);
}

void shc_json_memory(shc_json *json, Shard__V1__RankMemory *const *memory, size_t n, int measured)
{
    shc_json_open(json, "memory", '[');
    for (size_t i = 0; i < n; i++) {
        const Shard__V1__RankMemory *m = memory[i];
        shc_json_open(json, NULL, '{');
        shc_json_u64(json, "rank", m->rank);
        shc_json_u64(json, "daemon_rank", m->daemon_rank);
        shc_json_str(json, "tier", m->tier);
        shc_json_open(json, "tags", '{');
        for (size_t t = 0; t < m->n_tags; t++)
            json_figure(json, m->tags[t]->tag, m->tags[t]->bytes, measured);
        shc_json_close(json, '}');
        json_figure(json, "total", m->total, measured);
        shc_json_bytes(json, "reserved", SHC_UNKNOWN, measured ? m->reserved : SHC_UNKNOWN,
                       SHC_UNKNOWN);
        shc_json_close(json, '}');
    }
    shc_json_close(json, ']');
}

void shc_json_comm(shc_json *json, Shard__V1__CommStats *const *comm, size_t n, int measured)
{
    shc_json_open(json, "comm", '[');
    for (size_t i = 0; i < n; i++) {
        const Shard__V1__CommStats *c = comm[i];
        shc_json_open(json, NULL, '{');
        shc_json_str(json, "kind", c->kind);
        shc_json_bytes(json, "step_bytes", c->planned_bytes_per_step,
                       measured ? c->last_step_bytes : SHC_UNKNOWN, SHC_UNKNOWN);
        if (measured) {
            shc_json_bytes(json, "total_bytes", SHC_UNKNOWN, c->bytes, SHC_UNKNOWN);
            shc_json_u64(json, "calls", c->calls);
        } else {
            shc_json_bytes(json, "between_nodes", c->planned_between_nodes, SHC_UNKNOWN,
                           SHC_UNKNOWN);
        }
        shc_json_close(json, '}');
    }
    shc_json_close(json, ']');
}

void shc_json_job(shc_json *json, const Shard__V1__Job *job)
{
    shc_buf strategy = {0};
    const Shard__V1__JobSpec *spec = job->spec;

    shc_json_str(json, "id", job->id);
    shc_json_str(json, "name", shc_job_name(job));
    shc_json_str(json, "state", shc_state_name(job->state));
    shc_json_str(json, "reason", job->reason);
    shc_json_str(json, "owner", job->owner);
    shc_json_u64(json, "owner_uid", job->owner_uid);
    shc_json_u64(json, "step", job->step);
    shc_json_u64(json, "steps", spec ? spec->steps : 0);
    if (job->last)
        shc_json_num(json, "loss", job->last->loss);
    else
        shc_json_null(json, "loss");
    if (job->last_eval)
        shc_json_num(json, "eval_loss", job->last_eval->loss);
    else
        shc_json_null(json, "eval_loss");
    shc_json_str(json, "model", spec ? spec->model : "");
    shc_json_str(
        json, "strategy",
        shc_view_strategy(&strategy, spec ? spec->strategy : "", job->degrees, job->n_degrees));
    shc_json_open(json, "degrees", '[');
    for (size_t i = 0; i < job->n_degrees; i++)
        shc_json_u64(json, NULL, job->degrees[i]);
    shc_json_close(json, ']');
    if (spec && *spec->reshard_after_forward)
        shc_json_str(json, "reshard_after_forward", spec->reshard_after_forward);
    else
        shc_json_null(json, "reshard_after_forward");
    shc_json_open(json, "ranks", '[');
    for (size_t i = 0; i < job->n_rank_ids; i++)
        shc_json_u64(json, NULL, job->rank_ids[i]);
    shc_json_close(json, ']');
    shc_json_u64(json, "samples", job->samples);
    shc_json_u64(json, "next_seq", job->next_seq);
    shc_json_u64(json, "parameters", job->parameters);
    shc_json_u64(json, "trainable", job->trainable);
    if (job->progress) {
        shc_json_open(json, "progress", '{');
        shc_json_str(json, "what", job->progress->what);
        shc_json_u64(json, "done", job->progress->done);
        shc_json_u64(json, "total", job->progress->total);
        shc_json_close(json, '}');
    } else {
        shc_json_null(json, "progress");
    }
    shc_json_u64(json, "vocab", job->vocab);
    shc_json_u64(json, "context", job->context);
    shc_json_num(json, "created_unix", job->created_unix);
    shc_buf_fini(&strategy);
}

/* Walks the table of flags, so that no field can be forgotten here. */
void shc_json_spec(shc_json *json, const Shard__V1__JobSpec *spec)
{
    shc_json_open(json, "spec", '{');
    for (size_t i = 0; i < shc_spec_table.n; i++) {
        const shc_option *o = &shc_spec_table.options[i];
        if (o->at >= sizeof *spec) /* --file is no field */
            continue;
        const char *base = (const char *)spec, *at = base + o->at;
        if (o->mark && *(const int *)(base + o->has) != o->mark)
            continue;
        switch (o->type) {
        case SHC_BOOL:
        case SHC_ON_OFF:
            shc_json_bool(json, o->name, *(const protobuf_c_boolean *)at);
            break;
        case SHC_WORDS: {
            const size_t n = *(const size_t *)(base + o->has);
            if (!n)
                break;
            shc_json_open(json, o->name, '[');
            for (size_t k = 0; k < n; k++)
                shc_json_str(json, NULL, (*(char **const *)at)[k]);
            shc_json_close(json, ']');
            break;
        }
        case SHC_U32:
            shc_json_u64(json, o->name, *(const uint32_t *)at);
            break;
        case SHC_U64:
        case SHC_SIZE:
            shc_json_u64(json, o->name, *(const uint64_t *)at);
            break;
        case SHC_NUM:
            shc_json_num(json, o->name, *(const double *)at);
            break;
        case SHC_U32_LIST:
            if (!spec->n_shard_degrees)
                break;
            shc_json_open(json, o->name, '[');
            for (size_t k = 0; k < spec->n_shard_degrees; k++)
                shc_json_u64(json, NULL, spec->shard_degrees[k]);
            shc_json_close(json, ']');
            break;
        default:
            if (**(char *const *)at)
                shc_json_str(json, o->name, *(char *const *)at);
            break;
        }
    }
    shc_json_close(json, '}');
}

#include "client/plan_view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/mem.h"
#include "client/table.h"
#include "client/units.h"
#include "client/view.h"

static uint32_t world_of(const Shard__V1__PlanResponse *plan)
{
    return plan->n_degrees >= 4 ? plan->degrees[3] : 1;
}

/* "12.3 ms", "4.56 s" */
static const char *format_ms(char out[SHC_UNIT_LEN], double ms)
{
    if (ms < 999.5)
        snprintf(out, SHC_UNIT_LEN, "%.*f ms", ms < 9.95 ? 2 : 1, ms);
    else
        snprintf(out, SHC_UNIT_LEN, "%.2f s", ms / 1000);
    return out;
}

static void render_head(shc_buf *out, const shc_term *term, const Shard__V1__PlanResponse *plan,
                        const shc_plan_asked *asked)
{
    const Shard__V1__Machine *machine = asked->machine;
    const Shard__V1__JobSpec *spec = plan->spec;
    const uint32_t world = world_of(plan);
    char text[SHC_UNIT_LEN];
    shc_buf strategy = {0};

    shc_buf_puts(out, shc_bold(term));
    shc_text_clean(out, spec ? spec->model : "");
    shc_buf_printf(out, "%s: %s parameters in %u units, %" PRIu64 " elements of padding\n",
                   shc_plain(term), shc_format_count(text, (double)plan->parameters), plan->units,
                   plan->padding);
    shc_buf_puts(out, shc_view_degrees(&strategy, spec ? spec->strategy : "", plan->degrees,
                                       plan->n_degrees, spec ? spec->reshard_after_forward : "",
                                       asked->strategy));
    if (machine && machine->ranks_per_node && machine->ranks_per_node < world)
        shc_buf_printf(out, " in %u nodes of %u", world / machine->ranks_per_node,
                       machine->ranks_per_node);
    if (spec && *spec->dtype)
        shc_buf_printf(out, "; %s, reduced in %s; checkpointing %s; %s", spec->dtype,
                       spec->reduce_dtype, spec->activation_checkpointing, spec->optimizer);
    if (spec && spec->micro_batch && spec->global_batch && world) {
        const uint32_t rounds = spec->global_batch / spec->micro_batch / world;
        shc_buf_printf(
            out, "\na step of %u sequences of %u tokens, %u micro-batch%s of %u on a rank",
            spec->global_batch, spec->seq_len, rounds, rounds == 1 ? "" : "es", spec->micro_batch);
    }
    shc_buf_puts(out, "\n\n");
    shc_buf_fini(&strategy);
}

/* One rank stands for all where the plan is not this daemon's. */
static void render_memory(shc_buf *out, const shc_term *term, const Shard__V1__PlanResponse *plan)
{
    const uint32_t world = world_of(plan);

    if (plan->n_memory != 1 || world == 1) {
        shc_view_memory(out, term, plan->memory, plan->n_memory, 0);
        return;
    }
    Shard__V1__RankMemory **all = shc_calloc(world, sizeof *all);
    for (uint32_t r = 0; r < world; r++)
        all[r] = plan->memory[0];
    shc_view_memory(out, term, all, world, 0);
    free(all);
}

static void render_estimate(shc_buf *out, const shc_term *term, const Shard__V1__Estimate *e)
{
    static const shc_column columns[] = {
        {"a step would take", SHC_LEFT}, {"time", SHC_RIGHT}, {"share", SHC_RIGHT}};
    const struct {
        const char *what;
        double ms;
    } rows[] = {
        {"compute", e->compute_ms},
        {"waits for communication", e->exposed_comm_ms},
        {"norm, optimizer, update", e->optimizer_ms},
        {"total", e->step_ms},
    };
    const size_t n = sizeof rows / sizeof *rows;
    char text[SHC_UNIT_LEN];
    shc_table *table = shc_table_create(columns, 3);

    for (size_t i = 0; i < n; i++) {
        shc_table_cell(table, "%s", rows[i].what);
        shc_table_cell(table, "%s", format_ms(text, rows[i].ms));
        shc_table_cell(table, "%.1f%%", e->step_ms > 0 ? 100 * rows[i].ms / e->step_ms : 0);
    }
    shc_table_row_bold(table);
    shc_table_render(table, term, 2, out);
    shc_table_free(table);
    shc_buf_printf(out, "  %s tokens/s on all ranks, %.1f%% of the stated FLOP rate\n",
                   shc_format_count(text, e->tokens_per_s), 100 * e->flops_share);
}

static void render_advice(shc_buf *out, const shc_term *term, Shard__V1__Advice *const *advice,
                          size_t n)
{
    const int timed = advice[0]->step_ms > 0;
    const shc_column columns[] = {
        {advice[0]->fits ? "what fits, cheapest first" : "what needs least", SHC_LEFT},
        {"checkpointing", SHC_LEFT},
        {"bytes", SHC_RIGHT},
        {"sent/step", SHC_RIGHT},
        {"between nodes", SHC_RIGHT},
        {"step", SHC_RIGHT}};
    char text[SHC_UNIT_LEN];
    shc_buf flags = {0};
    shc_table *table = shc_table_create(columns, timed ? 6 : 5);

    for (size_t i = 0; i < n; i++) {
        const Shard__V1__Advice *a = advice[i];
        shc_buf_clear(&flags);
        shc_text_clean(&flags, a->flags);
        shc_table_cell(table, "%s", shc_buf_str(&flags));
        shc_table_cell(table, "%s", a->activation_checkpointing);
        shc_table_cell(table, "%s", shc_format_bytes(text, a->bytes));
        shc_table_cell(table, "%s", shc_format_bytes(text, a->comm_bytes));
        shc_table_cell(table, "%s", shc_format_bytes(text, a->between_nodes));
        if (timed)
            shc_table_cell(table, "%s", format_ms(text, a->step_ms));
    }
    shc_table_render(table, term, 2, out);
    shc_table_free(table);
    shc_buf_fini(&flags);
}

void shc_plan_render(shc_buf *out, const shc_term *term, const Shard__V1__PlanResponse *plan,
                     const shc_plan_asked *asked)
{
    render_head(out, term, plan, asked);
    render_memory(out, term, plan);
    if (plan->n_comm) {
        shc_buf_puts(out, "\n");
        shc_view_comm(out, term, plan->comm, plan->n_comm, 0);
    }
    if (plan->estimate) {
        shc_buf_puts(out, "\n");
        render_estimate(out, term, plan->estimate);
    }
    if (plan->n_advice) {
        shc_buf_puts(out, "\n");
        render_advice(out, term, plan->advice, plan->n_advice);
    }
    shc_buf_printf(out, "\n%s", shc_bold(term));
    shc_text_clean(out, plan->verdict);
    shc_buf_printf(out, "%s\n", shc_plain(term));
}

/* ---- JSON ---- */

static void json_machine(shc_json *json, const Shard__V1__Machine *m)
{
    shc_json_open(json, "machine", '{');
    shc_json_u64(json, "ranks_per_node", m->ranks_per_node);
    shc_json_u64(json, "device_memory", m->device_memory);
    shc_json_num(json, "flops", m->flops);
    shc_json_num(json, "memory_bandwidth", m->memory_bandwidth);
    shc_json_num(json, "node_bandwidth", m->node_bandwidth);
    shc_json_num(json, "net_bandwidth", m->net_bandwidth);
    shc_json_num(json, "node_latency", m->node_latency);
    shc_json_num(json, "net_latency", m->net_latency);
    shc_json_close(json, '}');
}

static void json_estimate(shc_json *json, const Shard__V1__Estimate *e)
{
    shc_json_open(json, "estimate", '{');
    shc_json_num(json, "step_ms", e->step_ms);
    shc_json_num(json, "compute_ms", e->compute_ms);
    shc_json_num(json, "exposed_comm_ms", e->exposed_comm_ms);
    shc_json_num(json, "optimizer_ms", e->optimizer_ms);
    shc_json_num(json, "tokens_per_s", e->tokens_per_s);
    shc_json_num(json, "flops_share", e->flops_share);
    shc_json_close(json, '}');
}

static void json_degrees(shc_json *json, const uint32_t *degrees, size_t n)
{
    shc_json_open(json, "degrees", '[');
    for (size_t i = 0; i < n; i++)
        shc_json_u64(json, NULL, degrees[i]);
    shc_json_close(json, ']');
}

static void json_advice(shc_json *json, Shard__V1__Advice *const *advice, size_t n)
{
    shc_json_open(json, "advice", '[');
    for (size_t i = 0; i < n; i++) {
        const Shard__V1__Advice *a = advice[i];
        shc_json_open(json, NULL, '{');
        shc_json_str(json, "strategy", a->strategy);
        shc_json_str(json, "flags", a->flags);
        json_degrees(json, a->degrees, a->n_degrees);
        shc_json_str(json, "reshard-after-forward", a->reshard_after_forward);
        shc_json_str(json, "activation-checkpointing", a->activation_checkpointing);
        shc_json_bool(json, "fits", a->fits);
        shc_json_bytes(json, "bytes", a->bytes, SHC_UNKNOWN, SHC_UNKNOWN);
        shc_json_bytes(json, "step_bytes", a->comm_bytes, SHC_UNKNOWN, SHC_UNKNOWN);
        shc_json_bytes(json, "between_nodes", a->between_nodes, SHC_UNKNOWN, SHC_UNKNOWN);
        if (a->step_ms > 0)
            shc_json_num(json, "step_ms", a->step_ms);
        else
            shc_json_null(json, "step_ms");
        shc_json_close(json, '}');
    }
    shc_json_close(json, ']');
}

void shc_plan_json(shc_json *json, const Shard__V1__PlanResponse *plan, const shc_plan_asked *asked)
{
    const Shard__V1__Machine *machine = asked->machine;
    const int known = !machine || machine->device_memory;

    shc_json_open(json, NULL, '{');
    if (known)
        shc_json_bool(json, "fits", plan->fits);
    else
        shc_json_null(json, "fits");
    shc_json_str(json, "verdict", plan->verdict);
    shc_json_u64(json, "parameters", plan->parameters);
    shc_json_u64(json, "units", plan->units);
    shc_json_u64(json, "padding", plan->padding);
    shc_json_bytes(json, "available", known ? plan->available : SHC_UNKNOWN, SHC_UNKNOWN,
                   SHC_UNKNOWN);
    json_degrees(json, plan->degrees, plan->n_degrees);
    shc_json_str(json, "asked_strategy", asked->strategy);
    if (plan->spec)
        shc_json_spec(json, plan->spec);
    shc_json_memory(json, plan->memory, plan->n_memory, 0);
    shc_json_comm(json, plan->comm, plan->n_comm, 0);
    if (machine)
        json_machine(json, machine);
    else
        shc_json_null(json, "machine");
    if (plan->estimate)
        json_estimate(json, plan->estimate);
    else
        shc_json_null(json, "estimate");
    json_advice(json, plan->advice, plan->n_advice);
    shc_json_close(json, '}');
}

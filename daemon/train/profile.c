/* Costs of instructions, and the estimate of a step; see profile.h. Floor F4; one thread. */
#include "daemon/train/profile.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

/* *to += after - before, which may be less than nothing on the way to a difference. */
static void add(shd_comm_cost *to, const shd_comm_cost *after, const shd_comm_cost *before)
{
    to->inside += after->inside - before->inside;
    to->between += after->between - before->between;
    to->node_hops += after->node_hops - before->node_hops;
    to->net_hops += after->net_hops - before->net_hops;
}

static void began(void *arg, const shd_program *program, uint32_t instruction)
{
    shd_profile *p = arg;
    if (!p->counting || program != p->program) {
        return;
    }
    if (instruction == 0) {
        p->rounds++;
        p->flops_later = 0;
    }
    p->instr_work = p->work;
    shd_comm_null_costs(p->comm, p->instr_comm);
}

/* What happened since it began is its own, and not the rest's. */
static void ended(void *arg, const shd_program *program, uint32_t instruction)
{
    shd_profile *p = arg;
    if (!p->counting || program != p->program) {
        return;
    }
    const shd_machine *machine = p->machine;
    shd_sim_cost *cost = &(p->rounds == 1 ? p->first : p->later)[instruction];
    shd_comm_cost now[SHD_COMM_KIND_COUNT], own = {0};
    shd_comm_null_costs(p->comm, now);
    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
        add(&own, &now[k], &p->instr_comm[k]);
        add(&p->rest_comm[k], &p->instr_comm[k], &now[k]);
    }
    *cost = (shd_sim_cost){.seconds = p->work.seconds - p->instr_work.seconds,
                           .latency = own.node_hops * machine->node_latency +
                                      own.net_hops * machine->net_latency,
                           .inside = (double)own.inside,
                           .between = (double)own.between};
    p->rest -= cost->seconds;
    if (program->instrs[instruction].kind != SHD_INSTR_RECOMPUTE) {
        *(p->rounds == 1 ? &p->flops_first : &p->flops_later) +=
            p->work.flops - p->instr_work.flops - (p->work.repeated - p->instr_work.repeated);
    }
}

void shd_profile_init(shd_profile *p, const shd_machine *machine)
{
    *p = (shd_profile){
        .machine = machine,
        .work = {.flops_rate = machine->flops, .memory_rate = machine->memory_bandwidth},
        .hooks = {.began = began, .ended = ended, .arg = p}};
}

void shd_profile_fini(shd_profile *p)
{
    free(p->first);
    free(p->later);
}

void shd_profile_begin(shd_profile *p, const shd_comm *comm, const shd_program *program)
{
    p->comm = comm;
    p->program = program;
    p->first = shd_calloc(program->n, sizeof *p->first);
    p->later = shd_calloc(program->n, sizeof *p->later);
    p->step_work = p->work;
    shd_comm_null_costs(comm, p->step_comm);
    p->counting = 1;
}

void shd_profile_end(shd_profile *p)
{
    shd_comm_cost now[SHD_COMM_KIND_COUNT];
    p->counting = 0;
    p->rest += p->work.seconds - p->step_work.seconds;
    shd_comm_null_costs(p->comm, now);
    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
        add(&p->rest_comm[k], &now[k], &p->step_comm[k]);
        p->comm_between[k] = now[k].between - p->step_comm[k].between;
    }
}

static shd_sim_links links_of(const shd_machine *machine)
{
    return (shd_sim_links){machine->node_bandwidth, machine->net_bandwidth};
}

/* What follows the last micro-batch. Collectives of one kind are of one group here. */
static double rest_seconds(const shd_profile *p)
{
    const shd_sim_links links = links_of(p->machine);
    double seconds = p->rest;
    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
        const shd_comm_cost *comm = &p->rest_comm[k];
        const shd_sim_cost cost = {.latency = comm->node_hops * p->machine->node_latency +
                                              comm->net_hops * p->machine->net_latency,
                                   .inside = (double)comm->inside,
                                   .between = (double)comm->between};
        seconds += shd_sim_seconds(&cost, &links);
    }
    return seconds;
}

void shd_profile_estimate(const shd_profile *p, const shd_spec *spec, shd_estimate *out)
{
    *out = (shd_estimate){.dry_calls = p->work.calls};
    if (p->machine->flops == 0) {
        return;
    }
    const shd_sim_links links = links_of(p->machine);
    const double more = (double)spec->accumulation - 1;
    const shd_sim_result first =
        shd_simulate(p->program->instrs, p->program->n, p->first, &links, NULL);
    const shd_sim_result later =
        more > 0 ? shd_simulate(p->program->instrs, p->program->n, p->later, &links, NULL)
                 : (shd_sim_result){0};
    out->compute_s = first.compute + more * later.compute;
    out->exposed_s = first.exposed + more * later.exposed;
    out->optimizer_s = rest_seconds(p);
    out->step_s = out->compute_s + out->exposed_s + out->optimizer_s;
    out->flops = p->flops_first + more * p->flops_later;
    out->tokens_per_s = (double)spec->global_batch * spec->seq_len / out->step_s;
    out->flops_share = out->flops / (out->step_s * p->machine->flops);
}

void shd_profile_schedule(const shd_profile *p, shd_plan_schedule *out)
{
    const shd_sim_links links = links_of(p->machine);
    out->n = p->program->n;
    out->instrs = shd_calloc(out->n, sizeof *out->instrs);
    out->events = shd_calloc(out->n, sizeof *out->events);
    memcpy(out->instrs, p->program->instrs, out->n * sizeof *out->instrs);
    shd_simulate(out->instrs, out->n, p->first, &links, out->events);
}

void shd_plan_schedule_fini(shd_plan_schedule *schedule)
{
    free(schedule->instrs);
    free(schedule->events);
    *schedule = (shd_plan_schedule){0};
}

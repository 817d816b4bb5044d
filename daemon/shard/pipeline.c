/* The executor of schedules; see pipeline.h. Floor F3; the rank's thread. */
#include "daemon/shard/pipeline.h"

typedef struct run_state {
    const shd_pipeline *pipeline;
    const shd_program *program;
    shd_units *units;
} run_state;

static int reduce(const run_state *r, uint32_t bucket, shd_error *err)
{
    const shd_program *program = r->program;
    const uint32_t end = program->bucket_first[bucket + 1];
    for (uint32_t i = program->bucket_first[bucket]; i < end; i++) {
        const uint32_t u = program->bucket_units[i];
        r->pipeline->complete_grads(r->pipeline->arg, u);
        SHD_TRY(shd_unit_grad_reduce(r->units, u, err));
    }
    return 0;
}

static int reshard(const run_state *r, const shd_instr *instr, shd_error *err)
{
    if (instr->parts < r->units->strategy.p) {
        return shd_unit_keep(r->units, instr->index, err);
    }
    shd_unit_reshard(r->units, instr->index);
    return 0;
}

static int execute(const run_state *r, const shd_instr *instr, shd_error *err)
{
    const shd_pipeline *pl = r->pipeline;
    switch (instr->kind) {
    case SHD_INSTR_GATHER:
        return shd_unit_gather(r->units, instr->index, err);
    case SHD_INSTR_FORWARD:
        return pl->forward != NULL ? pl->forward(pl->arg, instr->index, err) : 0;
    case SHD_INSTR_RECOMPUTE:
        return pl->recompute(pl->arg, instr->index, err);
    case SHD_INSTR_BACKWARD:
        return pl->backward(pl->arg, instr->index, err);
    case SHD_INSTR_RESHARD:
        return reshard(r, instr, err);
    case SHD_INSTR_GRAD_BEGIN:
        return shd_unit_grad_begin(r->units, instr->index, err);
    case SHD_INSTR_REDUCE:
        return reduce(r, instr->index, err);
    case SHD_INSTR_WAIT_GATHER:
    case SHD_INSTR_WAIT_REDUCE:
    case SHD_INSTR_KIND_COUNT:
        break;
    }
    return 0;
}

int shd_pipeline_run(const shd_pipeline *pipeline, const shd_program *program, shd_units *units,
                     shd_error *err)
{
    const run_state r = {pipeline, program, units};
    const shd_pipeline_hooks *hooks = pipeline->hooks;
    for (uint32_t i = 0; i < program->n; i++) {
        if (hooks != NULL) {
            hooks->began(hooks->arg, program, i);
        }
        SHD_TRY(execute(&r, &program->instrs[i], err));
        if (hooks != NULL) {
            hooks->ended(hooks->arg, program, i);
        }
    }
    return 0;
}

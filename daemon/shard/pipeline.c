/* The executor of schedules; see pipeline.h. Floor F3; the rank's thread, and those of its streams
 * for what is queued. */
#include "daemon/shard/pipeline.h"

#include <stdlib.h>

#include "daemon/base/mem.h"

typedef struct execution execution;

/* What was queued for an instruction. */
typedef struct queued {
    execution *of;
    uint64_t ticket;
    shd_bucket bucket; /* of a reduction */
    int reducing;      /* the bucket is to be ended */
} queued;

struct execution {
    const shd_pipeline *pipeline;
    const shd_program *program;
    shd_units *units;
    queued *queue; /* [program->n] */
};

static void began(const execution *e, uint32_t i)
{
    const shd_pipeline_hooks *hooks = e->pipeline->hooks;
    if (hooks != NULL) {
        hooks->began(hooks->arg, e->program, i);
    }
}

static void ended(const execution *e, uint32_t i)
{
    const shd_pipeline_hooks *hooks = e->pipeline->hooks;
    if (hooks != NULL) {
        hooks->ended(hooks->arg, e->program, i);
    }
}

/* ---- what is queued ---- */

/* On the thread of the lane. */
static int run_queued(void *arg, shd_device *dev, shd_error *err)
{
    queued *q = arg;
    const execution *e = q->of;
    const uint32_t i = (uint32_t)(q - e->queue);
    const shd_instr *instr = &e->program->instrs[i];
    began(e, i);
    const int rc = instr->kind == SHD_INSTR_GATHER
                       ? shd_unit_gather_run(e->units, instr->index, dev, err)
                       : shd_units_reduce_run(e->units, &q->bucket, dev, err);
    ended(e, i);
    return rc;
}

static int submit(execution *e, uint32_t i, shd_error *err)
{
    queued *q = &e->queue[i];
    shd_stream *stream = e->pipeline->streams[e->program->instrs[i].lane];
    q->of = e;
    if (stream == NULL) {
        return run_queued(q, e->units->dev, err);
    }
    q->ticket = shd_stream_submit(stream, run_queued, q);
    return 0;
}

static int await(execution *e, uint32_t i, shd_error *err)
{
    shd_stream *stream = e->pipeline->streams[e->program->instrs[i].lane];
    return stream != NULL ? shd_stream_wait(stream, e->queue[i].ticket, err) : 0;
}

static void end_reduce(execution *e, uint32_t i)
{
    queued *q = &e->queue[i];
    if (q->reducing) {
        shd_units_reduce_end(e->units, &q->bucket);
        q->reducing = 0;
    }
}

static int reduce(execution *e, uint32_t i, shd_error *err)
{
    const shd_program *program = e->program;
    const uint32_t bucket = program->instrs[i].index;
    const uint32_t first = program->bucket_first[bucket];
    const uint32_t n = program->bucket_first[bucket + 1] - first;
    const uint32_t *units = program->bucket_units + first;
    queued *q = &e->queue[i];
    for (uint32_t k = 0; k < n; k++) {
        e->pipeline->complete_grads(e->pipeline->arg, units[k]);
    }
    q->reducing = 1;
    SHD_TRY(shd_units_reduce_begin(e->units, units, n, &q->bucket, err));
    SHD_TRY(submit(e, i, err));
    if (program->instrs[i].lane == SHD_LANE_COMPUTE) {
        end_reduce(e, i);
    }
    return 0;
}

static int wait_for(execution *e, uint32_t i, shd_error *err)
{
    const shd_instr *instr = &e->program->instrs[i];
    SHD_TRY(await(e, i, err));
    if (instr->kind == SHD_INSTR_GATHER) {
        shd_unit_gather_end(e->units, instr->index);
    } else {
        end_reduce(e, i);
    }
    return 0;
}

/* ---- everything else ---- */

static int reshard(execution *e, const shd_instr *instr, shd_error *err)
{
    if (instr->parts < e->units->units[instr->index].strategy.p) {
        return shd_unit_keep(e->units, instr->index, err);
    }
    shd_unit_reshard(e->units, instr->index);
    return 0;
}

static int execute(execution *e, uint32_t i, shd_error *err)
{
    const shd_pipeline *pl = e->pipeline;
    const shd_instr *instr = &e->program->instrs[i];
    switch (instr->kind) {
    case SHD_INSTR_GATHER:
        SHD_TRY(shd_unit_gather_begin(e->units, instr->index, err));
        return submit(e, i, err);
    case SHD_INSTR_REDUCE:
        return reduce(e, i, err);
    case SHD_INSTR_WAIT_GATHER:
    case SHD_INSTR_WAIT_REDUCE:
        return wait_for(e, instr->waits_for, err);
    case SHD_INSTR_FORWARD:
        return pl->forward != NULL ? pl->forward(pl->arg, instr->index, err) : 0;
    case SHD_INSTR_RECOMPUTE:
        return pl->recompute(pl->arg, instr->index, err);
    case SHD_INSTR_BACKWARD:
        return pl->backward(pl->arg, instr->index, err);
    case SHD_INSTR_RESHARD:
        return reshard(e, instr, err);
    case SHD_INSTR_GRAD_BEGIN:
        return shd_unit_grad_begin(e->units, instr->index, err);
    case SHD_INSTR_KIND_COUNT:
        break;
    }
    return 0;
}

static int is_queued(const shd_instr *instr)
{
    return instr->kind == SHD_INSTR_GATHER || instr->kind == SHD_INSTR_REDUCE;
}

static int execute_all(execution *e, shd_error *err)
{
    for (uint32_t i = 0; i < e->program->n; i++) {
        const int here = !is_queued(&e->program->instrs[i]);
        if (here) {
            began(e, i);
        }
        SHD_TRY(execute(e, i, err));
        if (here) {
            ended(e, i);
        }
    }
    return 0;
}

/* Nothing may be in the queues, nor wait in them for other ranks, when the memory goes. */
static void abandon(execution *e, int rc, const char *message)
{
    shd_comm_abort(e->units->comm, rc, message);
    for (int lane = 0; lane < SHD_LANE_COUNT; lane++) {
        if (e->pipeline->streams[lane] != NULL) {
            shd_stream_drain(e->pipeline->streams[lane]);
        }
    }
    for (uint32_t i = 0; i < e->program->n; i++) {
        end_reduce(e, i);
    }
}

int shd_pipeline_run(const shd_pipeline *pipeline, const shd_program *program, shd_units *units,
                     shd_error *err)
{
    SHD_TRY(shd_comm_check(units->comm, err)); /* an earlier failure left units as they were */
    execution e = {pipeline, program, units, shd_calloc(program->n, sizeof *e.queue)};
    shd_error failure = {0};
    const int rc = execute_all(&e, &failure);
    if (rc < 0) {
        abandon(&e, rc, failure.message);
    }
    free(e.queue);
    return rc < 0 ? shd_fail(err, rc, "%s", failure.message) : 0;
}

/* A rank's part of a job: its life, and which work is done where; see worker.h. Floor F4; the
 * rank's thread. */
#include "daemon/train/worker.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/train/export.h"
#include "daemon/train/worker_internal.h"

shd_worker *shd_worker_create(const shd_worker_shared *shared, shd_device *dev, shd_comm *comm)
{
    shd_worker *w = shd_calloc(1, sizeof *w);
    const shd_model *model = shared->model;
    const uint32_t n_params = shd_model_n_params(model);
    const uint32_t n_segments = shd_model_n_segments(model);
    /* A plan stages no more than the one sequence that it gives. */
    const size_t sequences = shd_device_is_null(dev) ? 1 : shared->spec->micro_batch;
    const size_t rows = sequences * shared->spec->seq_len;
    w->shared = shared;
    w->dev = dev;
    w->comm = comm;
    if (!shd_device_is_null(dev)) {
        w->timeline = shd_timeline_create(comm);
        w->hooks = shd_timeline_hooks(w->timeline);
    }
    w->params = shd_calloc(n_params, sizeof *w->params);
    w->param_ptrs = shd_calloc(n_params, sizeof *w->param_ptrs);
    shd_worker_make_params(shared, w->params, w->param_ptrs);
    shd_scaler_init(&w->scaler, &shared->spec->scaler);
    w->marks = shd_calloc(n_segments, sizeof *w->marks);
    w->inputs = shd_calloc(n_segments, sizeof *w->inputs);
    w->outputs = shd_calloc(n_segments, sizeof *w->outputs);
    w->host_ids = shd_calloc(rows, sizeof *w->host_ids);
    w->host_targets = shd_calloc(rows, sizeof *w->host_targets);
    w->host_losses = shd_calloc(rows, sizeof *w->host_losses);
    return w;
}

void shd_worker_free(shd_worker *w)
{
    if (w == NULL) {
        return;
    }
    shd_worker_drop_generations(w);
    for (int lane = 0; lane < SHD_LANE_COUNT; lane++) {
        shd_stream_free(w->streams[lane]);
    }
    shd_tape_free(w->tape);
    if (w->units.units != NULL) {
        shd_units_fini(&w->units);
    }
    shd_arena_free(atomic_load(&w->arena));
    shd_timeline_free(w->timeline);
    shd_comm_free(w->comm);
    free(w->params);
    free(w->param_ptrs);
    free(w->marks);
    free(w->inputs);
    free(w->outputs);
    free(w->host_ids);
    free(w->host_targets);
    free(w->host_losses);
    free(w->sums);
    free(w);
}

void shd_worker_set_hooks(shd_worker *w, const shd_pipeline_hooks *hooks)
{
    w->hooks = hooks;
}

const shd_timeline *shd_worker_timeline(const shd_worker *w)
{
    return w->timeline;
}

shd_comm *shd_worker_comm(const shd_worker *w)
{
    return w->comm;
}

const shd_arena *shd_worker_arena(const shd_worker *w)
{
    return atomic_load_explicit(&((shd_worker *)w)->arena, memory_order_acquire);
}

/* ---- init ---- */

static int take(shd_arena *arena, uint64_t bytes, void *out, shd_error *err)
{
    return shd_arena_alloc(arena, SHD_TAG_DATA, bytes, (void **)out, err);
}

static int check_sources(const shd_worker *w, shd_error *err)
{
    const shd_worker_shared *shared = w->shared;
    const uint32_t vocab = (uint32_t)shd_worker_spec(w)->model.vocab;
    if (shd_comm_rank(w->comm) != 0 || shared->data == NULL) {
        return 0;
    }
    SHD_TRY(shd_source_check(shared->data, vocab, err));
    return shared->eval != shared->data && shared->eval != NULL
               ? shd_source_check(shared->eval, vocab, err)
               : 0;
}

int shd_worker_take_memory(shd_worker *w, shd_error *err)
{
    const shd_spec *spec = shd_worker_spec(w);
    const uint64_t rows = (uint64_t)spec->micro_batch * spec->seq_len;
    shd_arena *arena = NULL;
    SHD_TRY(shd_device_arena(w->dev, w->shared->extent, &arena, err));
    atomic_store_explicit(&w->arena, arena, memory_order_release);
    const shd_units_config config = {.dtype = spec->dtype,
                                     .reduce_dtype = spec->reduce_dtype,
                                     .n_states = shd_optim_states(&spec->optim),
                                     .reduction = {spec->determinism, spec->reduction_width}};
    SHD_TRY(shd_units_init(&w->units, &w->shared->layout, &spec->strategy, &config, w->dev, arena,
                           w->comm, err));
    SHD_TRY(take(arena, rows * sizeof *w->ids, &w->ids, err));
    SHD_TRY(take(arena, rows * sizeof *w->targets, &w->targets, err));
    SHD_TRY(take(arena, rows * sizeof *w->losses, &w->losses, err));
    SHD_TRY(take(arena, sizeof *w->loss_sum, &w->loss_sum, err));
    for (int lane = SHD_LANE_COMPUTE + 1; lane < SHD_LANE_COUNT && spec->pipeline.overlap; lane++) {
        w->streams[lane] = shd_stream_create(w->dev, shd_lane_name((shd_lane)lane));
    }
    w->tape = shd_tape_create(w->dev, arena, spec->dtype);
    shd_tape_reserve(w->tape, (int64_t)rows, spec->seq_len);
    return 0;
}

static int do_init(shd_worker *w, uint64_t turn, shd_work *result, shd_error *err)
{
    if (w->rounds == 0) {
        SHD_TRY(check_sources(w, err));
        SHD_TRY(shd_comm_barrier(w->comm, err));
        SHD_TRY(shd_worker_take_memory(w, err));
    }
    return shd_worker_init_params(w, turn, &result->more, err);
}

/* ---- work ---- */

static uint64_t batch_leaves(const shd_worker *w, const shd_batch *batch)
{
    const uint32_t b = shd_worker_spec(w)->micro_batch;
    return ((uint64_t)batch->sequences + b - 1) / b;
}

static uint64_t eval_leaves(const shd_worker *w, const shd_work *work)
{
    const uint32_t b = shd_worker_spec(w)->micro_batch;
    return work->part != NULL ? (work->part->n + b - 1) / b : w->shared->eval_leaves;
}

static int accumulate(shd_worker *w, const shd_work *work, uint64_t leaves, uint64_t sequences,
                      uint64_t turn, shd_work *result, shd_error *err)
{
    SHD_TRY(shd_worker_pass(w, work, leaves, 1, turn, result, err));
    if (!result->more) {
        w->pending_valid += result->valid_tokens;
        w->samples += sequences;
    }
    return 0;
}

static int run(shd_worker *w, const shd_work *work, uint64_t turn, shd_work *result, shd_error *err)
{
    const shd_spec *spec = shd_worker_spec(w);
    const shd_batch *batch = &work->batch;
    if (work->kind != SHD_WORK_INIT && w->tape == NULL) {
        return shd_fail(err, SHD_EINTERNAL, "work for a job that was not initialised");
    }
    switch (work->kind) {
    case SHD_WORK_INIT:
        return do_init(w, turn, result, err);
    case SHD_WORK_DATA_STEP:
        SHD_TRY(accumulate(w, work, spec->global_batch / spec->micro_batch, spec->global_batch,
                           turn, result, err));
        return result->more ? 0 : shd_worker_optim_step(w, work, result, err);
    case SHD_WORK_FORWARD_BACKWARD:
    case SHD_WORK_TRAIN_STEP:
        SHD_TRY(accumulate(w, work, batch_leaves(w, batch), batch->sequences, turn, result, err));
        return work->kind == SHD_WORK_FORWARD_BACKWARD || result->more
                   ? 0
                   : shd_worker_optim_step(w, work, result, err);
    case SHD_WORK_OPTIM_STEP:
        return shd_worker_optim_step(w, work, result, err);
    case SHD_WORK_FORWARD:
        return shd_worker_pass(w, work, batch_leaves(w, batch), 0, turn, result, err);
    case SHD_WORK_EVAL:
        return shd_worker_pass(w, work, eval_leaves(w, work), 0, turn, result, err);
    case SHD_WORK_NEXT_LOGITS:
        return shd_worker_next_logits(w, work, turn, result, err);
    case SHD_WORK_EXPORT:
        return shd_export_run(work->exp, w, turn, &result->more, err);
    case SHD_WORK_RESHARD: /* is between workers: reshard.c */
        break;
    }
    return shd_fail(err, SHD_EINTERNAL, "work of unknown kind %d", (int)work->kind);
}

void shd_worker_run(shd_worker *w, const shd_work *work, uint64_t turn, shd_work *result)
{
    const int fresh = w->rounds == 0;
    if (w->timeline != NULL) {
        shd_timeline_turn(w->timeline, fresh, work->trace);
    }
    if (fresh) {
        const size_t positions = (size_t)work->batch.sequences * work->batch.length;
        *result = *work;
        result->batch = (shd_batch){0};
        result->logits = NULL;
        result->logprobs = work->want_logprobs ? shd_calloc(positions, sizeof(float)) : NULL;
        result->err = (shd_error){0};
    }
    result->more = 0;
    result->rc = run(w, work, turn, result, &result->err);
    if (result->rc < 0 && result->rc != SHD_EINVAL) {
        shd_comm_abort(w->comm, result->rc, result->err.message);
    }
    if (w->timeline != NULL) {
        shd_timeline_turn_done(w->timeline);
        result->exposed_ms = (double)shd_timeline_exposed_ns(w->timeline) * 1e-6;
    }
    result->next_loss_scale = w->scaler.scale;
    result->step = w->step;
    result->samples = w->samples;
}

void shd_worker_drop_pass(shd_worker *w)
{
    free(w->sums);
    w->sums = NULL;
    w->rounds = 0;
}

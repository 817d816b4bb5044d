/* A rank's part of a job; see worker.h. Floor F4; the rank's thread. */
#include "daemon/train/worker.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/optim/adamw.h"
#include "daemon/shard/pipeline.h"
#include "daemon/shard/unit.h"
#include "daemon/tape/tape.h"
#include "kernels/philox.h"

/* One leaf: the micro-batch of one rank in one accumulation round. */
typedef struct leaf {
    uint32_t sequences, length;
    int train;
    int logits; /* the last row's logits are wanted, not losses */
} leaf;

struct shd_worker {
    const shd_worker_shared *shared;
    shd_device *dev;
    shd_comm *comm;
    _Atomic(shd_arena *) arena; /* set once, by INIT */
    shd_units units;
    shd_tape *tape;
    shd_tensor *params; /* [n_params]; data and grad are set while a unit is full */
    shd_tensor **param_ptrs;
    shd_segment *segments;
    /* device memory for one leaf */
    int32_t *ids, *targets; /* [micro_batch * seq_len] */
    float *losses;          /* [micro_batch * seq_len] */
    double *loss_sum;       /* [1] */
    /* host staging for one leaf */
    int32_t *host_ids, *host_targets; /* [micro_batch * (seq_len + 1)] */
    float *host_losses;
    /* the leaf in execution */
    leaf now;
    shd_model_input input;
    shd_tensor *x;
    int64_t *marks; /* [n_segments] */
    /* the job's counters; equal on all ranks */
    uint64_t step, applied, samples;
    uint64_t pending_valid; /* target tokens in the accumulated gradients */
};

/* A rank's sums over one leaf, exchanged at the end of a pass. */
typedef struct leaf_sum {
    double loss;
    uint64_t valid;
} leaf_sum;

static const shd_spec *spec_of(const shd_worker *w) { return w->shared->spec; }
static uint32_t world_of(const shd_worker *w) { return spec_of(w)->strategy.world; }

void shd_worker_layout(shd_worker_shared *shared) {
    const uint32_t n = shd_model_n_params(shared->model);
    int64_t *numel = shd_calloc(n, sizeof *numel);
    uint32_t *unit = shd_calloc(n, sizeof *unit);
    for (uint32_t i = 0; i < n; i++) {
        const shd_param_info *info = shd_model_param(shared->model, i);
        numel[i] = shd_param_numel(info);
        unit[i] = info->unit;
    }
    shd_layout_init(&shared->layout, n, numel, unit, shd_model_n_units(shared->model),
                    shared->spec->strategy.world);
    free(numel);
    free(unit);
}

shd_worker *shd_worker_create(const shd_worker_shared *shared, shd_device *dev, shd_comm *comm) {
    shd_worker *w = shd_calloc(1, sizeof *w);
    const shd_model *model = shared->model;
    const uint32_t n_params = shd_model_n_params(model);
    const uint32_t n_segments = shd_model_n_segments(model);
    const size_t rows = (size_t)shared->spec->micro_batch * shared->spec->seq_len;
    w->shared = shared;
    w->dev = dev;
    w->comm = comm;
    w->params = shd_calloc(n_params, sizeof *w->params);
    w->param_ptrs = shd_calloc(n_params, sizeof *w->param_ptrs);
    for (uint32_t i = 0; i < n_params; i++) {
        const shd_param_info *info = shd_model_param(model, i);
        w->params[i] = (shd_tensor){.ndim = info->ndim, .is_param = 1, .refs = 1};
        memcpy(w->params[i].shape, info->shape, sizeof info->shape);
        w->param_ptrs[i] = &w->params[i];
    }
    w->segments = shd_calloc(n_segments, sizeof *w->segments);
    for (uint32_t s = 0; s < n_segments; s++) {
        w->segments[s].n_units = shd_model_segment_units(
            model, s, w->segments[s].units, &w->segments[s].backward_needs_params);
    }
    w->marks = shd_calloc(n_segments, sizeof *w->marks);
    w->host_ids = shd_calloc(rows + shared->spec->micro_batch, sizeof *w->host_ids);
    w->host_targets = shd_calloc(rows + shared->spec->micro_batch, sizeof *w->host_targets);
    w->host_losses = shd_calloc(rows, sizeof *w->host_losses);
    return w;
}

void shd_worker_free(shd_worker *w) {
    if (w == NULL) {
        return;
    }
    shd_tape_free(w->tape);
    if (w->units.units != NULL) {
        shd_units_fini(&w->units);
    }
    shd_arena_free(atomic_load(&w->arena));
    shd_comm_free(w->comm);
    free(w->params);
    free(w->param_ptrs);
    free(w->segments);
    free(w->marks);
    free(w->host_ids);
    free(w->host_targets);
    free(w->host_losses);
    free(w);
}

shd_comm *shd_worker_comm(const shd_worker *w) { return w->comm; }

const shd_arena *shd_worker_arena(const shd_worker *w) {
    return atomic_load_explicit(&((shd_worker *)w)->arena, memory_order_acquire);
}

/* ---- init ---- */

static void init_params(shd_worker *w) {
    const shd_ops *ops = shd_device_ops(w->dev);
    const shd_opctx *ctx = shd_device_opctx(w->dev);
    for (uint32_t u = 0; u < w->shared->layout.n_units; u++) {
        const shd_range *range = &w->units.units[u].params;
        ops->zero(ctx, range->data, (size_t)(range->end - range->begin) * sizeof(float));
    }
    for (uint32_t i = 0; i < w->shared->layout.n_params; i++) {
        const shd_slot *slot = &w->shared->layout.slots[i];
        const shd_param_info *info = shd_model_param(w->shared->model, i);
        const shd_range *range = &w->units.units[slot->unit].params;
        int64_t first = 0, at = 0;
        const int64_t n = shd_slot_intersect(slot, range->begin, range->end, &first, &at);
        if (n == 0) {
            continue;
        }
        if (info->init_std > 0) {
            ops->fill_normal(ctx, range->data + at, n, spec_of(w)->seed,
                             SHD_STREAM(SHD_STREAM_INIT, i), first, info->init_mean,
                             info->init_std);
        } else {
            ops->fill_constant(ctx, range->data + at, n, info->init_mean);
        }
    }
}

static int take(shd_arena *arena, uint64_t bytes, void *out, shd_error *err) {
    return shd_arena_alloc(arena, SHD_TAG_DATA, bytes, (void **)out, err);
}

static int check_sources(const shd_worker *w, shd_error *err) {
    const shd_worker_shared *shared = w->shared;
    const uint32_t vocab = (uint32_t)spec_of(w)->model.vocab;
    if (shd_comm_rank(w->comm) != 0 || shared->data == NULL) {
        return 0;
    }
    SHD_TRY(shd_source_check(shared->data, vocab, err));
    return shared->eval != shared->data && shared->eval != NULL
               ? shd_source_check(shared->eval, vocab, err)
               : 0;
}

static int do_init(shd_worker *w, shd_error *err) {
    const shd_spec *spec = spec_of(w);
    const uint64_t rows = (uint64_t)spec->micro_batch * spec->seq_len;
    SHD_TRY(check_sources(w, err));
    SHD_TRY(shd_comm_barrier(w->comm, err));
    shd_arena *arena = NULL;
    SHD_TRY(shd_device_arena(w->dev, w->shared->extent, &arena, err));
    atomic_store_explicit(&w->arena, arena, memory_order_release);
    SHD_TRY(shd_units_init(&w->units, &w->shared->layout, &spec->strategy, w->dev, arena, w->comm,
                           err));
    SHD_TRY(take(arena, rows * sizeof *w->ids, &w->ids, err));
    SHD_TRY(take(arena, rows * sizeof *w->targets, &w->targets, err));
    SHD_TRY(take(arena, rows * sizeof *w->losses, &w->losses, err));
    SHD_TRY(take(arena, sizeof *w->loss_sum, &w->loss_sum, err));
    w->tape = shd_tape_create(w->dev, arena);
    shd_tape_reserve(w->tape, (int64_t)rows, spec->seq_len);
    init_params(w);
    return 0;
}

/* ---- compute callbacks of the pipeline ---- */

/* Points the tensors of the units of a segment at the memory they have now. */
static void bind_segment(shd_worker *w, uint32_t segment) {
    const shd_segment *seg = &w->segments[segment];
    for (uint32_t k = 0; k < seg->n_units; k++) {
        const shd_unit *unit = &w->units.units[seg->units[k]];
        for (uint32_t i = 0; i < w->shared->layout.n_params; i++) {
            const shd_slot *slot = &w->shared->layout.slots[i];
            if (slot->unit == seg->units[k]) {
                w->params[i].data = unit->full != NULL ? unit->full + slot->offset : NULL;
                w->params[i].grad =
                    unit->local_grad != NULL ? unit->local_grad + slot->offset : NULL;
            }
        }
    }
}

static int forward_segment(void *arg, uint32_t segment, shd_error *err) {
    shd_worker *w = arg;
    SHD_TRY(shd_comm_check(w->comm, err)); /* a single rank has no collectives to end early in */
    bind_segment(w, segment);
    w->marks[segment] = shd_tape_mark(w->tape);
    shd_model_forward(w->shared->model, segment, w->tape, w->param_ptrs, &w->input, &w->x);
    return shd_tape_error(w->tape, err);
}

static int backward_segment(void *arg, uint32_t segment, shd_error *err) {
    shd_worker *w = arg;
    SHD_TRY(shd_comm_check(w->comm, err));
    bind_segment(w, segment);
    return shd_tape_backward(w->tape, w->marks[segment], err);
}

/* Parameters that nothing flowed back to have zero gradient. */
static void complete_grads(void *arg, uint32_t unit) {
    shd_worker *w = arg;
    for (uint32_t i = 0; i < w->shared->layout.n_params; i++) {
        if (w->shared->layout.slots[i].unit != unit) {
            continue;
        }
        if (!w->params[i].grad_defined) {
            shd_device_ops(w->dev)->zero(
                shd_device_opctx(w->dev),
                w->units.units[unit].local_grad + w->shared->layout.slots[i].offset,
                (size_t)w->shared->layout.slots[i].numel * sizeof(float));
        }
        w->params[i].grad_defined = 0;
    }
}

/* ---- one leaf ---- */

static shd_pipeline pipeline_of(shd_worker *w, int compute) {
    return (shd_pipeline){.n_segments = shd_model_n_segments(w->shared->model),
                          .segments = w->segments,
                          .forward = compute ? forward_segment : NULL,
                          .backward = backward_segment,
                          .complete_grads = complete_grads,
                          .arg = w};
}

/* Runs the leaf that lies in the host staging. */
static int run_leaf(shd_worker *w, const leaf *lf, leaf_sum *sum, shd_error *err) {
    const int64_t rows = (int64_t)lf->sequences * lf->length;
    w->now = *lf;
    w->input = (shd_model_input){.ids = w->ids,
                                 .targets = lf->logits ? NULL : w->targets,
                                 .losses = w->losses,
                                 .sequences = lf->sequences,
                                 .tokens = lf->length};
    shd_device_from_host(w->dev, w->ids, w->host_ids, (size_t)rows * sizeof(int32_t));
    shd_device_from_host(w->dev, w->targets, w->host_targets, (size_t)rows * sizeof(int32_t));
    shd_tape_reset(w->tape, lf->train);
    const shd_pipeline pipeline = pipeline_of(w, 1);
    const int rc = lf->train ? shd_pipeline_train(&pipeline, &w->units, err)
                             : shd_pipeline_forward(&pipeline, &w->units, err);
    SHD_TRY(rc);
    if (lf->logits) {
        return 0;
    }
    *sum = (leaf_sum){0};
    shd_device_ops(w->dev)->sum_losses(shd_device_opctx(w->dev), w->loss_sum, w->losses, rows);
    shd_device_to_host(w->dev, &sum->loss, w->loss_sum, sizeof sum->loss);
    for (int64_t i = 0; i < rows; i++) {
        sum->valid += w->host_targets[i] >= 0;
    }
    return 0;
}

/* Fills the staging from windows [first, first + n) of a sampler. A plan has no source: any
 * token serves. */
static int stage_windows(shd_worker *w, const shd_source *source, const shd_sampler *sampler,
                         uint64_t first, uint32_t n, leaf *out, shd_error *err) {
    const uint32_t T = spec_of(w)->seq_len;
    *out = (leaf){.sequences = n, .length = T};
    if (source == NULL) {
        return 0;
    }
    int32_t *window = shd_malloc(((size_t)T + 1) * sizeof *window);
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        rc = shd_source_read(source, shd_sampler_offset(sampler, first + i), (uint64_t)T + 1,
                             (uint32_t)spec_of(w)->model.vocab, window, err);
        memcpy(w->host_ids + (size_t)i * T, window, (size_t)T * sizeof *window);
        memcpy(w->host_targets + (size_t)i * T, window + 1, (size_t)T * sizeof *window);
    }
    free(window);
    return rc;
}

/* Fills the staging from a client's batch. Beyond its end: one masked token, so that every rank
 * runs the same collectives. */
static void stage_batch(shd_worker *w, const shd_batch *batch, uint64_t leaf_index, leaf *out) {
    const uint32_t b = spec_of(w)->micro_batch;
    const uint64_t first = leaf_index * b;
    if (first >= batch->sequences) {
        *out = (leaf){.sequences = 1, .length = 1};
        w->host_ids[0] = 0;
        w->host_targets[0] = SHD_IGNORE_INDEX;
        return;
    }
    const uint64_t left = batch->sequences - first;
    *out = (leaf){.sequences = left < b ? (uint32_t)left : b, .length = batch->length};
    const size_t n = (size_t)out->sequences * batch->length;
    memcpy(w->host_ids, batch->tokens + first * batch->length, n * sizeof *w->host_ids);
    memcpy(w->host_targets, batch->targets + first * batch->length, n * sizeof *w->host_targets);
}

/* ---- passes: many leaves over all ranks ---- */

typedef struct pass {
    uint64_t leaves; /* in all, in a fixed order; rank r takes leaves j*W + r */
    int train;
} pass;

static int stage_leaf(shd_worker *w, const shd_work *work, uint64_t index, leaf *out,
                      shd_error *err) {
    const shd_worker_shared *shared = w->shared;
    const uint32_t b = spec_of(w)->micro_batch;
    switch (work->kind) {
    case SHD_WORK_DATA_STEP:
        return stage_windows(w, shared->data, &shared->train, w->samples + index * b, b, out, err);
    case SHD_WORK_EVAL: {
        const uint64_t first = index * b;
        const uint64_t all = shared->eval != NULL ? shared->held_out.windows : b;
        if (index >= shared->eval_leaves || first >= all) {
            stage_batch(w, &(shd_batch){0}, 0, out);
            return 0;
        }
        const uint64_t left = all - first;
        return stage_windows(w, shared->eval, &shared->held_out, first,
                             left < b ? (uint32_t)left : b, out, err);
    }
    default: stage_batch(w, &work->batch, index, out); return 0;
    }
}

/* -loss of each row into this rank's share of the batch's log-probabilities. */
static void store_logprobs(shd_worker *w, const shd_work *work, uint64_t index, const leaf *lf,
                           shd_work *result) {
    const uint64_t first = index * spec_of(w)->micro_batch;
    if (result->logprobs == NULL || first >= work->batch.sequences) {
        return;
    }
    const size_t n = (size_t)lf->sequences * lf->length;
    shd_device_to_host(w->dev, w->host_losses, w->losses, n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        /* 0 - x: an ignored row's loss of 0 must not become -0 */
        result->logprobs[first * work->batch.length + i] = 0.0f - w->host_losses[i];
    }
}

/* Runs all leaves; *total gets the sums over all ranks, added in leaf order. */
static int run_pass(shd_worker *w, const shd_work *work, const pass *ps, leaf_sum *total,
                    shd_work *result, shd_error *err) {
    const uint32_t W = world_of(w), rank = shd_comm_rank(w->comm);
    const uint64_t rounds = (ps->leaves + W - 1) / W;
    leaf_sum *mine = shd_calloc(rounds, sizeof *mine);
    leaf_sum *all = shd_calloc(rounds * W, sizeof *all);
    int rc = 0;
    for (uint64_t j = 0; j < rounds && rc == 0; j++) {
        leaf lf;
        rc = stage_leaf(w, work, j * W + rank, &lf, err);
        if (rc < 0) {
            break;
        }
        lf.train = ps->train;
        lf.logits = 0;
        rc = run_leaf(w, &lf, &mine[j], err);
        if (rc == 0 && ps->train) {
            shd_units_round_done(&w->units);
        }
        if (rc == 0) {
            store_logprobs(w, work, j * W + rank, &lf, result);
        }
    }
    if (rc == 0) {
        rc = shd_comm_all_gather_host(w->comm, SHD_COMM_CONTROL, mine, all,
                                      rounds * sizeof *mine, err);
    }
    *total = (leaf_sum){0};
    for (uint64_t j = 0; j < rounds && rc == 0; j++) {
        for (uint32_t r = 0; r < W; r++) {
            total->loss += all[r * rounds + j].loss;
            total->valid += all[r * rounds + j].valid;
        }
    }
    free(mine);
    free(all);
    return rc;
}

static void report_loss(const leaf_sum *total, shd_work *result) {
    result->valid_tokens = total->valid;
    result->loss = total->valid > 0 ? total->loss / (double)total->valid : 0.0;
}

static int do_forward_backward(shd_worker *w, const shd_work *work, uint64_t leaves,
                               shd_work *result, shd_error *err) {
    leaf_sum total;
    SHD_TRY(run_pass(w, work, &(pass){leaves, 1}, &total, result, err));
    w->pending_valid += total.valid;
    report_loss(&total, result);
    return 0;
}

/* ---- the optimizer step ---- */

static void update_unit(shd_worker *w, uint32_t u, const shd_adamw_hyper *hyper) {
    const shd_range params = shd_unit_update_params(&w->units, u);
    const shd_range grads = shd_unit_update_grads(&w->units, u);
    const shd_unit *unit = &w->units.units[u];
    for (uint32_t i = 0; i < w->shared->layout.n_params; i++) {
        const shd_slot *slot = &w->shared->layout.slots[i];
        int64_t first = 0, at = 0;
        const int64_t n = slot->unit == u ? shd_slot_intersect(slot, params.begin, params.end,
                                                               &first, &at)
                                          : 0;
        if (n > 0) {
            shd_adamw_apply(w->dev, params.data + at, grads.data + at, unit->m.data + at,
                            unit->v.data + at, n, hyper,
                            shd_model_param(w->shared->model, i)->decay);
        }
    }
}

static double or_spec(double override, double spec) { return isnan(override) ? spec : override; }

static int do_optim_step(shd_worker *w, const shd_work *work, shd_work *result, shd_error *err) {
    const shd_spec *spec = spec_of(w);
    const uint32_t n_units = w->shared->layout.n_units;
    if (w->units.folded == 0) {
        return shd_fail(err, SHD_EINVAL,
                        "no gradients are accumulated; send ForwardBackward before OptimStep");
    }
    double sumsq = 0;
    for (uint32_t u = 0; u < n_units; u++) {
        SHD_TRY(shd_unit_grad_finish(&w->units, u, err));
        SHD_TRY(shd_unit_sumsq(&w->units, u, &sumsq, err));
    }
    /* Gradients are of the summed loss; the mean over valid tokens comes in here. */
    const double per_token = w->pending_valid > 0 ? 1.0 / (double)w->pending_valid : 0.0;
    const double clip = or_spec(work->clip, spec->clip);
    result->grad_norm = sqrt(sumsq) * per_token;
    result->skipped = !isfinite(result->grad_norm);
    result->lr_used = or_spec(work->lr, shd_schedule_lr(&spec->schedule, w->applied + 1));
    w->step++;
    if (!result->skipped) {
        w->applied++;
        /* As torch.nn.utils.clip_grad_norm_. */
        const double coef = clip > 0 ? fmin(1.0, clip / (result->grad_norm + 1e-6)) : 1.0;
        const shd_adamw_hyper hyper = {
            .lr = result->lr_used,
            .beta1 = spec->beta1,
            .beta2 = spec->beta2,
            .eps = spec->eps,
            .weight_decay = or_spec(work->weight_decay, spec->weight_decay),
            .grad_scale = per_token * coef,
            .t = w->applied,
        };
        for (uint32_t u = 0; u < n_units; u++) {
            update_unit(w, u, &hyper);
            SHD_TRY(shd_unit_update_finish(&w->units, u, err));
        }
    }
    w->units.folded = 0;
    w->pending_valid = 0;
    return 0;
}

/* ---- the other kinds ---- */

static uint64_t batch_leaves(const shd_worker *w, const shd_batch *batch) {
    const uint32_t b = spec_of(w)->micro_batch;
    return ((uint64_t)batch->sequences + b - 1) / b;
}

static int do_forward(shd_worker *w, const shd_work *work, uint64_t leaves, shd_work *result,
                      shd_error *err) {
    leaf_sum total;
    SHD_TRY(run_pass(w, work, &(pass){leaves, 0}, &total, result, err));
    report_loss(&total, result);
    return 0;
}

/* Rank 0 computes; the others take part in the gathers. */
static int do_next_logits(shd_worker *w, const shd_work *work, shd_work *result, shd_error *err) {
    if (shd_comm_rank(w->comm) != 0) {
        const shd_pipeline pipeline = pipeline_of(w, 0);
        return shd_pipeline_forward(&pipeline, &w->units, err);
    }
    leaf lf;
    stage_batch(w, &work->batch, 0, &lf);
    lf.train = 0;
    lf.logits = 1;
    SHD_TRY(run_leaf(w, &lf, NULL, err));
    const size_t bytes = (size_t)spec_of(w)->model.vocab * sizeof(float);
    result->logits = shd_malloc(bytes);
    shd_device_to_host(w->dev, result->logits, w->x->data, bytes);
    shd_tape_reset(w->tape, 0);
    return 0;
}

static int run(shd_worker *w, const shd_work *work, shd_work *result, shd_error *err) {
    const shd_spec *spec = spec_of(w);
    if (work->kind != SHD_WORK_INIT && w->tape == NULL) {
        return shd_fail(err, SHD_EINTERNAL, "work for a job that was not initialised");
    }
    switch (work->kind) {
    case SHD_WORK_INIT: return do_init(w, err);
    case SHD_WORK_DATA_STEP:
        SHD_TRY(do_forward_backward(w, work, spec->global_batch / spec->micro_batch, result, err));
        w->samples += spec->global_batch;
        return do_optim_step(w, work, result, err);
    case SHD_WORK_FORWARD_BACKWARD:
    case SHD_WORK_TRAIN_STEP:
        SHD_TRY(do_forward_backward(w, work, batch_leaves(w, &work->batch), result, err));
        w->samples += work->batch.sequences;
        return work->kind == SHD_WORK_TRAIN_STEP ? do_optim_step(w, work, result, err) : 0;
    case SHD_WORK_OPTIM_STEP: return do_optim_step(w, work, result, err);
    case SHD_WORK_FORWARD: return do_forward(w, work, batch_leaves(w, &work->batch), result, err);
    case SHD_WORK_EVAL: return do_forward(w, work, w->shared->eval_leaves, result, err);
    case SHD_WORK_NEXT_LOGITS: return do_next_logits(w, work, result, err);
    }
    return shd_fail(err, SHD_EINTERNAL, "work of unknown kind %d", (int)work->kind);
}

void shd_worker_run(shd_worker *w, const shd_work *work, shd_work *result) {
    *result = *work;
    result->batch = (shd_batch){0};
    result->logits = NULL;
    result->logprobs =
        work->want_logprobs
            ? shd_calloc((size_t)work->batch.sequences * work->batch.length, sizeof(float))
            : NULL;
    result->err = (shd_error){0};
    result->rc = run(w, work, result, &result->err);
    if (result->rc < 0 && result->rc != SHD_EINVAL) {
        shd_comm_abort(w->comm, result->rc, result->err.message);
    }
    result->step = w->step;
    result->samples = w->samples;
}

/* The part of parameter `index` inside a range of its unit: its first element there, where that
 * lies in memory, and how many follow. */
static float *part_of(const shd_worker *w, uint32_t index, const shd_range *range, int64_t *first,
                      size_t *bytes) {
    int64_t at = 0;
    const int64_t n = shd_slot_intersect(&w->shared->layout.slots[index], range->begin,
                                         range->end, first, &at);
    *bytes = (size_t)n * sizeof(float);
    return range->data + at;
}

static const shd_unit *unit_of(const shd_worker *w, uint32_t index) {
    return &w->units.units[w->shared->layout.slots[index].unit];
}

void shd_worker_read_param(const shd_worker *w, uint32_t index, float *out) {
    int64_t first = 0;
    size_t bytes = 0;
    const float *part = part_of(w, index, &unit_of(w, index)->params, &first, &bytes);
    if (bytes > 0) {
        shd_device_to_host(w->dev, out + first, part, bytes);
    }
}

void shd_worker_write_param(shd_worker *w, uint32_t index, const float *in) {
    int64_t first = 0;
    size_t bytes = 0;
    float *part = part_of(w, index, &unit_of(w, index)->params, &first, &bytes);
    if (bytes > 0) {
        shd_device_from_host(w->dev, part, in + first, bytes);
    }
}

void shd_worker_read_grad(const shd_worker *w, uint32_t index, float *out) {
    const shd_range atom = shd_unit_atom(&w->units, w->shared->layout.slots[index].unit);
    int64_t first = 0;
    size_t bytes = 0;
    const float *part = part_of(w, index, &atom, &first, &bytes);
    if (bytes > 0) {
        shd_device_to_host(w->dev, out + first, part, bytes);
    }
}

/* Passes: micro-batches over all ranks, from staging the tokens to the exchanged sums. Floor F4;
 * the rank's thread. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/train/worker_internal.h"

/* ---- compute, as the pipeline calls it ---- */

static void *element(void *data, shd_dtype dtype, int64_t i)
{
    return data != NULL ? (char *)data + i * (int64_t)shd_dtype_size(dtype) : NULL;
}

/* Points the tensors of the units of a segment at the memory they have now. */
static void bind_segment(shd_worker *w, uint32_t segment)
{
    const shd_segment *seg = &w->shared->segments[segment];
    const shd_dtype dtype = w->units.config.dtype;
    for (uint32_t k = 0; k < seg->n_units; k++) {
        const shd_unit *unit = &w->units.units[seg->units[k]];
        for (uint32_t i = 0; i < w->shared->layout.n_params; i++) {
            const shd_slot *slot = &w->shared->layout.slots[i];
            if (slot->unit == seg->units[k]) {
                w->params[i].data = element(unit->full, dtype, slot->offset);
                w->params[i].grad = element(unit->local_grad, dtype, slot->offset);
            }
        }
    }
}

static int is_recomputed(const shd_worker *w, uint32_t segment)
{
    return w->training && w->shared->segments[segment].recompute &&
           segment >= w->shared->first_backward;
}

static int forward_segment(void *arg, uint32_t segment, shd_error *err)
{
    shd_worker *w = arg;
    SHD_TRY(shd_comm_check(w->comm, err)); /* a single rank has no collectives to end early in */
    bind_segment(w, segment);
    const int again = is_recomputed(w, segment);
    if (again) {
        shd_tape_record(w->tape, 0);
        shd_tape_hold(w->tape, w->x);
        w->inputs[segment] = w->x;
    }
    w->marks[segment] = shd_tape_mark(w->tape);
    shd_model_forward(w->shared->model, segment, w->tape, w->param_ptrs, &w->input, &w->x);
    if (again) {
        shd_tape_record(w->tape, 1);
        w->outputs[segment] = w->x;
    }
    return shd_tape_error(w->tape, err);
}

/* Forward once more, now recorded; what has flowed back to the first output goes to the second. */
static int recompute_segment(void *arg, uint32_t segment, shd_error *err)
{
    shd_worker *w = arg;
    SHD_TRY(shd_comm_check(w->comm, err));
    bind_segment(w, segment);
    w->marks[segment] = shd_tape_mark(w->tape);
    shd_tensor *x = w->inputs[segment]; /* with the handle that was held */
    shd_model_forward(w->shared->model, segment, w->tape, w->param_ptrs, &w->input, &x);
    SHD_TRY(shd_tape_error(w->tape, err));
    shd_tape_move_grad(w->tape, w->outputs[segment], x);
    shd_tape_drop(w->tape, x);
    return shd_tape_error(w->tape, err);
}

static int backward_segment(void *arg, uint32_t segment, shd_error *err)
{
    shd_worker *w = arg;
    SHD_TRY(shd_comm_check(w->comm, err));
    bind_segment(w, segment);
    return shd_tape_backward(w->tape, w->marks[segment], err);
}

/* Parameters that nothing flowed back to have zero gradient, and all of a leaf beyond the end. */
static void complete_grads(void *arg, uint32_t unit)
{
    shd_worker *w = arg;
    const shd_dtype dtype = w->units.config.dtype;
    for (uint32_t i = 0; i < w->shared->layout.n_params; i++) {
        const shd_slot *slot = &w->shared->layout.slots[i];
        if (slot->unit != unit) {
            continue;
        }
        if (!w->params[i].grad_defined || w->beyond) {
            shd_device_ops(w->dev)->zero(
                shd_device_opctx(w->dev),
                element(w->units.units[unit].local_grad, dtype, slot->offset),
                (size_t)slot->numel * shd_dtype_size(dtype));
        }
        w->params[i].grad_defined = 0;
    }
}

/* ---- one leaf ---- */

/* One leaf: the micro-batch of one rank in one accumulation round. */
typedef struct leaf {
    uint32_t sequences, length;
    uint64_t first_sample; /* global index of the first sequence */
    int train, beyond;
} leaf;

static shd_pipeline pipeline_of(shd_worker *w, int compute)
{
    shd_pipeline pipeline = {.forward = compute ? forward_segment : NULL,
                             .backward = backward_segment,
                             .recompute = recompute_segment,
                             .complete_grads = complete_grads,
                             .arg = w,
                             .hooks = w->hooks};
    memcpy(pipeline.streams, w->streams, sizeof pipeline.streams);
    return pipeline;
}

/* Evaluation runs without dropout. */
static shd_model_dropout dropout_of(const shd_worker *w, const leaf *lf)
{
    const shd_spec *spec = shd_worker_spec(w);
    return (shd_model_dropout){.p = lf->train ? (float)spec->dropout : 0.0f,
                               .seed = spec->seed,
                               .step = w->step,
                               .first_sample = lf->first_sample};
}

static int run_pipeline(shd_worker *w, int train, shd_error *err)
{
    const shd_pipeline pipeline = pipeline_of(w, 1);
    w->training = train;
    shd_tape_reset(w->tape, train);
    return shd_pipeline_run(
        &pipeline, train ? &w->shared->train_program : &w->shared->forward_program, &w->units, err);
}

/* Runs the leaf that lies in the host staging. */
static int run_leaf(shd_worker *w, const leaf *lf, shd_leaf_sum *sum, shd_error *err)
{
    const int64_t rows = (int64_t)lf->sequences * lf->length;
    w->input = (shd_model_input){.ids = w->ids,
                                 .targets = w->targets,
                                 .losses = w->losses,
                                 .sequences = lf->sequences,
                                 .tokens = lf->length,
                                 .dropout = dropout_of(w, lf)};
    shd_device_from_host(w->dev, w->ids, w->host_ids, (size_t)rows * sizeof(int32_t));
    shd_device_from_host(w->dev, w->targets, w->host_targets, (size_t)rows * sizeof(int32_t));
    w->beyond = lf->beyond;
    shd_tape_set_loss_scale(w->tape, (float)shd_worker_grad_factor(w));
    SHD_TRY(run_pipeline(w, lf->train, err));
    *sum = (shd_leaf_sum){0};
    shd_device_ops(w->dev)->sum_losses(shd_device_opctx(w->dev), w->loss_sum, w->losses, rows);
    shd_device_to_host(w->dev, &sum->loss, w->loss_sum, sizeof sum->loss);
    for (int64_t i = 0; i < rows && !shd_device_is_null(w->dev); i++) {
        sum->valid += w->host_targets[i] >= 0;
    }
    return 0;
}

int shd_worker_pass_tokens(shd_worker *w, const int32_t *tokens, uint32_t n,
                           const shd_kv_cache *cache, float *logits, shd_error *err)
{
    if (shd_comm_rank(w->comm) != 0) {
        const shd_pipeline pipeline = pipeline_of(w, 0);
        return shd_pipeline_run(&pipeline, &w->shared->forward_program, &w->units, err);
    }
    w->input = (shd_model_input){.ids = w->ids, .sequences = 1, .tokens = n, .cache = cache};
    shd_device_from_host(w->dev, w->ids, tokens, n * sizeof *tokens);
    SHD_TRY(run_pipeline(w, 0, err));
    if (logits != NULL) {
        shd_device_to_host(w->dev, logits, w->x->data,
                           (size_t)shd_worker_spec(w)->model.vocab * sizeof(float));
    }
    shd_tape_reset(w->tape, 0);
    return 0;
}

_Static_assert(SHD_IGNORE_INDEX == SHD_WINDOWS_IGNORED, "one mark for targets that do not count");

/* Fills the staging from samples [first, first + n). A plan has no windows: any token serves. */
static int stage_windows(shd_worker *w, const shd_windows *windows, uint64_t first, uint32_t n,
                         leaf *out, shd_error *err)
{
    const uint32_t T = shd_worker_spec(w)->seq_len;
    *out = (leaf){.sequences = n, .length = T};
    if (windows == NULL) {
        return shd_device_is_null(w->dev)
                   ? 0
                   : shd_fail(err, SHD_EINTERNAL, "a step on data for a job that has none");
    }
    int rc = 0;
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        rc = shd_windows_read(windows, first + i, (uint32_t)shd_worker_spec(w)->model.vocab,
                              w->host_ids + (size_t)i * T, w->host_targets + (size_t)i * T, err);
    }
    /* EINVAL would mean that every rank refused before it changed anything. */
    return rc == SHD_EINVAL ? SHD_EINTERNAL : rc;
}

/* Fills the staging from a client's batch. Beyond its end: one masked token, so that every rank
 * runs the same collectives. */
static void stage_batch(shd_worker *w, const shd_batch *batch, uint64_t leaf_index, leaf *out)
{
    const uint32_t b = shd_worker_spec(w)->micro_batch;
    const uint64_t first = leaf_index * b;
    if (first >= batch->sequences) {
        *out = (leaf){.sequences = 1, .length = 1, .beyond = 1};
        w->host_ids[0] = 0;
        w->host_targets[0] = SHD_IGNORE_INDEX;
        return;
    }
    const uint64_t left = batch->sequences - first;
    *out = (leaf){.sequences = left < b ? (uint32_t)left : b,
                  .length = batch->length,
                  .first_sample = w->samples + first};
    const size_t n = (size_t)out->sequences * batch->length;
    memcpy(w->host_ids, batch->tokens + first * batch->length, n * sizeof *w->host_ids);
    memcpy(w->host_targets, batch->targets + first * batch->length, n * sizeof *w->host_targets);
}

/* ---- passes: many leaves over all ranks ---- */

/* The windows of the job's own evaluations. */
static shd_eval_part own_part(const shd_worker *w)
{
    const shd_worker_shared *shared = w->shared;
    const uint64_t b = shd_worker_spec(w)->micro_batch, most = shared->eval_leaves * b;
    const uint64_t all = shared->eval != NULL ? shd_windows_count(shared->held_out) : b;
    return (shd_eval_part){.windows = shared->held_out, .n = all < most ? all : most};
}

static int stage_leaf(shd_worker *w, const shd_work *work, uint64_t index, leaf *out,
                      shd_error *err)
{
    const shd_worker_shared *shared = w->shared;
    const uint32_t b = shd_worker_spec(w)->micro_batch;
    switch (work->kind) {
    case SHD_WORK_DATA_STEP:
        SHD_TRY(stage_windows(w, shared->train, w->samples + index * b, b, out, err));
        out->first_sample = w->samples + index * b;
        return 0;
    case SHD_WORK_EVAL: {
        const shd_eval_part own = own_part(w), *part = work->part != NULL ? work->part : &own;
        const uint64_t done = index * b;
        if (done >= part->n) {
            stage_batch(w, &(shd_batch){0}, 0, out);
            return 0;
        }
        const uint64_t left = part->n - done;
        return stage_windows(w, part->windows, part->first + done, left < b ? (uint32_t)left : b,
                             out, err);
    }
    default:
        stage_batch(w, &work->batch, index, out);
        return 0;
    }
}

/* -loss of each row into this rank's share of the batch's log-probabilities. */
static void store_logprobs(shd_worker *w, const shd_work *work, uint64_t index, const leaf *lf,
                           shd_work *result)
{
    const uint64_t first = index * shd_worker_spec(w)->micro_batch;
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

/* A file that is evaluated may be damaged, or changed meanwhile. The ranks must run the same
 * collectives all the same: a leaf that cannot be read is an empty one, and the error comes at the
 * pass's end. */
static int stage(shd_worker *w, const shd_work *work, uint64_t index, leaf *out, shd_error *err)
{
    shd_error found = {0};
    const int rc = stage_leaf(w, work, index, out, &found);
    if (rc < 0 && work->part == NULL) {
        *err = found;
        return rc;
    }
    if (rc < 0) {
        w->damage = w->damage.code == 0 ? found : w->damage;
        stage_batch(w, &(shd_batch){0}, 0, out);
    }
    return 0;
}

/* Bytes of text that the valid targets of a leaf stand for. */
static uint64_t bytes_of(const shd_worker *w, const shd_work *work, const leaf *lf)
{
    uint64_t bytes = 0;
    const int64_t rows = (int64_t)lf->sequences * lf->length;
    for (int64_t i = 0; work->part != NULL && work->part->token_bytes != NULL && i < rows; i++) {
        bytes += w->host_targets[i] >= 0 ? work->part->token_bytes[w->host_targets[i]] : 0;
    }
    return bytes;
}

/* Exchanges the sums of all leaves and adds them in leaf order. */
static int finish_pass(shd_worker *w, shd_work *result, shd_error *err)
{
    const uint32_t W = shd_worker_spec(w)->strategy.world;
    shd_leaf_sum *all = shd_calloc(w->rounds * W, sizeof *all);
    shd_worker_span_begin(w);
    const int rc = shd_comm_all_gather_host(w->comm, SHD_COMM_CONTROL, w->sums, all,
                                            w->rounds * sizeof *all, err);
    shd_worker_span_end(w, SHD_SPAN_EXCHANGE, 0);
    for (uint64_t j = 0; j < w->rounds && rc == 0; j++) {
        for (uint32_t r = 0; r < W; r++) {
            const shd_leaf_sum *sum = &all[r * w->rounds + j];
            result->loss_sum += sum->loss;
            result->valid_tokens += sum->valid;
            result->text_bytes += sum->bytes;
        }
    }
    result->loss = result->valid_tokens > 0 ? result->loss_sum / (double)result->valid_tokens : 0.0;
    free(all);
    shd_worker_drop_pass(w);
    if (rc == 0 && w->damage.code != 0) { /* nothing was changed: the job is as it was */
        *err = w->damage;
        return SHD_EINVAL;
    }
    return rc;
}

int shd_worker_pass(shd_worker *w, const shd_work *work, uint64_t leaves, int train, uint64_t turn,
                    shd_work *result, shd_error *err)
{
    const uint32_t W = shd_worker_spec(w)->strategy.world, rank = shd_comm_rank(w->comm);
    if (train) {
        shd_worker_drop_generations(w);
    }
    if (w->rounds == 0) {
        w->round = 0;
        w->rounds = (leaves + W - 1) / W;
        w->sums = shd_calloc(w->rounds, sizeof *w->sums);
        w->damage = (shd_error){0};
    }
    for (; w->round < w->rounds && turn > 0; w->round++, turn--) {
        const uint64_t index = w->round * W + rank;
        leaf lf;
        SHD_TRY(stage(w, work, index, &lf, err));
        lf.train = train;
        if (w->timeline != NULL) {
            shd_timeline_round(w->timeline, (uint32_t)w->round);
        }
        SHD_TRY(run_leaf(w, &lf, &w->sums[w->round], err));
        w->sums[w->round].bytes = bytes_of(w, work, &lf);
        if (train) {
            shd_units_round_done(&w->units);
        }
        store_logprobs(w, work, index, &lf, result);
    }
    result->more = w->round < w->rounds;
    if (result->more) {
        return 0;
    }
    if (train) {
        shd_units_batch_done(&w->units);
    }
    return finish_pass(w, result, err);
}

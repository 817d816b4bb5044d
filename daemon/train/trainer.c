/* A job over its ranks: hands work to workers by message and joins their answers; see trainer.h.
 * Floor F4; the submitter's thread, `done` on a rank's thread. */
#include "daemon/train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/train/trainer_internal.h"

void shd_work_init(shd_work *work, shd_work_kind kind)
{
    *work = (shd_work){.kind = kind, .lr = NAN, .clip = NAN, .weight_decay = NAN};
}

void shd_work_fini(shd_work *work)
{
    free(work->batch.tokens);
    free(work->batch.targets);
    free(work->logprobs);
    free(work->logits);
    work->batch = (shd_batch){0};
    work->logprobs = NULL;
    work->logits = NULL;
}

/* What workers read. */
static void share_data(const shd_train_data *data, shd_crew *crew)
{
    shd_worker_shared *sh = &crew->shared;
    sh->data = data->data;
    sh->eval = data->eval;
    sh->train = data->train;
    sh->held_out = data->held_out;
    sh->eval_leaves = shd_train_data_eval_leaves(data, &crew->spec);
}

void shd_trainer_set_data(shd_trainer *t, shd_train_data *data)
{
    t->data = data;
    share_data(data, t->crew);
}

int shd_crew_create(shd_trainer *t, const shd_spec *spec, const shd_plan *plan,
                    shd_rank *const *ranks, shd_crew **out, shd_error *err)
{
    const uint32_t W = spec->strategy.world;
    shd_crew *crew = shd_calloc(1, sizeof *crew);
    shd_spec_copy(&crew->spec, spec);
    crew->plan = *plan;
    crew->shared = (shd_worker_shared){.spec = &crew->spec,
                                       .model = t->model,
                                       .extent = plan->extent,
                                       .caches = plan->generate_caches,
                                       .from = t->from};
    if (t->data != NULL) {
        share_data(t->data, crew);
    }
    const int rc = shd_worker_layout(&crew->shared, err);
    if (rc < 0) {
        shd_crew_free(crew);
        return rc;
    }
    shd_comm **comms = shd_calloc(W, sizeof(shd_comm *));
    shd_comm_local_create(W, comms);
    crew->slots = shd_calloc(W, sizeof *crew->slots);
    for (uint32_t r = 0; r < W; r++) {
        crew->slots[r] = (shd_crew_slot){.trainer = t, .rank = ranks[r]};
        crew->slots[r].worker =
            shd_worker_create(&crew->shared, shd_rank_device(ranks[r]), comms[r]);
    }
    free(comms);
    *out = crew;
    return 0;
}

void shd_crew_free(shd_crew *crew)
{
    if (crew == NULL) {
        return;
    }
    for (uint32_t r = 0; crew->slots != NULL && r < crew->spec.strategy.world; r++) {
        shd_work_fini(&crew->slots[r].result);
        shd_worker_free(crew->slots[r].worker);
    }
    free(crew->slots);
    shd_worker_layout_fini(&crew->shared);
    shd_spec_fini(&crew->spec);
    free(crew);
}

int shd_trainer_create(const shd_spec *spec, const shd_plan *plan, shd_rank *const *ranks,
                       shd_source *data, shd_source *eval, const shd_param_source *from,
                       shd_trainer **out, shd_error *err)
{
    shd_trainer *t = shd_calloc(1, sizeof *t);
    if (from != NULL) {
        t->from = *from;
    }
    shd_scaler scaler;
    shd_scaler_init(&scaler, &spec->scaler);
    atomic_init(&t->loss_scale, scaler.scale);
    int rc = data != NULL ? shd_train_data_cut(spec, data, eval, &t->data, err) : 0;
    rc = rc == 0 ? shd_model_create(&spec->model, &t->model, err) : rc;
    rc = rc == 0 ? shd_crew_create(t, spec, plan, ranks, &t->crew, err) : rc;
    if (rc < 0) {
        shd_trainer_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void shd_trainer_free(shd_trainer *t)
{
    if (t == NULL) {
        return;
    }
    shd_crew_free(t->crew);
    shd_train_data_free(t->data);
    shd_model_free(t->model);
    free(t->comm_before);
    free(t);
}

static int check_sequence(const shd_trainer *t, const shd_batch *b, uint32_t s, shd_error *err)
{
    const int64_t vocab = t->crew->spec.model.vocab;
    for (uint32_t i = 0; i < b->length; i++) {
        const size_t at = (size_t)s * b->length + i;
        if (b->tokens[at] < 0 || b->tokens[at] >= vocab) {
            return shd_fail(err, SHD_EINVAL,
                            "sequence %u, position %u: token id %d is not in the model's "
                            "vocabulary of %lld",
                            s, i, b->tokens[at], (long long)vocab);
        }
        if (b->targets[at] != SHD_IGNORE_INDEX && (b->targets[at] < 0 || b->targets[at] >= vocab)) {
            return shd_fail(err, SHD_EINVAL,
                            "sequence %u, position %u: target %d is neither in the model's "
                            "vocabulary of %lld nor %d (ignored)",
                            s, i, b->targets[at], (long long)vocab, SHD_IGNORE_INDEX);
        }
    }
    return 0;
}

int shd_trainer_check_batch(const shd_trainer *t, const shd_work *work, shd_error *err)
{
    const shd_batch *b = &work->batch;
    if (b->sequences == 0 || b->length == 0) {
        return shd_fail(err, SHD_EINVAL, "the batch is empty; send at least one token");
    }
    if (b->length > t->crew->spec.seq_len) {
        return shd_fail(err, SHD_EINVAL,
                        "a sequence has %u tokens; the job was planned for %u (--seq-len) of the "
                        "model's context of %lld",
                        b->length, t->crew->spec.seq_len, (long long)t->crew->spec.model.context);
    }
    for (uint32_t s = 0; s < b->sequences; s++) {
        SHD_TRY(check_sequence(t, b, s, err));
    }
    return 0;
}

/* Log-probabilities of different leaves come from different ranks; elsewhere each has zeros. */
static void merge_logprobs(shd_trainer *t, shd_work *work)
{
    work->logprobs = t->crew->slots[0].result.logprobs;
    t->crew->slots[0].result.logprobs = NULL;
    if (work->logprobs == NULL) {
        return;
    }
    const size_t n = (size_t)work->batch.sequences * work->batch.length;
    for (uint32_t r = 1; r < t->crew->spec.strategy.world; r++) {
        for (size_t i = 0; i < n; i++) {
            work->logprobs[i] += t->crew->slots[r].result.logprobs[i];
        }
    }
}

/* Work whose rounds take about the same time. */
static shd_pace pace_of(const shd_work *work)
{
    switch (work->kind) {
    case SHD_WORK_DATA_STEP:
    case SHD_WORK_FORWARD_BACKWARD:
    case SHD_WORK_TRAIN_STEP:
        return SHD_PACE_GRADIENTS;
    case SHD_WORK_INIT:
        return SHD_PACE_FIRST_VALUES;
    case SHD_WORK_EXPORT:
        return SHD_PACE_EXPORT;
    case SHD_WORK_RESHARD:
        return SHD_PACE_RESHARD;
    default:
        return SHD_PACE_FORWARD;
    }
}

/* Rounds that fit into a turn, by how long the last ones took. */
static uint64_t rounds_of_turn(const shd_trainer *t, const shd_work *work)
{
    const double ms = t->round_ms[pace_of(work)];
    const double fit = ms > 0 ? SHD_TURN_MS / ms : 1;
    return fit < 1 ? 1 : fit > 1e6 ? 1000000 : (uint64_t)fit;
}

static double ms_since(const struct timespec *then)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then->tv_sec) * 1e3 + (double)(now.tv_nsec - then->tv_nsec) * 1e-6;
}

static void release_results(shd_trainer *t)
{
    for (uint32_t r = 0; r < t->crew->spec.strategy.world; r++) {
        shd_work_fini(&t->crew->slots[r].result);
    }
}

/* Of the workers, after a turn. */
static void take_results(shd_trainer *t, shd_work *work)
{
    const shd_work *from = &t->crew->slots[0].result;
    work->rc = 0;
    for (uint32_t r = 0; r < t->crew->spec.strategy.world; r++) {
        /* After an abort every rank carries the message of the one that failed first. */
        if (t->crew->slots[r].result.rc < 0 && work->rc == 0) {
            work->rc = t->crew->slots[r].result.rc;
            work->err = t->crew->slots[r].result.err;
        }
    }
    work->loss = from->loss;
    work->loss_sum = from->loss_sum;
    work->valid_tokens = from->valid_tokens;
    work->text_bytes = from->text_bytes;
    work->grad_norm = from->grad_norm;
    work->lr_used = from->lr_used;
    work->step = from->step;
    work->samples = from->samples;
    work->skipped = from->skipped;
    work->overflow = from->overflow;
    work->loss_scale = from->loss_scale;
    work->next_loss_scale = from->next_loss_scale;
    atomic_store(&t->loss_scale, from->next_loss_scale);
    work->exposed_ms = from->exposed_ms;
    work->more = work->rc == 0 && from->more;
    if (!work->more && work->rc == 0) {
        merge_logprobs(t, work);
        work->logits = from->logits;
        t->crew->slots[0].result.logits = NULL;
    }
    if (!work->more) {
        release_results(t);
    }
}

static void finish(shd_trainer *t)
{
    shd_work *work = t->work;
    const double ms = ms_since(&t->started);
    if (work->kind == SHD_WORK_RESHARD) {
        shd_reshard_result(work->reshard, work);
    } else {
        take_results(t, work);
    }
    work->ms += ms;
    t->unfinished = work->more ? work : NULL;
    if (work->more) {
        t->round_ms[pace_of(work)] = ms / (double)t->turn;
    }
    t->work = NULL;
    work->done(work, work->done_arg);
}

void shd_trainer_rank_done(shd_trainer *t)
{
    if (atomic_fetch_sub(&t->remaining, 1) == 1) {
        finish(t);
    }
}

static void run_slot(shd_rank *rank, void *arg)
{
    (void)rank;
    shd_crew_slot *slot = arg;
    shd_worker_run(slot->worker, slot->trainer->work, slot->trainer->turn, &slot->result);
    shd_trainer_rank_done(slot->trainer);
}

void shd_trainer_submit(shd_trainer *t, shd_work *work)
{
    const uint32_t W = t->crew->spec.strategy.world;
    t->work = work;
    t->turn = rounds_of_turn(t, work);
    if (work != t->unfinished) {
        work->ms = 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &t->started);
    if (work->kind == SHD_WORK_RESHARD) {
        shd_reshard_post(work->reshard);
        return;
    }
    atomic_store(&t->remaining, W);
    for (uint32_t r = 0; r < W; r++) {
        shd_rank_post(t->crew->slots[r].rank, run_slot, &t->crew->slots[r]);
    }
}

void shd_trainer_drop(shd_trainer *t)
{
    for (uint32_t r = 0; r < t->crew->spec.strategy.world; r++) {
        shd_worker_drop_pass(t->crew->slots[r].worker);
    }
    release_results(t);
    t->unfinished = NULL;
}

void shd_trainer_abort(shd_trainer *t)
{
    shd_comm_abort(shd_worker_comm(t->crew->slots[0].worker), SHD_ECANCELLED, "cancelled");
    if (t->reshard != NULL) {
        shd_reshard_abort(t->reshard, SHD_ECANCELLED, "cancelled");
    }
}

void shd_trainer_usage(const shd_trainer *t, uint32_t rank, shd_usage out[SHD_TAG_COUNT],
                       uint64_t *total_peak, uint64_t *reserved)
{
    const shd_arena *arena = shd_worker_arena(t->crew->slots[rank].worker);
    memset(out, 0, SHD_TAG_COUNT * sizeof *out);
    *total_peak = 0;
    *reserved = 0;
    if (arena != NULL) {
        shd_arena_usage(arena, out);
        *total_peak = shd_arena_total_peak(arena);
        *reserved = t->crew->plan.extent;
    }
}

void shd_trainer_comm(const shd_trainer *t, uint32_t rank, shd_comm_count out[SHD_COMM_KIND_COUNT])
{
    shd_comm_counts(shd_worker_comm(t->crew->slots[rank].worker), out);
    for (int k = 0; rank < t->n_before && k < SHD_COMM_KIND_COUNT; k++) {
        out[k].bytes += t->comm_before[rank][k].bytes;
        out[k].calls += t->comm_before[rank][k].calls;
    }
}

const shd_timeline *shd_trainer_timeline(const shd_trainer *t, uint32_t rank)
{
    return shd_worker_timeline(t->crew->slots[rank].worker);
}

double shd_trainer_loss_scale(const shd_trainer *t)
{
    return atomic_load(&((shd_trainer *)t)->loss_scale);
}

static int check_index(const shd_trainer *t, uint32_t index, shd_error *err)
{
    if (index >= shd_model_n_params(t->model)) {
        return shd_fail(err, SHD_EINVAL, "no parameter %u; the model has %u", index,
                        shd_model_n_params(t->model));
    }
    return 0;
}

int shd_trainer_read_param(shd_trainer *t, uint32_t index, float *out, shd_error *err)
{
    SHD_TRY(check_index(t, index, err));
    for (uint32_t r = 0; r < t->crew->spec.strategy.world; r++) {
        SHD_TRY(shd_worker_read_param(t->crew->slots[r].worker, index, out, err));
    }
    return 0;
}

int shd_trainer_write_param(shd_trainer *t, uint32_t index, const float *in, shd_error *err)
{
    SHD_TRY(check_index(t, index, err));
    for (uint32_t r = 0; r < t->crew->spec.strategy.world; r++) {
        SHD_TRY(shd_worker_write_param(t->crew->slots[r].worker, index, in, err));
    }
    return 0;
}

/* The sum that the end of the step will make of what each rank has accumulated for itself. */
static int add_own_grads(shd_trainer *t, uint32_t index, int64_t numel, float *out, shd_error *err)
{
    const uint32_t W = t->crew->spec.strategy.world;
    const shd_dtype dtype = t->crew->spec.reduce_dtype;
    const size_t n = (size_t)(numel + SHD_BLOCK - 1) / SHD_BLOCK * SHD_BLOCK;
    float *own = shd_calloc(W * n, sizeof *own), *sum = shd_calloc(n, sizeof *sum);
    const void **leaves = shd_calloc(W, sizeof *leaves);
    int rc = 0;
    for (uint32_t r = 0; r < W && rc == 0; r++) {
        leaves[r] = own + r * n;
        rc = shd_worker_read_grad(t->crew->slots[r].worker, index, own + r * n, err);
    }
    if (rc == 0) {
        shd_device *dev = shd_device_create_cpu(1, 0);
        const shd_ops *ops = shd_device_ops(dev);
        const shd_opctx *ctx = shd_device_opctx(dev);
        ops->tree_sum(ctx, sum, dtype, leaves, SHD_F32, W, (int64_t)n, 0);
        ops->cast(ctx, out, SHD_F32, sum, dtype, numel);
        shd_device_free(dev);
    }
    free(leaves);
    free(sum);
    free(own);
    return rc;
}

int shd_trainer_read_grad(shd_trainer *t, uint32_t index, float *out, shd_error *err)
{
    SHD_TRY(check_index(t, index, err));
    const shd_reduction reduction = {t->crew->spec.determinism, t->crew->spec.reduction_width};
    const shd_slot *place = &t->crew->shared.layout.slots[index];
    if (t->crew->shared.layout.units[place->unit].frozen) {
        return 0;
    }
    if (shd_reduction_each_round(&reduction, &t->crew->spec.strategy)) {
        for (uint32_t r = 0; r < t->crew->spec.strategy.world; r++) {
            SHD_TRY(shd_worker_read_grad(t->crew->slots[r].worker, index, out, err));
        }
    } else {
        SHD_TRY(add_own_grads(t, index, place->numel, out, err));
    }
    const double factor = shd_worker_grad_factor(t->crew->slots[0].worker);
    for (int64_t i = 0; i < place->numel; i++) {
        out[i] = (float)(out[i] / factor);
    }
    return 0;
}

/* A job over its ranks: hands work to workers by message and joins their answers; see trainer.h.
 * Floor F4; the submitter's thread, `done` on a rank's thread. */
#include "daemon/train/trainer.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/mem.h"
#include "daemon/train/worker.h"

typedef struct slot {
    shd_trainer *trainer;
    shd_rank *rank; /* borrowed */
    shd_worker *worker;
    shd_work result;
} slot;

typedef enum pace {
    PACE_FORWARD = 0,
    PACE_GRADIENTS,
    PACE_FIRST_VALUES,
    PACE_EXPORT,
    PACE_COUNT
} pace;

struct shd_trainer {
    shd_spec spec;
    shd_plan plan;
    shd_model *model;
    shd_train_data *data; /* NULL: none */
    shd_worker_shared shared;
    slot *slots;                 /* [world] */
    shd_work *work;              /* in flight, or NULL */
    shd_work *unfinished;        /* had a turn and waits for the next, or NULL */
    uint64_t turn;               /* rounds of the present turn */
    double round_ms[PACE_COUNT]; /* of the last turn; 0: not known yet */
    _Atomic(double) loss_scale;  /* of the next step */
    struct timespec started;
    atomic_uint remaining;
};

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

void shd_trainer_set_data(shd_trainer *t, shd_train_data *data)
{
    t->data = data;
    t->shared.data = data->data;
    t->shared.eval = data->eval;
    t->shared.train = data->train;
    t->shared.held_out = data->held_out;
    t->shared.eval_leaves = data->eval_leaves;
}

int shd_trainer_create(const shd_spec *spec, const shd_plan *plan, shd_rank *const *ranks,
                       shd_source *data, shd_source *eval, const shd_param_source *from,
                       shd_trainer **out, shd_error *err)
{
    const uint32_t W = spec->strategy.world;
    shd_trainer *t = shd_calloc(1, sizeof *t);
    shd_spec_copy(&t->spec, spec);
    t->plan = *plan;
    t->shared = (shd_worker_shared){
        .spec = &t->spec, .extent = plan->extent, .caches = plan->generate_caches};
    if (from != NULL) {
        t->shared.from = *from;
    }
    shd_scaler scaler;
    shd_scaler_init(&scaler, &spec->scaler);
    atomic_init(&t->loss_scale, scaler.scale);
    shd_train_data *cut = NULL;
    int rc = data != NULL ? shd_train_data_cut(&t->spec, data, eval, &cut, err) : 0;
    if (cut != NULL) {
        shd_trainer_set_data(t, cut);
    }
    rc = rc == 0 ? shd_model_create(&t->spec.model, &t->model, err) : rc;
    if (rc < 0) {
        shd_trainer_free(t);
        return rc;
    }
    t->shared.model = t->model;
    rc = shd_worker_layout(&t->shared, err);
    if (rc < 0) {
        shd_trainer_free(t);
        return rc;
    }
    shd_comm **comms = shd_calloc(W, sizeof *comms);
    shd_comm_local_create(W, comms);
    t->slots = shd_calloc(W, sizeof *t->slots);
    for (uint32_t r = 0; r < W; r++) {
        t->slots[r] = (slot){.trainer = t, .rank = ranks[r]};
        t->slots[r].worker = shd_worker_create(&t->shared, shd_rank_device(ranks[r]), comms[r]);
    }
    free(comms);
    *out = t;
    return 0;
}

void shd_trainer_free(shd_trainer *t)
{
    if (t == NULL) {
        return;
    }
    for (uint32_t r = 0; t->slots != NULL && r < t->spec.strategy.world; r++) {
        shd_work_fini(&t->slots[r].result);
        shd_worker_free(t->slots[r].worker);
    }
    free(t->slots);
    shd_train_data_free(t->data);
    shd_worker_layout_fini(&t->shared);
    shd_model_free(t->model);
    shd_spec_fini(&t->spec);
    free(t);
}

static int check_sequence(const shd_trainer *t, const shd_batch *b, uint32_t s, shd_error *err)
{
    const int64_t vocab = t->spec.model.vocab;
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
    if (b->length > t->spec.seq_len) {
        return shd_fail(err, SHD_EINVAL,
                        "a sequence has %u tokens; the job was planned for %u (--seq-len) of the "
                        "model's context of %lld",
                        b->length, t->spec.seq_len, (long long)t->spec.model.context);
    }
    for (uint32_t s = 0; s < b->sequences; s++) {
        SHD_TRY(check_sequence(t, b, s, err));
    }
    return 0;
}

/* Log-probabilities of different leaves come from different ranks; elsewhere each has zeros. */
static void merge_logprobs(shd_trainer *t, shd_work *work)
{
    work->logprobs = t->slots[0].result.logprobs;
    t->slots[0].result.logprobs = NULL;
    if (work->logprobs == NULL) {
        return;
    }
    const size_t n = (size_t)work->batch.sequences * work->batch.length;
    for (uint32_t r = 1; r < t->spec.strategy.world; r++) {
        for (size_t i = 0; i < n; i++) {
            work->logprobs[i] += t->slots[r].result.logprobs[i];
        }
    }
}

/* Work whose rounds take about the same time. */
static pace pace_of(const shd_work *work)
{
    switch (work->kind) {
    case SHD_WORK_DATA_STEP:
    case SHD_WORK_FORWARD_BACKWARD:
    case SHD_WORK_TRAIN_STEP:
        return PACE_GRADIENTS;
    case SHD_WORK_INIT:
        return PACE_FIRST_VALUES;
    case SHD_WORK_EXPORT:
        return PACE_EXPORT;
    default:
        return PACE_FORWARD;
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
    for (uint32_t r = 0; r < t->spec.strategy.world; r++) {
        shd_work_fini(&t->slots[r].result);
    }
}

static void finish(shd_trainer *t)
{
    shd_work *work = t->work;
    const shd_work *from = &t->slots[0].result;
    const double ms = ms_since(&t->started);
    work->rc = 0;
    for (uint32_t r = 0; r < t->spec.strategy.world; r++) {
        /* After an abort every rank carries the message of the one that failed first. */
        if (t->slots[r].result.rc < 0 && work->rc == 0) {
            work->rc = t->slots[r].result.rc;
            work->err = t->slots[r].result.err;
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
    work->ms += ms;
    work->more = work->rc == 0 && from->more;
    t->unfinished = work->more ? work : NULL;
    if (work->more) {
        t->round_ms[pace_of(work)] = ms / (double)t->turn;
    } else if (work->rc == 0) {
        merge_logprobs(t, work);
        work->logits = from->logits;
        t->slots[0].result.logits = NULL;
    }
    if (!work->more) {
        release_results(t);
    }
    t->work = NULL;
    work->done(work, work->done_arg);
}

static void run_slot(shd_rank *rank, void *arg)
{
    (void)rank;
    slot *sl = arg;
    shd_worker_run(sl->worker, sl->trainer->work, sl->trainer->turn, &sl->result);
    if (atomic_fetch_sub(&sl->trainer->remaining, 1) == 1) {
        finish(sl->trainer);
    }
}

void shd_trainer_submit(shd_trainer *t, shd_work *work)
{
    const uint32_t W = t->spec.strategy.world;
    t->work = work;
    t->turn = rounds_of_turn(t, work);
    if (work != t->unfinished) {
        work->ms = 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &t->started);
    atomic_store(&t->remaining, W);
    for (uint32_t r = 0; r < W; r++) {
        shd_rank_post(t->slots[r].rank, run_slot, &t->slots[r]);
    }
}

void shd_trainer_drop(shd_trainer *t)
{
    for (uint32_t r = 0; r < t->spec.strategy.world; r++) {
        shd_worker_drop_pass(t->slots[r].worker);
    }
    release_results(t);
    t->unfinished = NULL;
}

void shd_trainer_abort(shd_trainer *t)
{
    shd_comm_abort(shd_worker_comm(t->slots[0].worker), SHD_ECANCELLED, "cancelled");
}

void shd_trainer_usage(const shd_trainer *t, uint32_t rank, shd_usage out[SHD_TAG_COUNT],
                       uint64_t *total_peak, uint64_t *reserved)
{
    const shd_arena *arena = shd_worker_arena(t->slots[rank].worker);
    memset(out, 0, SHD_TAG_COUNT * sizeof *out);
    *total_peak = 0;
    *reserved = 0;
    if (arena != NULL) {
        shd_arena_usage(arena, out);
        *total_peak = shd_arena_total_peak(arena);
        *reserved = t->plan.extent;
    }
}

void shd_trainer_comm(const shd_trainer *t, uint32_t rank, shd_comm_count out[SHD_COMM_KIND_COUNT])
{
    shd_comm_counts(shd_worker_comm(t->slots[rank].worker), out);
}

const shd_timeline *shd_trainer_timeline(const shd_trainer *t, uint32_t rank)
{
    return shd_worker_timeline(t->slots[rank].worker);
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
    for (uint32_t r = 0; r < t->spec.strategy.world; r++) {
        SHD_TRY(shd_worker_read_param(t->slots[r].worker, index, out, err));
    }
    return 0;
}

int shd_trainer_write_param(shd_trainer *t, uint32_t index, const float *in, shd_error *err)
{
    SHD_TRY(check_index(t, index, err));
    for (uint32_t r = 0; r < t->spec.strategy.world; r++) {
        SHD_TRY(shd_worker_write_param(t->slots[r].worker, index, in, err));
    }
    return 0;
}

/* The sum that the end of the step will make of what each rank has accumulated for itself. */
static int add_own_grads(shd_trainer *t, uint32_t index, int64_t numel, float *out, shd_error *err)
{
    const uint32_t W = t->spec.strategy.world;
    const shd_dtype dtype = t->spec.reduce_dtype;
    const size_t n = (size_t)(numel + SHD_BLOCK - 1) / SHD_BLOCK * SHD_BLOCK;
    float *own = shd_calloc(W * n, sizeof *own), *sum = shd_calloc(n, sizeof *sum);
    const void **leaves = shd_calloc(W, sizeof *leaves);
    int rc = 0;
    for (uint32_t r = 0; r < W && rc == 0; r++) {
        leaves[r] = own + r * n;
        rc = shd_worker_read_grad(t->slots[r].worker, index, own + r * n, err);
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
    const shd_reduction reduction = {t->spec.determinism, t->spec.reduction_width};
    const shd_slot *place = &t->shared.layout.slots[index];
    if (t->shared.layout.units[place->unit].frozen) {
        return 0;
    }
    if (shd_reduction_each_round(&reduction, &t->spec.strategy)) {
        for (uint32_t r = 0; r < t->spec.strategy.world; r++) {
            SHD_TRY(shd_worker_read_grad(t->slots[r].worker, index, out, err));
        }
    } else {
        SHD_TRY(add_own_grads(t, index, place->numel, out, err));
    }
    const double factor = shd_worker_grad_factor(t->slots[0].worker);
    for (int64_t i = 0; i < place->numel; i++) {
        out[i] = (float)(out[i] / factor);
    }
    return 0;
}

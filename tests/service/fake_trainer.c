#include "tests/service/fake_trainer.h"
#include "daemon/train/reshard.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

struct shd_trainer {
    char name[65];
    uint32_t world, seq_len;
    int64_t vocab;
    uint64_t steps, samples;
    uint32_t global_batch, accumulated;
    shd_rank *const *ranks;
    struct shd_reshard *reshard; /* in flight */
    shd_source *data, *eval;
    shd_train_data *cut;
    shd_plan plan;
    int initialised;
    shd_work *work; /* in flight */
    int aborted;
    unsigned turns; /* that the item has had */
    uint64_t order;
    shd_comm *alone;          /* of the timelines */
    shd_timeline **timelines; /* [world] */
    shd_trainer *next;
};

struct shd_reshard {
    shd_trainer *trainer;
    shd_plan plan;
    uint32_t world;
    shd_rank *const *ranks;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_t thread;
static shd_trainer *trainers;
static int manual_mode, running, stopping;
static fake_hook hook_fn;
static void *hook_arg;
static unsigned turns_of_an_item = 1;
static unsigned ended, alive, most_on_a_rank;
static uint64_t submissions;

void shd_work_init(shd_work *work, shd_work_kind kind)
{
    memset(work, 0, sizeof(*work));
    work->kind = kind;
    work->lr = work->clip = work->weight_decay = NAN;
}

void shd_work_fini(shd_work *work)
{
    free(work->batch.tokens);
    free(work->batch.targets);
    free(work->logprobs);
    free(work->logits);
    memset(&work->batch, 0, sizeof(work->batch));
    work->logprobs = work->logits = NULL;
}

int shd_plan_make(const shd_spec *spec, int threads_per_rank, shd_plan *out, shd_error *err)
{
    (void)threads_per_rank;
    (void)err;
    const uint64_t state = (uint64_t)FAKE_STATE_MIB << 20;
    memset(out, 0, sizeof(*out));
    out->peak[SHD_TAG_PARAMS] = state / spec->strategy.p;
    out->peak[SHD_TAG_GRADS] = state / spec->strategy.g;
    out->peak[SHD_TAG_OPTIMIZER] = 2 * state / spec->strategy.o;
    out->peak[SHD_TAG_ACTIVATIONS] = (uint64_t)spec->micro_batch * spec->seq_len * 4096;
    for (int tag = 0; tag < SHD_TAG_COUNT; tag++) {
        out->total_peak += out->peak[tag];
    }
    out->extent = out->total_peak;
    out->comm_step[SHD_COMM_ALL_GATHER].bytes = 1000;
    out->parameters = state / 4;
    out->units = 3;
    out->generate_caches = 4;
    return SHD_OK;
}

int shd_plan_for(const shd_spec *spec, int threads_per_rank, const shd_machine *machine,
                 shd_plan *out, shd_estimate *estimate, shd_plan_schedule *schedule, shd_error *err)
{
    (void)schedule;
    const double flops = machine->flops;
    *estimate = (shd_estimate){.step_s = flops > 0 ? 1e12 / flops : 0};
    return shd_plan_make(spec, threads_per_rank, out, err);
}

uint64_t shd_plan_bytes(const shd_plan *plan)
{
    const uint64_t page = 2 << 20;
    return (plan->extent + page - 1) / page * page;
}

const shd_timeline *shd_trainer_timeline(const shd_trainer *trainer, uint32_t rank)
{
    return trainer->timelines[rank];
}

static void make_timelines(shd_trainer *t)
{
    t->timelines = shd_calloc(t->world, sizeof(shd_timeline *));
    for (uint32_t r = 0; r < t->world; r++) {
        t->timelines[r] = shd_timeline_create(t->alone);
    }
}

static void free_timelines(shd_trainer *t)
{
    for (uint32_t r = 0; r < t->world; r++) {
        shd_timeline_free(t->timelines[r]);
    }
    free(t->timelines);
}

int shd_trainer_create(const shd_spec *spec, const shd_plan *plan, shd_rank *const *ranks,
                       shd_source *data, shd_source *eval, const shd_param_source *from,
                       shd_trainer **out, shd_error *err)
{
    (void)err;
    (void)from;
    shd_trainer *t = shd_calloc(1, sizeof(*t));
    memcpy(t->name, spec->name, sizeof(t->name));
    t->world = spec->strategy.world;
    t->seq_len = spec->seq_len;
    t->vocab = spec->model.vocab;
    t->global_batch = spec->global_batch;
    t->ranks = ranks;
    t->data = data;
    t->eval = eval;
    t->plan = *plan;
    t->alone = shd_comm_null_create(0, 1);
    make_timelines(t);
    pthread_mutex_lock(&mutex);
    t->next = trainers;
    trainers = t;
    alive++;
    pthread_mutex_unlock(&mutex);
    *out = t;
    return SHD_OK;
}

void shd_trainer_set_data(shd_trainer *t, shd_train_data *data)
{
    t->cut = data;
}

void shd_trainer_free(shd_trainer *t)
{
    if (t == NULL) {
        return;
    }
    pthread_mutex_lock(&mutex);
    if (t->work != NULL) {
        abort(); /* freed with work in flight */
    }
    shd_trainer **at = &trainers;
    while (*at != t) {
        at = &(*at)->next;
    }
    *at = t->next;
    alive--;
    pthread_mutex_unlock(&mutex);
    shd_source_free(t->data);
    shd_source_free(t->eval);
    shd_train_data_free(t->cut);
    free_timelines(t);
    shd_comm_free(t->alone);
    free(t);
}

int shd_reshard_create(shd_trainer *t, const shd_spec *spec, const shd_plan *plan,
                       shd_rank *const *ranks, shd_reshard **out, shd_error *err)
{
    if (t->work != NULL || t->reshard != NULL) {
        abort(); /* two items at one time */
    }
    if (t->accumulated > 0) {
        return shd_fail(err, SHD_ESTATE, "gradients are accumulated");
    }
    shd_reshard *r = shd_calloc(1, sizeof(*r));
    *r = (shd_reshard){t, *plan, spec->strategy.world, ranks};
    t->reshard = r;
    *out = r;
    return SHD_OK;
}

void shd_reshard_adopt(shd_reshard *r)
{
    pthread_mutex_lock(&mutex);
    free_timelines(r->trainer);
    r->trainer->world = r->world;
    make_timelines(r->trainer);
    r->trainer->plan = r->plan;
    r->trainer->ranks = r->ranks;
    pthread_mutex_unlock(&mutex);
}

void shd_reshard_free(shd_reshard *r)
{
    if (r != NULL) {
        r->trainer->reshard = NULL;
        free(r);
    }
}

double shd_trainer_loss_scale(const shd_trainer *t)
{
    (void)t;
    return 0.0;
}

int shd_trainer_check_batch(const shd_trainer *t, const shd_work *work, shd_error *err)
{
    const size_t n = (size_t)work->batch.sequences * work->batch.length;
    for (size_t i = 0; i < n; i++) {
        if (work->batch.tokens[i] < 0 || work->batch.tokens[i] >= t->vocab) {
            return shd_fail(err, SHD_EINVAL, "token %d is outside of the vocabulary",
                            work->batch.tokens[i]);
        }
    }
    return work->batch.length <= t->seq_len
               ? SHD_OK
               : shd_fail(err, SHD_EINVAL, "sequence of %u tokens", work->batch.length);
}

/* Has the trainer an item on this rank? */
static int is_on(const shd_trainer *t, const shd_rank *rank)
{
    int on = 0;
    for (uint32_t r = 0; t->work != NULL && r < t->world; r++) {
        on |= t->ranks[r] == rank;
    }
    for (uint32_t r = 0; t->work != NULL && t->reshard != NULL && r < t->reshard->world; r++) {
        on |= t->reshard->ranks[r] == rank;
    }
    return on;
}

static void count_rank(const shd_rank *rank)
{
    unsigned n = 0;
    for (const shd_trainer *t = trainers; t != NULL; t = t->next) {
        n += is_on(t, rank) != 0;
    }
    most_on_a_rank = n > most_on_a_rank ? n : most_on_a_rank;
}

/* Under the mutex. */
static void count_ranks(void)
{
    for (const shd_trainer *t = trainers; t != NULL; t = t->next) {
        for (uint32_t r = 0; r < t->world; r++) {
            count_rank(t->ranks[r]);
        }
        for (uint32_t r = 0; t->reshard != NULL && r < t->reshard->world; r++) {
            count_rank(t->reshard->ranks[r]);
        }
    }
}

void shd_trainer_submit(shd_trainer *t, shd_work *work)
{
    pthread_mutex_lock(&mutex);
    if (t->work != NULL) {
        abort(); /* two items at one time */
    }
    t->work = work;
    t->order = ++submissions;
    count_ranks();
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void shd_trainer_abort(shd_trainer *t)
{
    pthread_mutex_lock(&mutex);
    t->aborted = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void shd_trainer_drop(shd_trainer *t)
{
    pthread_mutex_lock(&mutex);
    t->turns = 0;
    pthread_mutex_unlock(&mutex);
}

void fake_turns(unsigned n)
{
    pthread_mutex_lock(&mutex);
    turns_of_an_item = n;
    pthread_mutex_unlock(&mutex);
}

/* Is there another turn to come? */
static int take_turn(shd_trainer *t, shd_work *work)
{
    const int passes = work->kind != SHD_WORK_INIT && work->kind != SHD_WORK_OPTIM_STEP &&
                       work->kind != SHD_WORK_NEXT_LOGITS;
    work->more = passes && !t->aborted && ++t->turns < turns_of_an_item;
    if (!work->more) {
        t->turns = 0;
    }
    return work->more;
}

/* One span on each rank: the optimizer step that the item belongs to, as a unit. */
static void draw(shd_trainer *t, const shd_work *work)
{
    for (uint32_t r = 0; r < t->world; r++) {
        shd_timeline_turn(t->timelines[r], 1, work->trace);
        shd_timeline_begin(t->timelines[r]);
        shd_timeline_end(t->timelines[r], SHD_SPAN_OPTIMIZER, (uint32_t)t->steps);
        shd_timeline_turn_done(t->timelines[r]);
    }
}

/* A target's loss is its id. */
static void eval_part(const shd_trainer *t, shd_work *work)
{
    int32_t *ids = shd_calloc(2 * (size_t)t->seq_len, sizeof(*ids)), *targets = ids + t->seq_len;
    for (uint64_t i = 0; i < work->part->n && work->rc == SHD_OK; i++) {
        if (shd_windows_read(work->part->windows, work->part->first + i, (uint32_t)t->vocab, ids,
                             targets, &work->err) < 0) {
            work->rc = SHD_EINVAL;
        }
        for (uint32_t k = 0; k < t->seq_len && work->rc == SHD_OK; k++) {
            if (targets[k] >= 0) {
                work->loss_sum += targets[k];
                work->valid_tokens++;
                work->text_bytes +=
                    work->part->token_bytes != NULL ? work->part->token_bytes[targets[k]] : 0;
            }
        }
    }
    work->loss = work->valid_tokens > 0 ? work->loss_sum / (double)work->valid_tokens : 0.0;
    free(ids);
}

static void compute(shd_trainer *t, shd_work *work)
{
    draw(t, work);
    const uint64_t positions = (uint64_t)work->batch.sequences * work->batch.length;
    work->rc = SHD_OK;
    work->ms = 2.0;
    switch (work->kind) {
    case SHD_WORK_INIT:
        t->initialised = 1;
        break;
    case SHD_WORK_EXPORT:
    case SHD_WORK_RESHARD:
        break;
    case SHD_WORK_DATA_STEP:
        t->samples += t->global_batch;
        work->valid_tokens = (uint64_t)t->global_batch * t->seq_len;
        work->loss = 1.0 / (double)(t->steps + 1);
        t->steps++;
        break;
    case SHD_WORK_FORWARD_BACKWARD:
        t->accumulated++;
        t->samples += work->batch.sequences;
        work->valid_tokens = positions;
        work->loss = (double)work->batch.tokens[0];
        break;
    case SHD_WORK_TRAIN_STEP:
        t->samples += work->batch.sequences;
        work->valid_tokens = positions;
        work->loss = (double)work->batch.tokens[0];
        t->steps++;
        t->accumulated = 0;
        break;
    case SHD_WORK_OPTIM_STEP:
        if (t->accumulated == 0) {
            work->rc = shd_fail(&work->err, SHD_EINVAL, "nothing accumulated");
            break;
        }
        t->steps++;
        t->accumulated = 0;
        break;
    case SHD_WORK_FORWARD:
        work->valid_tokens = positions;
        work->loss = 0.5;
        break;
    case SHD_WORK_EVAL:
        if (work->part != NULL) {
            eval_part(t, work);
            break;
        }
        work->valid_tokens = 100;
        work->loss = 0.25;
        break;
    case SHD_WORK_NEXT_LOGITS:
        /* The likeliest token is the last one plus one. */
        work->logits = shd_calloc((size_t)t->vocab, sizeof(float));
        work->logits[(work->batch.tokens[work->batch.length - 1] + 1) % t->vocab] = 20.0f;
        break;
    }
    if (work->want_logprobs) {
        work->logprobs = shd_calloc(positions, sizeof(float));
        for (uint64_t i = 0; i < positions; i++) {
            work->logprobs[i] = -(float)i;
        }
    }
    work->grad_norm = 3.0;
    work->lr_used = isnan(work->lr) ? 0.001 : work->lr;
    work->step = t->steps;
    work->samples = t->samples;
}

/* Under the mutex, which is let go of around the hook and `done`. */
static void finish(shd_trainer *t)
{
    shd_work *work = t->work;
    char name[65];
    memcpy(name, t->name, sizeof(name));
    if (!take_turn(t, work)) {
        compute(t, work);
    }
    if (t->aborted) {
        work->rc = shd_fail(&work->err, SHD_ECANCELLED, "aborted");
    }
    t->work = NULL;
    ended++;
    pthread_mutex_unlock(&mutex);
    if (hook_fn != NULL) {
        hook_fn(name, work, hook_arg);
    }
    work->done(work, work->done_arg);
    pthread_mutex_lock(&mutex);
}

static shd_trainer *first_waiting(void)
{
    shd_trainer *best = NULL;
    for (shd_trainer *t = trainers; t != NULL; t = t->next) {
        if (t->work != NULL && (!manual_mode || t->aborted) &&
            (best == NULL || t->order < best->order)) {
            best = t;
        }
    }
    return best;
}

static void *fake_ranks(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&mutex);
    while (!stopping) {
        shd_trainer *t = first_waiting();
        if (t != NULL) {
            finish(t);
        } else {
            pthread_cond_wait(&changed, &mutex);
        }
    }
    pthread_mutex_unlock(&mutex);
    return NULL;
}

void fake_start(int manual, fake_hook hook, void *arg)
{
    manual_mode = manual;
    hook_fn = hook;
    hook_arg = arg;
    ended = most_on_a_rank = 0;
    turns_of_an_item = 1;
    stopping = 0;
    running = 1;
    pthread_create(&thread, NULL, fake_ranks, NULL);
}

void fake_stop(void)
{
    if (running) {
        pthread_mutex_lock(&mutex);
        stopping = 1;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
        pthread_join(thread, NULL);
        running = 0;
    }
}

static shd_trainer *named(const char *job_name)
{
    shd_trainer *t = trainers;
    while (t != NULL && strcmp(t->name, job_name) != 0) {
        t = t->next;
    }
    return t;
}

int fake_finish(const char *job_name)
{
    pthread_mutex_lock(&mutex);
    shd_trainer *t = named(job_name);
    const int found = t != NULL && t->work != NULL;
    if (found) {
        finish(t);
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

int fake_running(const char *job_name)
{
    pthread_mutex_lock(&mutex);
    shd_trainer *t = named(job_name);
    const int kind = t != NULL && t->work != NULL ? (int)t->work->kind : -1;
    pthread_mutex_unlock(&mutex);
    return kind;
}

static unsigned read_count(const unsigned *count)
{
    pthread_mutex_lock(&mutex);
    const unsigned n = *count;
    pthread_mutex_unlock(&mutex);
    return n;
}

unsigned fake_ended(void)
{
    return read_count(&ended);
}

unsigned fake_most_on_a_rank(void)
{
    return read_count(&most_on_a_rank);
}

unsigned fake_alive(void)
{
    return read_count(&alive);
}

void shd_trainer_usage(const shd_trainer *t, uint32_t rank, shd_usage out[SHD_TAG_COUNT],
                       uint64_t *total_peak, uint64_t *reserved)
{
    (void)rank;
    pthread_mutex_lock(&mutex);
    for (int tag = 0; tag < SHD_TAG_COUNT; tag++) {
        out[tag].now = out[tag].peak = t->initialised ? t->plan.peak[tag] : 0;
    }
    *total_peak = t->initialised ? t->plan.total_peak : 0;
    *reserved = t->initialised ? t->plan.extent : 0;
    pthread_mutex_unlock(&mutex);
}

void shd_trainer_comm(const shd_trainer *t, uint32_t rank, shd_comm_count out[SHD_COMM_KIND_COUNT])
{
    (void)rank;
    memset(out, 0, SHD_COMM_KIND_COUNT * sizeof(*out));
    pthread_mutex_lock(&mutex);
    out[SHD_COMM_ALL_GATHER].bytes = t->steps * 1000;
    pthread_mutex_unlock(&mutex);
}

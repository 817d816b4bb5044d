#include "daemon/service/rpc_generate.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/data/tokenizer.h"
#include "daemon/service/job.h"
#include "daemon/service/jobs.h"
#include "daemon/service/sampling.h"
#include "daemon/service/workers.h"

enum {
    DEFAULT_TOKENS = 128,
    MAX_TOKENS = 100000,
    MAX_STOPS = 256,
    MAX_ENCODING = 8, /* texts of a user that become tokens at one time */
    ENCODING_S = 5    /* for a prompt; long ones have longer */
};

/* Where a generation's item is, besides on the ranks. */
typedef enum place {
    ENCODING = 0, /* not in a job yet: its prompt becomes tokens on another thread */
    AT_WORK,      /* in the job's queue, or on the ranks */
    SAMPLING,     /* parked: the next token is chosen on another thread; it keeps its turn */
    LEFT,         /* as before, but the job has ended it: only the thread has it still */
    GATED,        /* parked: as many as may are at work already */
    SLOW          /* parked: the client reads too slowly and the next token waits for room */
} place;

/* One stream. While AT_WORK or SAMPLING it is one of job->generating. */
typedef struct generation {
    shd_item item;  /* first */
    shd_call *call; /* NULL once the client is gone */
    place place;
    shd_sampling sampling;
    uint32_t made, wanted; /* tokens */
    uint32_t window;       /* the model sees this many last tokens */
    uint32_t length;       /* tokens in context */
    uint64_t left_out;     /* tokens that the prompt has before them */
    int32_t *context;      /* [2 * window]: room to slide in */
    int32_t *said;         /* prompt and text so far, for the repetition penalty; NULL: none */
    size_t n_said;
    int32_t *stops; /* [n_stops] */
    size_t n_stops;
    shd_text_stream *text; /* NULL: the job has no tokenizer */

    uint64_t stream;     /* names its cache; 0: none, the context slides */
    uint32_t prefill;    /* as of shd_work */
    uint64_t cache_step; /* likewise */

    /* While ENCODING or SAMPLING. */
    shd_task task;
    shd_jobs *jobs;
    int rc;
    shd_error err;

    /* While ENCODING. */
    char job_id[9];
    shd_tokenizer *tokenizer;
    char *prompt;
    size_t prompt_size;
    shd_ids ids;

    /* While SAMPLING. */
    uint32_t vocab;
    int32_t token;
    float logprob;
} generation;

static uint64_t last_stream; /* loop thread */

static generation *of_task(shd_task *task)
{
    return (generation *)((char *)task - offsetof(generation, task));
}

static void generation_free(generation *g)
{
    shd_work_fini(&g->item.work);
    free(g->context);
    free(g->said);
    free(g->stops);
    free(g->prompt);
    shd_text_stream_free(g->text);
    shd_tokenizer_free(g->tokenizer);
    shd_ids_fini(&g->ids);
    free(g);
}

/* Fails the stream; frees it. */
static void give_up(generation *g, const shd_error *why)
{
    if (g->call != NULL) {
        shd_call_fail(g->call, why);
    }
    generation_free(g);
}

static void append(generation *g, int32_t token)
{
    if (g->length == 2 * g->window) {
        memmove(g->context, g->context + g->window, g->window * sizeof(*g->context));
        g->length = g->window;
    }
    g->context[g->length++] = token;
    if (g->said != NULL) {
        g->said[g->n_said++] = token;
    }
}

/* ---- whose turn it is ---- */

/* Queues the work for the next token. */
static int ask(generation *g, shd_job *job, shd_error *err)
{
    const uint32_t n = g->length < g->window ? g->length : g->window;
    shd_work *work = &g->item.work;
    shd_work_fini(work);
    shd_work_init(work, SHD_WORK_NEXT_LOGITS);
    work->batch.sequences = 1;
    work->batch.length = n;
    work->batch.tokens = shd_reallocarray(NULL, n, sizeof(int32_t));
    work->batch.targets = shd_reallocarray(NULL, n, sizeof(int32_t));
    memcpy(work->batch.tokens, g->context + g->length - n, n * sizeof(int32_t));
    for (uint32_t i = 0; i < n; i++) {
        work->batch.targets[i] = SHD_IGNORE_INDEX;
    }
    if (g->length > g->window) {
        g->stream = 0; /* every token has moved on */
    }
    work->stream = g->stream;
    work->prefill = g->prefill;
    work->cache_step = g->cache_step;
    SHD_TRY(shd_trainer_check_batch(job->trainer, work, err));
    return shd_job_push_interactive(job, &g->item, 1, err);
}

/* It has a turn from now on, unless this fails: then it stays the caller's. */
static int start(generation *g, shd_error *err)
{
    g->place = AT_WORK;
    SHD_TRY(ask(g, g->item.job, err));
    g->item.job->generating++;
    return SHD_OK;
}

static void start_or_give_up(generation *g)
{
    shd_error err;
    if (start(g, &err) < 0) {
        give_up(g, &err);
    }
}

/* A generation that may not go on yet waits where it fails with the others when the job ends. */
static void wait_at(generation *g, place where)
{
    shd_job *job = g->item.job;
    shd_work_fini(&g->item.work);
    shd_work_init(&g->item.work, SHD_WORK_NEXT_LOGITS);
    g->place = where;
    job->gated += where == GATED;
    shd_job_park(job, &g->item);
}

/* Takes it back from there. */
static void unpark(generation *g)
{
    g->item.job->gated -= g->place == GATED;
    shd_job_withdraw(g->item.job, &g->item);
}

/* Those that wait have their turns, the oldest first, as far as there is room. */
static void open_gate(shd_job *job)
{
    const int usable = job->trainer != NULL && !job->deleting &&
                       (!shd_job_ended(job) || job->state == SHARD__V1__JOB_STATE__JOB_STATE_DONE);
    while (usable && job->gated > 0 && job->generating < job->plan.generate_caches) {
        shd_item *next = job->parked.head;
        while (next != NULL && ((generation *)next)->place != GATED) {
            next = next->next;
        }
        if (next == NULL) {
            return; /* they are being failed with the job */
        }
        unpark((generation *)next);
        start_or_give_up((generation *)next);
    }
}

/* A turn is over. */
static void leave(shd_job *job)
{
    job->generating--;
    open_gate(job);
}

/* At its beginning, and when a slow client reads again. */
static void go_on(generation *g)
{
    if (g->item.job->generating >= g->item.job->plan.generate_caches) {
        wait_at(g, GATED);
    } else {
        start_or_give_up(g);
    }
}

/* ---- tokens ---- */

static int is_stop(const generation *g, int32_t token)
{
    for (size_t i = 0; i < g->n_stops; i++) {
        if (g->stops[i] == token) {
            return 1;
        }
    }
    return 0;
}

/* What the token adds to the text; a stop token adds nothing but what is left before it. */
static void add_text(generation *g, int32_t token, int stopped, int over,
                     Shard__V1__GenerateResponse *response)
{
    size_t n = 0, rest = 0;
    const char *text = stopped ? NULL : shd_text_stream_push(g->text, token, &n);
    response->text.data = shd_malloc(n);
    memcpy(response->text.data, text != NULL ? text : "", n);
    if (over) {
        text = shd_text_stream_end(g->text, &rest);
        response->text.data = shd_reallocarray(response->text.data, n + rest, 1);
        memcpy(response->text.data + n, text, rest);
    }
    response->text.len = n + rest;
}

/* Sends the token that was picked. 1: the stream goes on; 0: it is over and freed. */
static int send_token(generation *g)
{
    const shd_work *work = &g->item.work;
    Shard__V1__GenerateResponse response = SHARD__V1__GENERATE_RESPONSE__INIT;
    response.token = g->token;
    response.logprob = g->logprob;
    if (g->cache_step != work->step) {
        g->prefill = work->batch.length;
        g->cache_step = work->step;
    }
    response.step = work->step;
    response.prompt_left_out = g->made == 0 ? g->left_out : 0;
    append(g, response.token);
    g->made++;
    const int stopped = is_stop(g, response.token), over = stopped || g->made == g->wanted;
    if (over) {
        response.finish = (char *)(stopped ? "stop" : "length");
    }
    if (g->text != NULL) {
        add_text(g, response.token, stopped, over, &response);
    }
    shd_call_send(g->call, &response.base);
    free(response.text.data);
    if (over) {
        shd_call_end(g->call);
        generation_free(g);
    }
    return !over;
}

/* The token is out: what now? */
static void after_token(generation *g, shd_job *job)
{
    shd_error err;
    g->place = AT_WORK;
    if (!send_token(g)) {
        leave(job);
    } else if (!shd_call_writable(g->call)) {
        wait_at(g, SLOW);
        leave(job);
    } else if (ask(g, job, &err) < 0) {
        /* Else it keeps its turn to its end: the others' would cost it the cache. */
        give_up(g, &err);
        leave(job);
    }
}

static void pick(shd_task *task)
{
    generation *g = of_task(task);
    const shd_sampling_input in = {.logits = g->item.work.logits,
                                   .vocab = g->vocab,
                                   .context = g->said,
                                   .n_context = g->n_said};
    g->rc = shd_sampling_pick(&g->sampling, &in, g->made, &g->token, &g->logprob, &g->err);
}

static void on_picked(shd_task *task)
{
    generation *g = of_task(task);
    shd_jobs *jobs = g->jobs;
    if (g->place == LEFT) {
        generation_free(g);
    } else {
        shd_job *job = g->item.job;
        shd_job_withdraw(job, &g->item);
        if (g->call == NULL || g->rc < 0) {
            give_up(g, &g->err);
            leave(job);
        } else {
            after_token(g, job);
        }
    }
    shd_jobs_unhold(jobs);
}

/* The logits are there: the vocabulary may be large, so other threads look for the token. */
static void sample(generation *g, shd_job *job)
{
    g->place = SAMPLING;
    g->vocab = (uint32_t)job->spec.model.vocab;
    g->jobs = job->jobs;
    g->task = (shd_task){.run = pick, .done = on_picked, .uid = shd_call_identity(g->call)->uid};
    shd_job_park(job, &g->item);
    shd_jobs_hold(job->jobs);
    shd_workers_run(shd_jobs_workers(job->jobs, SHD_WORKERS_SAMPLING), &g->task);
}

/* The job ends all that waits; a thread may still be at the token. */
static void fail_parked(generation *g, const shd_error *why)
{
    shd_job *job = g->item.job;
    if (g->place != SAMPLING) {
        job->gated -= g->place == GATED;
        give_up(g, why);
        return;
    }
    if (g->call != NULL) {
        shd_call_fail(g->call, why);
        g->call = NULL;
    }
    g->place = LEFT;
    leave(job);
}

static void on_token(shd_item *item, const shd_error *failed)
{
    generation *g = (generation *)item;
    shd_job *job = item->job;
    if (g->place != AT_WORK) { /* waited when the job ended */
        fail_parked(g, failed);
    } else if (g->call == NULL || failed != NULL) {
        give_up(g, failed);
        leave(job);
    } else {
        sample(g, job);
    }
}

static void on_writable(void *arg)
{
    generation *g = arg;
    if (g->place == SLOW) {
        unpark(g);
        go_on(g);
    }
}

static void on_gone(void *arg)
{
    generation *g = arg;
    shd_job *job = g->item.job;
    const int had_turn = g->place == AT_WORK;
    g->call = NULL;
    if (g->place == ENCODING || g->place == SAMPLING) {
        __atomic_store_n(&g->task.cancel, 1, __ATOMIC_RELAXED);
        return; /* freed when the thread is done with it */
    }
    if (!had_turn) {
        unpark(g);
        generation_free(g);
    } else if (shd_job_withdraw(job, &g->item)) {
        generation_free(g);
        leave(job);
    } else {
        g->item.withdrawn = 1;
    }
}

/* ---- the call ---- */

static int check_tokens(const int32_t *tokens, size_t n, int64_t vocab, const char *what,
                        shd_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= vocab) {
            return shd_fail(err, SHD_EINVAL,
                            "token %zu of %s is %d; the model's vocabulary is 0..%lld", i, what,
                            tokens[i], (long long)vocab - 1);
        }
    }
    return SHD_OK;
}

static int parse_sampling(const Shard__V1__GenerateRequest *q, generation *g, shd_error *err)
{
    g->wanted = q->has_max_tokens_case ? q->max_tokens : DEFAULT_TOKENS;
    if (g->wanted == 0 || g->wanted > MAX_TOKENS) {
        return shd_fail(err, SHD_EINVAL, "max_tokens %u is not in 1..%d", g->wanted, MAX_TOKENS);
    }
    g->sampling = (shd_sampling)SHD_SAMPLING_DEFAULT;
    if (q->has_temperature_case) {
        g->sampling.temperature = q->temperature;
    }
    if (q->has_top_k_case) {
        g->sampling.top_k = q->top_k;
    }
    if (q->has_top_p_case) {
        g->sampling.top_p = q->top_p;
    }
    if (q->has_seed_case) {
        g->sampling.seed = q->seed;
    }
    if (q->has_repetition_penalty_case) {
        g->sampling.repetition_penalty = q->repetition_penalty;
    }
    return shd_sampling_check(&g->sampling, err);
}

static int parse_stops(const Shard__V1__GenerateRequest *q, const shd_job *job, generation *g,
                       shd_error *err)
{
    if (q->n_stop > MAX_STOPS) {
        return shd_fail(err, SHD_EINVAL, "%zu stop tokens; at most %d are allowed", q->n_stop,
                        MAX_STOPS);
    }
    SHD_TRY(check_tokens(q->stop, q->n_stop, job->spec.model.vocab, "stop", err));
    g->stops = shd_reallocarray(NULL, q->n_stop + 1 + SHD_HF_MAX_EOS, sizeof(*g->stops));
    for (size_t i = 0; i < q->n_stop; i++) {
        g->stops[g->n_stops++] = q->stop[i];
    }
    const int32_t eos = job->tokenizer != NULL ? shd_tokenizer_eos(job->tokenizer) : -1;
    if (!q->ignore_eos && eos >= 0) {
        g->stops[g->n_stops++] = eos;
    }
    const shd_hf_info *info = job->model_files != NULL ? &job->model_files->info : NULL;
    for (uint32_t i = 0; !q->ignore_eos && info != NULL && i < info->n_eos; i++) {
        g->stops[g->n_stops++] = info->eos[i];
    }
    return SHD_OK;
}

/* The context begins with the prompt's last tokens; positions beyond the job's sequence length have
 * never been trained. */
static void set_prompt(generation *g, const int32_t *prompt, size_t n, uint32_t window)
{
    g->window = window;
    g->context = shd_reallocarray(NULL, 2 * (size_t)window, sizeof(*g->context));
    const size_t skip = n > window ? n - window : 0;
    g->left_out = skip;
    for (size_t i = skip; i < n; i++) {
        append(g, prompt[i]);
    }
    if (g->sampling.repetition_penalty != 1.0) {
        g->said = shd_reallocarray(NULL, n + g->wanted, sizeof(*g->said));
        memcpy(g->said, prompt, n * sizeof(*prompt));
        g->n_said = n;
    }
}

/* Lets the stream in: it has its turn, or waits for one. On failure it stays the caller's. */
static int enter(generation *g, shd_job *job, shd_error *err)
{
    const uint64_t bytes = 2 * (uint64_t)g->length * sizeof(int32_t);
    SHD_TRY(shd_job_check_interactive(job, bytes, err));
    shd_call_callbacks(g->call, on_gone, on_writable, g);
    go_on(g);
    return SHD_OK;
}

/* The prompt is there as tokens: the stream begins. Frees it on failure. */
static void begin(generation *g, shd_job *job, const int32_t *prompt, size_t n)
{
    shd_error err;
    int rc =
        n > 0 ? SHD_OK : shd_fail(&err, SHD_EINVAL, "the prompt is empty; give at least one token");
    if (rc == SHD_OK) {
        rc = check_tokens(prompt, n, job->spec.model.vocab, "the prompt", &err);
    }
    if (rc == SHD_OK) {
        g->item.job = job;
        g->stream = ++last_stream;
        g->cache_step = UINT64_MAX;
        set_prompt(g, prompt, n, job->spec.seq_len);
        rc = enter(g, job, &err);
    }
    if (rc < 0) {
        give_up(g, &err);
    }
}

/* The job of a call that may use its weights; NULL: the call has failed. */
static shd_job *find_job(shd_call *call, shd_jobs *jobs, const char *ref)
{
    shd_job *job;
    shd_error err;
    if (shd_jobs_find(jobs, shd_call_identity(call), ref, SHD_RIGHT_USE, &job, &err) < 0) {
        shd_call_fail(call, &err);
        return NULL;
    }
    if (job->trainer == NULL) {
        shd_call_failf(call, SHD_ESTATE, "job %s is %s%s%s; its weights are gone", job->id,
                       shd_job_state_name(job->state), job->reason[0] != '\0' ? ": " : "",
                       job->reason);
        return NULL;
    }
    return job;
}

/* ---- prompts of text ---- */

/* What the tokenizer's template puts before a text, then the text; nothing behind it, for it is to
 * go on. */
static void encode(shd_task *task)
{
    generation *g = of_task(task);
    const int32_t *before, *after;
    size_t n_before, n_after;
    shd_tokenizer_template(g->tokenizer, &before, &n_before, &after, &n_after);
    shd_ids_append(&g->ids, before, n_before);
    shd_encoder *encoder = shd_encoder_create(g->tokenizer);
    shd_encoder_limit(encoder, &task->cancel, ENCODING_S);
    g->rc = shd_encoder_run(encoder, g->prompt, g->prompt_size, 0, &g->ids, &g->err);
    shd_encoder_free(encoder);
}

static void on_encoded(shd_task *task)
{
    generation *g = of_task(task);
    shd_jobs *jobs = g->jobs;
    if (g->rc < 0 && shd_jobs_stopping(jobs)) {
        shd_fail(&g->err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    if (g->call == NULL || g->rc < 0) {
        give_up(g, &g->err);
    } else {
        shd_job *job = find_job(g->call, jobs, g->job_id);
        if (job == NULL) {
            generation_free(g);
        } else {
            begin(g, job, g->ids.items, g->ids.n);
        }
    }
    shd_jobs_unhold(jobs);
}

static int start_encoding(generation *g, shd_jobs *jobs, const shd_job *job,
                          const ProtobufCBinaryData *text, shd_error *err)
{
    shd_workers *workers = shd_jobs_workers(jobs, SHD_WORKERS_TEXT);
    const uid_t uid = shd_call_identity(g->call)->uid;
    if (job->tokenizer == NULL) {
        return shd_fail(err, SHD_EINVAL,
                        "job %s has no tokenizer to read a text with; send token ids, or make the "
                        "job with --tokenizer",
                        job->id);
    }
    if (shd_jobs_stopping(jobs)) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    if (shd_workers_tasks(workers, uid) >= MAX_ENCODING) {
        return shd_fail(err, SHD_EFULL, "%d texts of yours are being tokenized already; try again",
                        MAX_ENCODING);
    }
    g->jobs = jobs;
    memcpy(g->job_id, job->id, sizeof(g->job_id));
    g->tokenizer = shd_tokenizer_ref(job->tokenizer);
    g->prompt = shd_malloc(text->len);
    memcpy(g->prompt, text->data, text->len);
    g->prompt_size = text->len;
    g->task = (shd_task){.run = encode, .done = on_encoded, .uid = uid};
    shd_jobs_hold(jobs);
    shd_call_callbacks(g->call, on_gone, on_writable, g);
    shd_workers_run(workers, &g->task);
    return SHD_OK;
}

static void generate(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__GenerateRequest *q = (const Shard__V1__GenerateRequest *)request;
    shd_job *job = find_job(call, service, q->job);
    if (job == NULL) {
        return;
    }
    generation *g = shd_calloc(1, sizeof(*g));
    shd_error err;
    g->call = call;
    g->item.finish = on_token;
    int rc = parse_sampling(q, g, &err);
    if (rc == SHD_OK) {
        rc = parse_stops(q, job, g, &err);
    }
    if (rc == SHD_OK && q->prompt_text.len > 0 && q->n_prompt > 0) {
        rc = shd_fail(&err, SHD_EINVAL, "the prompt is given as text and as tokens; give one");
    }
    if (rc == SHD_OK && job->tokenizer != NULL) {
        g->text = shd_text_stream_create(job->tokenizer, 0);
    }
    if (rc == SHD_OK && q->prompt_text.len > 0) {
        rc = start_encoding(g, service, job, &q->prompt_text, &err);
    } else if (rc == SHD_OK) {
        begin(g, job, q->prompt, q->n_prompt);
        return;
    }
    if (rc < 0) {
        give_up(g, &err);
    }
}

const shd_rpc_method *shd_rpc_generate_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/Generate", &shard__v1__generate_request__descriptor, generate, 1},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

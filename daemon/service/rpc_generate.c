#include "daemon/service/rpc_generate.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/service/job.h"
#include "daemon/service/jobs.h"
#include "daemon/service/sampling.h"

enum { DEFAULT_TOKENS = 128, MAX_TOKENS = 100000 };

/* One stream. Its item is in the job's queue, on the ranks, or parked: then the client reads too
 * slowly and the next token waits for room. */
typedef struct generation {
    shd_item item;  /* first */
    shd_call *call; /* NULL once the client is gone */
    shd_sampling sampling;
    uint32_t made, wanted; /* tokens */
    uint32_t window;       /* the model sees this many last tokens */
    uint32_t length;       /* tokens in context */
    int32_t *context;      /* [2 * window]: room to slide in */
    int parked;
} generation;

static void generation_free(generation *g)
{
    shd_work_fini(&g->item.work);
    free(g->context);
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
}

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
    SHD_TRY(shd_trainer_check_batch(job->trainer, work, err));
    return shd_job_push_interactive(job, &g->item, g->made > 0, err);
}

static void ask_or_give_up(generation *g)
{
    shd_error err;
    if (ask(g, g->item.job, &err) < 0) {
        give_up(g, &err);
    }
}

static void on_token(shd_item *item, const shd_error *failed)
{
    generation *g = (generation *)item;
    if (g->call == NULL || failed != NULL) {
        give_up(g, failed);
        return;
    }
    Shard__V1__GenerateResponse response = SHARD__V1__GENERATE_RESPONSE__INIT;
    shd_error err;
    if (shd_sampling_pick(&g->sampling, item->work.logits, (uint32_t)item->job->spec.model.vocab,
                          g->made, &response.token, &response.logprob, &err) < 0) {
        give_up(g, &err);
        return;
    }
    response.step = item->work.step;
    append(g, response.token);
    g->made++;
    shd_call_send(g->call, &response.base);
    if (g->made == g->wanted) {
        shd_call_end(g->call);
        generation_free(g);
    } else if (shd_call_writable(g->call)) {
        ask_or_give_up(g);
    } else {
        g->parked = 1;
        shd_job_park(g->item.job, &g->item);
    }
}

static void on_writable(void *arg)
{
    generation *g = arg;
    if (g->parked) {
        g->parked = 0;
        shd_job_withdraw(g->item.job, &g->item);
        ask_or_give_up(g);
    }
}

static void on_gone(void *arg)
{
    generation *g = arg;
    g->call = NULL;
    if (shd_job_withdraw(g->item.job, &g->item)) {
        generation_free(g);
    }
}

/* ---- the call ---- */

static int check_prompt(const Shard__V1__GenerateRequest *q, const shd_job *job, shd_error *err)
{
    const int64_t vocab = job->spec.model.vocab;
    if (q->n_prompt == 0) {
        return shd_fail(err, SHD_EINVAL, "the prompt is empty; give at least one token");
    }
    for (size_t i = 0; i < q->n_prompt; i++) {
        if (q->prompt[i] < 0 || q->prompt[i] >= vocab) {
            return shd_fail(err, SHD_EINVAL,
                            "token %zu of the prompt is %d; the model's vocabulary is 0..%lld", i,
                            q->prompt[i], (long long)vocab - 1);
        }
    }
    return SHD_OK;
}

static int parse(const Shard__V1__GenerateRequest *q, const shd_job *job, generation *g,
                 shd_error *err)
{
    SHD_TRY(check_prompt(q, job, err));
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
    return shd_sampling_check(&g->sampling, err);
}

static void generate(shd_call *call, const ProtobufCMessage *request, void *service)
{
    const Shard__V1__GenerateRequest *q = (const Shard__V1__GenerateRequest *)request;
    shd_job *job;
    shd_error err;
    if (shd_jobs_find(service, shd_call_identity(call), q->job, SHD_RIGHT_USE, &job, &err) < 0) {
        shd_call_fail(call, &err);
        return;
    }
    if (job->trainer == NULL) {
        shd_call_failf(call, SHD_ESTATE, "job %s is %s%s%s; its weights are gone", job->id,
                       shd_job_state_name(job->state), job->reason[0] != '\0' ? ": " : "",
                       job->reason);
        return;
    }
    generation *g = shd_calloc(1, sizeof(*g));
    g->call = call;
    g->item.finish = on_token;
    g->item.job = job;
    if (parse(q, job, g, &err) < 0) {
        give_up(g, &err);
        return;
    }
    /* Positions beyond the job's sequence length have never been trained. */
    g->window = job->spec.seq_len;
    g->context = shd_reallocarray(NULL, 2 * (size_t)g->window, sizeof(*g->context));
    const size_t skip = q->n_prompt > g->window ? q->n_prompt - g->window : 0;
    for (size_t i = skip; i < q->n_prompt; i++) {
        append(g, q->prompt[i]);
    }
    shd_call_callbacks(call, on_gone, on_writable, g);
    ask_or_give_up(g);
}

const shd_rpc_method *shd_rpc_generate_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/Generate", &shard__v1__generate_request__descriptor, generate, 1},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

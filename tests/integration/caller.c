/* Makes the calls of the service that shardctl does not offer: reads a line "verb key=value ..."
 * from standard input, answers it with one line of JSON, and so on to the end of the input. One
 * thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/jsonout.h"
#include "client/mem.h"
#include "client/shardclient.h"
#include "client/words.h"

enum { MAX_WORDS = 64 };

typedef struct line {
    char *verb;
    char *words[MAX_WORDS];
    int n;
} line;

static int parse(char *text, line *out)
{
    char *save = NULL;

    out->n = 0;
    out->verb = strtok_r(text, " \n", &save);
    for (char *word; (word = strtok_r(NULL, " \n", &save)) != NULL && out->n < MAX_WORDS;)
        out->words[out->n++] = word;
    return out->verb != NULL;
}

/* The value of a key, or NULL. */
static char *get(const line *in, const char *key)
{
    const size_t n = strlen(key);

    for (int i = 0; i < in->n; i++)
        if (!strncmp(in->words[i], key, n) && in->words[i][n] == '=')
            return in->words[i] + n + 1;
    return NULL;
}

static char *text(const line *in, const char *key)
{
    char *value = get(in, key);
    return value ? value : (char *)"";
}

static uint64_t number(const line *in, const char *key, uint64_t otherwise)
{
    const char *value = get(in, key);
    return value ? strtoull(value, NULL, 10) : otherwise;
}

/* ---- batches ---- */

typedef struct batch {
    Shard__V1__Batch message;
    Shard__V1__Sequence *rows;
    Shard__V1__Sequence **pointers;
} batch;

static void row_list(const char *list, int32_t **out, size_t *n)
{
    for (const char *at = list; *at; at += *at == ',') {
        char *end;
        *out = shc_reallocarray(*out, *n + 1, sizeof **out);
        (*out)[(*n)++] = (int32_t)strtol(at, &end, 10);
        at = end;
    }
}

/* tokens=1,2,3 (one sequence; targets= too), or rows= sequences of len= tokens that follow from
 * seed=. */
static void batch_make(batch *b, const line *in)
{
    const char *tokens = get(in, "tokens"), *targets = get(in, "targets");
    const size_t rows = tokens ? 1 : number(in, "rows", 1);

    shard__v1__batch__init(&b->message);
    b->rows = shc_calloc(rows + 1, sizeof *b->rows);
    b->pointers = shc_calloc(rows + 1, sizeof *b->pointers);
    uint64_t state = number(in, "seed", 1);
    for (size_t i = 0; i < rows; i++) {
        Shard__V1__Sequence *s = b->pointers[i] = &b->rows[i];
        shard__v1__sequence__init(s);
        if (tokens) {
            row_list(tokens, &s->tokens, &s->n_tokens);
            if (targets)
                row_list(targets, &s->targets, &s->n_targets);
            continue;
        }
        s->n_tokens = number(in, "len", 16);
        s->tokens = shc_calloc(s->n_tokens, sizeof *s->tokens);
        for (size_t t = 0; t < s->n_tokens; t++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            s->tokens[t] = (int32_t)(state >> 56);
        }
    }
    b->message.sequences = b->pointers;
    b->message.n_sequences = rows;
}

static void batch_free(batch *b)
{
    for (size_t i = 0; i < b->message.n_sequences; i++) {
        free(b->rows[i].tokens);
        free(b->rows[i].targets);
    }
    free(b->rows);
    free(b->pointers);
}

static Shard__V1__StepOverrides *overrides(const line *in, Shard__V1__StepOverrides *o)
{
    shard__v1__step_overrides__init(o);
    if (get(in, "lr")) {
        o->has_lr_case = SHARD__V1__STEP_OVERRIDES__HAS_LR_LR;
        o->lr = strtod(get(in, "lr"), NULL);
    }
    if (get(in, "clip")) {
        o->has_clip_case = SHARD__V1__STEP_OVERRIDES__HAS_CLIP_CLIP;
        o->clip = strtod(get(in, "clip"), NULL);
    }
    return o->has_lr_case || o->has_clip_case ? o : NULL;
}

/* ---- answers ---- */

static void put_error(shc_json *json, const shc_error *err)
{
    shc_json_bool(json, "ok", 0);
    shc_json_i64(json, "errno", err->shd_errno);
    shc_json_i64(json, "status", err->grpc_status);
    shc_json_str(json, "message", err->message);
}

static void put_step(shc_json *json, const Shard__V1__StepResult *s)
{
    shc_json_bool(json, "ok", 1);
    shc_json_u64(json, "step", s->step);
    shc_json_num(json, "loss", s->loss);
    shc_json_num(json, "grad_norm", s->grad_norm);
    shc_json_num(json, "lr", s->lr);
    shc_json_u64(json, "tokens", s->tokens);
    shc_json_num(json, "step_ms", s->step_ms);
    shc_json_bool(json, "skipped", s->skipped);
    shc_json_u64(json, "samples", s->samples);
}

static void put_loss(shc_json *json, double loss, uint64_t tokens,
                     Shard__V1__TokenLogprobs *const *logprobs, size_t n)
{
    shc_json_bool(json, "ok", 1);
    shc_json_num(json, "loss", loss);
    shc_json_u64(json, "tokens", tokens);
    shc_json_open(json, "logprobs", '[');
    for (size_t i = 0; i < n; i++) {
        shc_json_open(json, NULL, '[');
        for (size_t t = 0; t < logprobs[i]->n_values; t++)
            shc_json_num(json, NULL, (double)logprobs[i]->values[t]);
        shc_json_close(json, ']');
    }
    shc_json_close(json, ']');
}

static void put_job(shc_json *json, const Shard__V1__Job *job)
{
    shc_json_bool(json, "ok", 1);
    shc_json_str(json, "id", job->id);
    shc_json_str(json, "state", shc_state_name(job->state));
    shc_json_str(json, "reason", job->reason);
    shc_json_u64(json, "step", job->step);
    shc_json_u64(json, "samples", job->samples);
    shc_json_u64(json, "next_seq", job->next_seq);
}

/* ---- verbs ---- */

static int create(shc_client *client, const line *in, shc_json *json, shc_error *err)
{
    Shard__V1__CreateJobRequest q = SHARD__V1__CREATE_JOB_REQUEST__INIT;
    Shard__V1__JobSpec spec = SHARD__V1__JOB_SPEC__INIT;
    Shard__V1__Job *job;

    q.request_id = text(in, "request");
    q.spec = &spec;
    spec.name = text(in, "name");
    spec.model = get(in, "model") ? text(in, "model") : (char *)"gpt-byte-1m";
    spec.data = text(in, "data");
    spec.eval_data = text(in, "eval_data");
    spec.strategy = text(in, "strategy");
#define FIELD(field, HAS)                                                                          \
    if (get(in, #field)) {                                                                         \
        spec.has_##field##_case = SHARD__V1__JOB_SPEC__HAS_##HAS##_##HAS;                          \
        spec.field = (__typeof__(spec.field))number(in, #field, 0);                                \
    }
    FIELD(steps, STEPS)
    FIELD(ranks, RANKS)
    FIELD(seq_len, SEQ_LEN)
    FIELD(micro_batch, MICRO_BATCH)
    FIELD(global_batch, GLOBAL_BATCH)
    FIELD(eval_every, EVAL_EVERY)
    FIELD(seed, SEED)
    FIELD(priority, PRIORITY)
#undef FIELD
    const int rc = shc_create_job(client, &q, &job, err);
    if (!rc) {
        put_job(json, job);
        shard__v1__job__free_unpacked(job, NULL);
    }
    return rc;
}

static int train(shc_client *client, const line *in, shc_json *json, shc_error *err)
{
    Shard__V1__TrainStepRequest q = SHARD__V1__TRAIN_STEP_REQUEST__INIT;
    Shard__V1__TrainStepResponse *answer;
    Shard__V1__StepOverrides o;
    batch b;

    batch_make(&b, in);
    q.job = text(in, "job");
    q.seq = number(in, "seq", 0);
    q.batch = &b.message;
    q.overrides = overrides(in, &o);
    const int rc = shc_train_step(client, &q, &answer, err);
    if (!rc) {
        put_step(json, answer->result);
        shard__v1__train_step_response__free_unpacked(answer, NULL);
    }
    batch_free(&b);
    return rc;
}

static int backward(shc_client *client, const line *in, shc_json *json, shc_error *err)
{
    Shard__V1__ForwardBackwardRequest q = SHARD__V1__FORWARD_BACKWARD_REQUEST__INIT;
    Shard__V1__ForwardBackwardResponse *answer;
    batch b;

    batch_make(&b, in);
    q.job = text(in, "job");
    q.seq = number(in, "seq", 0);
    q.batch = &b.message;
    q.loss = text(in, "loss");
    q.want_logprobs = number(in, "logprobs", 0) != 0;
    const int rc = shc_forward_backward(client, &q, &answer, err);
    if (!rc) {
        put_loss(json, answer->loss, answer->valid_tokens, answer->logprobs, answer->n_logprobs);
        shard__v1__forward_backward_response__free_unpacked(answer, NULL);
    }
    batch_free(&b);
    return rc;
}

static int optim(shc_client *client, const line *in, shc_json *json, shc_error *err)
{
    Shard__V1__OptimStepRequest q = SHARD__V1__OPTIM_STEP_REQUEST__INIT;
    Shard__V1__OptimStepResponse *answer;
    Shard__V1__StepOverrides o;

    q.job = text(in, "job");
    q.seq = number(in, "seq", 0);
    q.overrides = overrides(in, &o);
    const int rc = shc_optim_step(client, &q, &answer, err);
    if (!rc) {
        put_step(json, answer->result);
        shard__v1__optim_step_response__free_unpacked(answer, NULL);
    }
    return rc;
}

static int forward(shc_client *client, const line *in, shc_json *json, shc_error *err)
{
    Shard__V1__ForwardRequest q = SHARD__V1__FORWARD_REQUEST__INIT;
    Shard__V1__ForwardResponse *answer;
    batch b;

    batch_make(&b, in);
    q.job = text(in, "job");
    q.batch = &b.message;
    q.want_logprobs = number(in, "logprobs", 0) != 0;
    const int rc = shc_forward(client, &q, &answer, err);
    if (!rc) {
        put_loss(json, answer->loss, answer->valid_tokens, answer->logprobs, answer->n_logprobs);
        shard__v1__forward_response__free_unpacked(answer, NULL);
    }
    batch_free(&b);
    return rc;
}

static int job_call(int (*call)(shc_client *, const Shard__V1__JobRef *, Shard__V1__Job **,
                                shc_error *),
                    shc_client *client, const line *in, shc_json *json, shc_error *err)
{
    Shard__V1__JobRef q = SHARD__V1__JOB_REF__INIT;
    Shard__V1__Job *job;

    q.job = text(in, "job");
    const int rc = call(client, &q, &job, err);
    if (!rc) {
        put_job(json, job);
        shard__v1__job__free_unpacked(job, NULL);
    }
    return rc;
}

static int health(shc_client *client, const line *in, shc_json *json, shc_error *err)
{
    Grpc__Health__V1__HealthCheckResponse__ServingStatus status;
    const int rc = shc_health(client, text(in, "service"), &status, err);

    if (!rc) {
        shc_json_bool(json, "ok", 1);
        shc_json_bool(json, "serving",
                      status == GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING);
    }
    return rc;
}

static int run(shc_client *client, const line *in, shc_json *json, shc_error *err)
{
    static const struct {
        const char *verb;
        int (*fn)(shc_client *, const line *, shc_json *, shc_error *);
    } verbs[] = {
        {"create", create}, {"train", train},     {"backward", backward},
        {"optim", optim},   {"forward", forward}, {"health", health},
    };

    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(verbs[i].verb, in->verb))
            return verbs[i].fn(client, in, json, err);
    if (!strcmp(in->verb, "get"))
        return job_call(shc_get_job, client, in, json, err);
    if (!strcmp(in->verb, "cancel"))
        return job_call(shc_cancel_job, client, in, json, err);
    fprintf(stderr, "caller: unknown verb %s\n", in->verb);
    exit(2);
}

int main(int argc, char **argv)
{
    char *input = NULL;
    size_t size = 0;
    line in;
    shc_error err;

    if (argc != 2) {
        fprintf(stderr, "usage: caller SOCKET\n");
        return 2;
    }
    shc_client *client = shc_connect(argv[1], &err);
    if (!client) {
        fprintf(stderr, "caller: %s\n", err.message);
        return 2;
    }
    shc_set_timeout(client, 300000);
    while (getline(&input, &size, stdin) > 0) {
        shc_json json = {0};
        if (!parse(input, &in))
            continue;
        shc_json_open(&json, NULL, '{');
        if (run(client, &in, &json, &err))
            put_error(&json, &err);
        shc_json_close(&json, '}');
        shc_json_line(&json, stdout);
        fflush(stdout);
        shc_json_fini(&json);
    }
    free(input);
    shc_close(client);
    return 0;
}

/* shardctl eval: loss and perplexity of a job's weights on a file or a text. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/job_arg.h"
#include "client/mem.h"
#include "client/meter.h"
#include "client/tokens.h"
#include "client/units.h"

typedef struct eval_args {
    char *job;
    char *data;
    char *data_format;
    uint32_t stride;
    uint64_t max_tokens;
    int packing, has_packing;
    char *text;
    int logprobs;
} eval_args;

static const shc_option options[] = {
    {.name = "data",
     .value = "FILE",
     .type = SHC_FILE,
     .at = offsetof(eval_args, data),
     .help =
         "file to evaluate on, of any size, read by the daemon like a job's: text, JSONL, .bin"},
    {.name = "data-format",
     .value = "FORMAT",
     .type = SHC_TEXT,
     .at = offsetof(eval_args, data_format),
     .help = "of --data: auto (default), text, jsonl, nanogpt, llmc"},
    {.name = "stride",
     .value = "N",
     .type = SHC_U32,
     .at = offsetof(eval_args, stride),
     .min = 1,
     .help = "windows of --data begin N tokens apart, and of each only the last N targets count: "
             "more context for more work; default: the job's sequence length"},
    {.name = "max-tokens",
     .value = "N",
     .type = SHC_U64,
     .at = offsetof(eval_args, max_tokens),
     .min = 1,
     .help = "only the first N tokens of --data after the very first; default: all"},
    {.name = "packing",
     .value = "on|off",
     .type = SHC_ON_OFF,
     .at = offsetof(eval_args, packing),
     .has = offsetof(eval_args, has_packing),
     .mark = 1,
     .help = "documents of --data end to end, or each by itself; default: as the job trains"},
    {.name = "text",
     .value = "TEXT",
     .type = SHC_RAW_TEXT,
     .at = offsetof(eval_args, text),
     .help = "a short text instead of --data; default: standard input"},
    {.name = "logprobs",
     .type = SHC_BOOL,
     .at = offsetof(eval_args, logprobs),
     .help = "print the log-probability of every token of the text first"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

/* ---- a file, by the daemon ---- */

static void show_file(const shc_env *env, const Shard__V1__EvaluateResponse *r)
{
    char bytes[SHC_UNIT_LEN];
    shc_json json = {0};

    if (!env->json) {
        printf("step %" PRIu64 ": loss %.4f nats per token  perplexity %.3f  %" PRIu64
               " tokens in %" PRIu64 " windows",
               r->step, r->loss, r->perplexity, r->tokens, r->windows);
        if (r->text_bytes)
            printf("  %.4f bits per byte of %s", r->bits_per_byte,
                   shc_format_bytes(bytes, r->text_bytes));
        printf("\n");
        return;
    }
    shc_json_open(&json, NULL, '{');
    shc_json_u64(&json, "step", r->step);
    shc_json_num(&json, "loss", r->loss);
    shc_json_num(&json, "perplexity", r->perplexity);
    shc_json_u64(&json, "tokens", r->tokens);
    shc_json_u64(&json, "windows", r->windows);
    if (r->text_bytes) {
        shc_json_u64(&json, "text_bytes", r->text_bytes);
        shc_json_num(&json, "bits_per_byte", r->bits_per_byte);
    }
    shc_json_num(&json, "ms", r->ms);
    shc_json_close(&json, '}');
    shc_json_line(&json, stdout);
    shc_json_fini(&json);
}

static int run_file(shc_env *env, const eval_args *args)
{
    Shard__V1__EvaluateRequest request = SHARD__V1__EVALUATE_REQUEST__INIT;
    shc_meter meter = {.env = env};
    ProtobufCMessage *message;
    shc_stream *stream;
    shc_error err;
    int got;

    request.job = args->job;
    request.data = args->data;
    if (args->data_format)
        request.data_format = args->data_format;
    if (args->stride) {
        request.has_stride_case = SHARD__V1__EVALUATE_REQUEST__HAS_STRIDE_STRIDE;
        request.stride = args->stride;
    }
    if (args->max_tokens) {
        request.has_max_tokens_case = SHARD__V1__EVALUATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
        request.max_tokens = args->max_tokens;
    }
    if (args->has_packing) {
        request.has_packing_case = SHARD__V1__EVALUATE_REQUEST__HAS_PACKING_PACKING;
        request.packing = args->packing;
    }
    if (shc_evaluate(env->client, &request, &stream, &err))
        return shc_complain(&err);
    while ((got = shc_stream_next(stream, -1, &message, &err)) == SHC_MESSAGE) {
        const Shard__V1__EvaluateResponse *r = (const Shard__V1__EvaluateResponse *)message;
        if (r->progress) {
            shc_meter_show(&meter, r->progress);
        } else {
            shc_meter_clear(&meter);
            show_file(env, r);
        }
        shc_message_free(message);
    }
    shc_meter_clear(&meter);
    shc_stream_close(stream);
    return got == SHC_END ? SHC_EXIT_DONE : shc_complain(&err);
}

/* ---- a text, through Forward ---- */

/* `rows` sequences of `length` tokens, filled anew for each batch. */
typedef struct batch {
    Shard__V1__Batch message;
    Shard__V1__Sequence *rows;
    Shard__V1__Sequence **pointers;
    int32_t *tokens, *targets;
    size_t nrows, length;
} batch;

static void batch_init(batch *b, size_t rows, size_t length)
{
    shard__v1__batch__init(&b->message);
    b->nrows = rows;
    b->length = length;
    b->rows = shc_calloc(rows, sizeof *b->rows);
    b->pointers = shc_calloc(rows, sizeof *b->pointers);
    b->tokens = shc_calloc(rows * length, sizeof *b->tokens);
    b->targets = shc_calloc(rows * length, sizeof *b->targets);
    for (size_t i = 0; i < rows; i++) {
        shard__v1__sequence__init(&b->rows[i]);
        b->rows[i].tokens = b->tokens + i * length;
        b->rows[i].targets = b->targets + i * length;
        b->pointers[i] = &b->rows[i];
    }
    b->message.sequences = b->pointers;
}

static void batch_fini(batch *b)
{
    free(b->rows);
    free(b->pointers);
    free(b->tokens);
    free(b->targets);
}

/* The tokens of the text in order: ids that the daemon made. */
typedef struct token_source {
    const int32_t *ids;
    size_t n, next;
} token_source;

/* Takes sequences from the source: each predicts the `length` tokens after its first, the next one
 * begins where it ended. Gives the number of sequences. */
static size_t batch_read(batch *b, token_source *source)
{
    size_t rows = 0;

    for (; rows < b->nrows && source->next + 1 < source->n; rows++) {
        Shard__V1__Sequence *s = &b->rows[rows];
        const size_t left = source->n - 1 - source->next, n = left < b->length ? left : b->length;
        memcpy(s->tokens, source->ids + source->next, n * sizeof *s->tokens);
        memcpy(s->targets, source->ids + source->next + 1, n * sizeof *s->targets);
        s->n_tokens = s->n_targets = n;
        source->next += n;
    }
    b->message.n_sequences = rows;
    return rows;
}

/* One line a token: its place in the file, id, and log-probability in nats. */
static void show_logprobs(const shc_env *env, const batch *b,
                          const Shard__V1__ForwardResponse *answer, uint64_t first)
{
    shc_json json = {0};

    for (size_t i = 0; i < b->message.n_sequences && i < answer->n_logprobs; i++) {
        const Shard__V1__TokenLogprobs *row = answer->logprobs[i];
        for (size_t k = 0; k < b->rows[i].n_targets && k < row->n_values; k++, first++) {
            if (!env->json) {
                printf("%" PRIu64 "\t%" PRId32 "\t%.6f\n", first, b->rows[i].targets[k],
                       (double)row->values[k]);
                continue;
            }
            shc_json_open(&json, NULL, '{');
            shc_json_u64(&json, "index", first);
            shc_json_i64(&json, "token", b->rows[i].targets[k]);
            shc_json_num(&json, "logprob", (double)row->values[k]);
            shc_json_close(&json, '}');
            shc_json_line(&json, stdout);
        }
    }
    shc_json_fini(&json);
}

/* Sums loss over the text. 0, or the exit status after having complained. */
static int evaluate(shc_env *env, const eval_args *args, batch *b, token_source *source,
                    double *sum, uint64_t *tokens)
{
    Shard__V1__ForwardRequest request = SHARD__V1__FORWARD_REQUEST__INIT;
    Shard__V1__ForwardResponse *answer;
    shc_error err;

    request.job = args->job;
    request.batch = &b->message;
    request.want_logprobs = args->logprobs;
    shc_set_timeout(env->client, 0); /* a batch takes as long as it takes */
    while (batch_read(b, source)) {
        if (shc_forward(env->client, &request, &answer, &err))
            return shc_complain(&err);
        if (args->logprobs)
            show_logprobs(env, b, answer, *tokens + 1);
        *sum += answer->loss * (double)answer->valid_tokens;
        *tokens += answer->valid_tokens;
        shard__v1__forward_response__free_unpacked(answer, NULL);
    }
    return *tokens ? 0 : shc_usage("the text has fewer than two tokens; give a longer one");
}

/* The daemon makes the ids of the whole text, so that no border is drawn where the text has none.
 * 0, or the exit status after having complained. */
static int tokenize(shc_env *env, const eval_args *args, shc_tokens *out)
{
    Shard__V1__TokenizeRequest request = SHARD__V1__TOKENIZE_REQUEST__INIT;
    shc_buf text = {0};
    char chunk[4096];
    size_t n;
    int rc;

    if (args->text)
        shc_buf_puts(&text, args->text);
    else
        while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0)
            shc_buf_add(&text, chunk, n);
    request.job = args->job;
    request.text = (ProtobufCBinaryData){.len = text.len, .data = (uint8_t *)text.data};
    if (ferror(stdin))
        rc = shc_usage("standard input: %s; give readable input", strerror(errno));
    else if (!text.len)
        rc =
            shc_usage("the text is empty; give --data FILE, --text TEXT or text on standard input");
    else
        rc = shc_tokenize_all(env, &request, out);
    shc_buf_fini(&text);
    return rc;
}

static void show_text(const shc_env *env, double loss, uint64_t tokens)
{
    shc_json json = {0};

    if (!env->json) {
        printf("loss %.4f nats per token  perplexity %.3f  %" PRIu64 " tokens\n", loss, exp(loss),
               tokens);
        return;
    }
    shc_json_open(&json, NULL, '{');
    shc_json_num(&json, "loss", loss);
    shc_json_num(&json, "perplexity", exp(loss));
    shc_json_u64(&json, "tokens", tokens);
    shc_json_close(&json, '}');
    shc_json_line(&json, stdout);
    shc_json_fini(&json);
}

static int run_text(shc_env *env, const eval_args *args, const Shard__V1__Job *job)
{
    size_t length = job->context, rows = 1;
    uint64_t tokens = 0;
    double sum = 0;

    if (job->spec) {
        rows = job->spec->micro_batch ? job->spec->micro_batch : 1;
        if (job->spec->seq_len && job->spec->seq_len < length)
            length = job->spec->seq_len;
    }
    if (!length)
        return shc_usage("the daemon does not tell the context of the job; look at its log");
    shc_tokens made = {0};
    int rc = tokenize(env, args, &made);
    if (!rc) {
        token_source source = {.ids = made.ids, .n = made.n};
        batch b = {0};
        batch_init(&b, rows, length);
        rc = evaluate(env, args, &b, &source, &sum, &tokens);
        batch_fini(&b);
    }
    shc_tokens_fini(&made);
    if (!rc)
        show_text(env, sum / (double)tokens, tokens);
    return rc;
}

static int check(const eval_args *args)
{
    const int of_file = args->data_format || args->stride || args->max_tokens || args->has_packing;

    if (args->data && (args->text || args->logprobs))
        return shc_usage("--text and --logprobs are for a text, not for --data; give one of them");
    if (!args->data && of_file)
        return shc_usage("--data-format, --stride, --max-tokens and --packing say how to read "
                         "--data; give --data FILE too");
    return 0;
}

static int run(shc_env *env, void *arguments)
{
    const eval_args *args = arguments;
    Shard__V1__Job *job;
    int rc = check(args);

    if (rc)
        return rc;
    if (args->data)
        return (rc = shc_env_connect(env)) ? rc : run_file(env, args);
    if ((rc = shc_find_job(env, args->job, &job)))
        return rc;
    rc = run_text(env, args, job);
    shard__v1__job__free_unpacked(job, NULL);
    return rc;
}

const shc_command shc_cmd_eval = {
    .syntax =
        {
            .name = "eval",
            .about = "Gives the loss of the job's weights, and the perplexity. On a file (--data) "
                     "every token but the first (of each document with --packing off) is "
                     "predicted once, in windows of the job's sequence length; the job takes no "
                     "step meanwhile, so that all is of the same weights. On a text, windows lie "
                     "end to end, and the log-probabilities of its tokens can be shown.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(eval_args)},
        },
    .summary = "give loss and perplexity on a file or a text",
    .args_size = sizeof(eval_args),
    .run = run,
};

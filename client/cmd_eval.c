/* shardctl eval: loss and perplexity of a job's weights on a text. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/job_arg.h"
#include "client/mem.h"
#include "client/tokens.h"

typedef struct eval_args {
    char *job;
    char *data;
    uint32_t batches;
    int logprobs;
} eval_args;

static const shc_option options[] = {
    {.name = "data",
     .value = "FILE",
     .type = SHC_FILE,
     .at = offsetof(eval_args, data),
     .help = "text to evaluate on, read by the job's tokenizer"},
    {.name = "batches",
     .value = "N",
     .type = SHC_U32,
     .at = offsetof(eval_args, batches),
     .min = 1,
     .help = "at most so many batches from its beginning; default: all of it"},
    {.name = "logprobs",
     .type = SHC_BOOL,
     .at = offsetof(eval_args, logprobs),
     .help = "print the log-probability of every token first"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

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

/* The tokens of a file in order: its bytes as they are read, or ids that the daemon made. */
typedef struct token_source {
    FILE *file; /* NULL: ids */
    const int32_t *ids;
    size_t n, next;
} token_source;

static int32_t next_token(token_source *source)
{
    if (source->file)
        return getc(source->file); /* EOF is -1, as below */
    return source->next < source->n ? source->ids[source->next++] : -1;
}

/* Takes sequences from the source: each predicts the `length` tokens after its first, the next one
 * begins where it ended. `carry` is the token before the source's position. Gives the number of
 * sequences. */
static size_t batch_read(batch *b, token_source *source, int32_t *carry)
{
    size_t rows = 0;

    for (; rows < b->nrows; rows++) {
        Shard__V1__Sequence *s = &b->rows[rows];
        size_t n = 0;
        int32_t token;
        while (n < b->length && (token = next_token(source)) >= 0) {
            s->tokens[n] = *carry;
            s->targets[n++] = *carry = token;
        }
        s->n_tokens = s->n_targets = n;
        if (!n)
            break;
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

/* Sums loss over the file. 0, or the exit status after having complained. */
static int evaluate(shc_env *env, const eval_args *args, batch *b, token_source *source,
                    double *sum, uint64_t *tokens, uint32_t *batches)
{
    Shard__V1__ForwardRequest request = SHARD__V1__FORWARD_REQUEST__INIT;
    Shard__V1__ForwardResponse *answer;
    shc_error err;
    int32_t carry = next_token(source);

    request.job = args->job;
    request.batch = &b->message;
    request.want_logprobs = args->logprobs;
    shc_set_timeout(env->client, 0); /* a batch takes as long as it takes */
    while (carry >= 0 && (!args->batches || *batches < args->batches) &&
           batch_read(b, source, &carry)) {
        if (shc_forward(env->client, &request, &answer, &err))
            return shc_complain(&err);
        if (args->logprobs)
            show_logprobs(env, b, answer, *tokens + 1);
        *sum += answer->loss * (double)answer->valid_tokens;
        *tokens += answer->valid_tokens;
        ++*batches;
        shard__v1__forward_response__free_unpacked(answer, NULL);
    }
    if (source->file && ferror(source->file))
        return shc_usage("--data: %s: %s; give a readable file", args->data, strerror(errno));
    if (!*tokens)
        return shc_usage("--data: %s has fewer than two tokens; give a longer file", args->data);
    return 0;
}

/* The daemon makes the ids of the whole text, so that no border is drawn where the text has none.
 * 0, or the exit status after having complained. */
static int tokenize_file(shc_env *env, const eval_args *args, FILE *file, shc_tokens *out)
{
    Shard__V1__TokenizeRequest request = SHARD__V1__TOKENIZE_REQUEST__INIT;
    shc_buf text = {0};
    char chunk[4096];
    size_t n;
    int rc;

    while ((n = fread(chunk, 1, sizeof chunk, file)) > 0)
        shc_buf_add(&text, chunk, n);
    request.job = args->job;
    request.text = (ProtobufCBinaryData){.len = text.len, .data = (uint8_t *)text.data};
    if (ferror(file))
        rc = shc_usage("--data: %s: %s; give a readable file", args->data, strerror(errno));
    else
        rc = shc_tokenize_all(env, &request, out);
    shc_buf_fini(&text);
    return rc;
}

static void show(const shc_env *env, double loss, uint64_t tokens, uint32_t batches)
{
    shc_json json = {0};

    if (!env->json) {
        printf("loss %.4f nats per token  perplexity %.3f  %" PRIu64 " tokens in %" PRIu32
               " batches\n",
               loss, exp(loss), tokens, batches);
        return;
    }
    shc_json_open(&json, NULL, '{');
    shc_json_num(&json, "loss", loss);
    shc_json_num(&json, "perplexity", exp(loss));
    shc_json_u64(&json, "tokens", tokens);
    shc_json_u64(&json, "batches", batches);
    shc_json_close(&json, '}');
    shc_json_line(&json, stdout);
    shc_json_fini(&json);
}

static int run(shc_env *env, void *arguments)
{
    const eval_args *args = arguments;
    Shard__V1__Job *job;
    uint64_t tokens = 0;
    uint32_t batches = 0;
    double sum = 0;
    int rc;

    if (!args->data)
        return shc_usage("--data is missing; give --data FILE");
    if ((rc = shc_find_job(env, args->job, &job)))
        return rc;
    const int bytes = shc_job_of_bytes(job), of_text = shc_job_of_text(job);
    size_t length = job->context, rows = 1;
    if (job->spec) {
        rows = job->spec->micro_batch ? job->spec->micro_batch : 1;
        if (job->spec->seq_len && job->spec->seq_len < length)
            length = job->spec->seq_len;
    }
    shard__v1__job__free_unpacked(job, NULL);
    if (!bytes && !of_text)
        return shc_usage("--data: the job has no tokenizer to read text with; submit it with "
                         "--tokenizer, or with --eval-data");
    if (!length)
        return shc_usage("the daemon does not tell the context of the job; look at its log");

    FILE *file = fopen(args->data, "re");
    if (!file)
        return shc_usage("--data: %s: %s; give a readable file", args->data, strerror(errno));
    shc_tokens made = {0};
    if (!bytes)
        rc = tokenize_file(env, args, file, &made);
    if (!rc) {
        token_source source = {.file = bytes ? file : NULL, .ids = made.ids, .n = made.n};
        batch b = {0};
        batch_init(&b, rows, length);
        rc = evaluate(env, args, &b, &source, &sum, &tokens, &batches);
        batch_fini(&b);
    }
    shc_tokens_fini(&made);
    fclose(file);
    if (!rc)
        show(env, sum / (double)tokens, tokens, batches);
    return rc;
}

const shc_command shc_cmd_eval = {
    .syntax =
        {
            .name = "eval",
            .about = "Reads a text and gives the loss of the job's weights on it and the "
                     "perplexity, in batches of the job's micro-batch and sequence length: each "
                     "sequence predicts the tokens after its first and begins where the one "
                     "before ended.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(eval_args)},
        },
    .summary = "give loss and perplexity on a text",
    .args_size = sizeof(eval_args),
    .run = run,
};

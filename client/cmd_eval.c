/* shardctl eval: the loss of a job's weights on a file of bytes. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/job_arg.h"
#include "client/mem.h"

enum { BYTE_VOCAB = 256 };

typedef struct eval_args {
    char *job;
    char *data;
    uint32_t batches;
} eval_args;

static const shc_option options[] = {
    {.name = "data",
     .value = "FILE",
     .type = SHC_FILE,
     .at = offsetof(eval_args, data),
     .help = "bytes to evaluate on"},
    {.name = "batches",
     .value = "N",
     .type = SHC_U32,
     .at = offsetof(eval_args, batches),
     .min = 1,
     .help = "at most so many batches from its beginning; default: all of it"},
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

/* Takes sequences from the file: each predicts the `length` bytes after its first, the next one
 * begins where it ended. `carry` is the byte before the file's position. Gives the number of
 * sequences. */
static size_t batch_read(batch *b, FILE *file, int *carry)
{
    size_t rows = 0;

    for (; rows < b->nrows; rows++) {
        Shard__V1__Sequence *s = &b->rows[rows];
        size_t n = 0;
        int c;
        while (n < b->length && (c = getc(file)) != EOF) {
            s->tokens[n] = *carry;
            s->targets[n++] = *carry = c;
        }
        s->n_tokens = s->n_targets = n;
        if (!n)
            break;
    }
    b->message.n_sequences = rows;
    return rows;
}

/* Sums loss over the file. 0, or the exit status after having complained. */
static int evaluate(shc_env *env, const eval_args *args, batch *b, FILE *file, double *sum,
                    uint64_t *tokens, uint32_t *batches)
{
    Shard__V1__ForwardRequest request = SHARD__V1__FORWARD_REQUEST__INIT;
    Shard__V1__ForwardResponse *answer;
    shc_error err;
    int carry = getc(file);

    request.job = args->job;
    request.batch = &b->message;
    shc_set_timeout(env->client, 0); /* a batch takes as long as it takes */
    while (carry != EOF && (!args->batches || *batches < args->batches) &&
           batch_read(b, file, &carry)) {
        if (shc_forward(env->client, &request, &answer, &err))
            return shc_complain(&err);
        *sum += answer->loss * (double)answer->valid_tokens;
        *tokens += answer->valid_tokens;
        ++*batches;
        shard__v1__forward_response__free_unpacked(answer, NULL);
    }
    if (ferror(file))
        return shc_usage("--data: %s: %s; give a readable file", args->data, strerror(errno));
    if (!*tokens)
        return shc_usage("--data: %s has fewer than two bytes; give a longer file", args->data);
    return 0;
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
    const uint32_t vocab = job->vocab;
    size_t length = job->context, rows = 1;
    if (job->spec) {
        rows = job->spec->micro_batch ? job->spec->micro_batch : 1;
        if (job->spec->seq_len && job->spec->seq_len < length)
            length = job->spec->seq_len;
    }
    shard__v1__job__free_unpacked(job, NULL);
    if (vocab != BYTE_VOCAB)
        return shc_usage("--data: the model has a vocabulary of %u, and eval reads bytes (256); "
                         "submit the job with --eval-data instead",
                         vocab);
    if (!length)
        return shc_usage("the daemon does not tell the context of the job; look at its log");

    FILE *file = fopen(args->data, "re");
    if (!file)
        return shc_usage("--data: %s: %s; give a readable file", args->data, strerror(errno));
    batch b = {0};
    batch_init(&b, rows, length);
    rc = evaluate(env, args, &b, file, &sum, &tokens, &batches);
    batch_fini(&b);
    fclose(file);
    if (!rc)
        show(env, sum / (double)tokens, tokens, batches);
    return rc;
}

const shc_command shc_cmd_eval = {
    .syntax =
        {
            .name = "eval",
            .about = "Reads a file of bytes and gives the loss of the job's weights on it, in "
                     "batches of the job's micro-batch and sequence length.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(eval_args)},
        },
    .summary = "give the loss on a file",
    .args_size = sizeof(eval_args),
    .run = run,
};

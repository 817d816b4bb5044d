/* shardctl generate: text from the weights as they are. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/job_arg.h"
#include "client/mem.h"
#include "client/units.h"
#include "client/utf8.h"

enum { BYTE_VOCAB = 256 };

typedef struct generate_args {
    Shard__V1__GenerateRequest request;
    char *job;
    char *prompt;
    uint32_t *tokens;
    size_t n_tokens;
} generate_args;

#define NUM(flag, word, field, HAS, kind, low, high, text)                                         \
    {                                                                                              \
        .name = flag, .value = word, .type = kind, .at = offsetof(generate_args, request.field),   \
        .has = offsetof(generate_args, request.has_##field##_case),                                \
        .mark = SHARD__V1__GENERATE_REQUEST__HAS_##HAS##_##HAS, .min = low, .max = high,           \
        .help = text                                                                               \
    }

static const shc_option options[] = {
    {.name = "prompt",
     .value = "TEXT",
     .type = SHC_RAW_TEXT,
     .at = offsetof(generate_args, prompt),
     .help = "text to go on from, for models of bytes"},
    {.name = "prompt-tokens",
     .value = "IDS",
     .type = SHC_U32_LIST,
     .at = offsetof(generate_args, tokens),
     .has = offsetof(generate_args, n_tokens),
     .help = "token ids to go on from, such as 1,2,3"},
    NUM("max-tokens", "N", max_tokens, MAX_TOKENS, SHC_U32, 1, 0, "tokens to make; default 128"),
    NUM("temperature", "T", temperature, TEMPERATURE, SHC_NUM, 0, 0,
        "default 1; 0: always the likeliest token"),
    NUM("top-k", "K", top_k, TOP_K, SHC_U32, 0, 0, "only among the K likeliest; 0: all"),
    NUM("top-p", "P", top_p, TOP_P, SHC_NUM, 0, 1,
        "only among the likeliest that together have this probability; default 1"),
    NUM("seed", "S", seed, SEED, SHC_U64, 0, 0, "default 1"),
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

static void init(void *args)
{
    shard__v1__generate_request__init(&((generate_args *)args)->request);
}

/* Token ids of the prompt into the request. 0, or the exit status after having complained. */
static int set_prompt(generate_args *args, uint32_t vocab, shc_env *env)
{
    Shard__V1__GenerateRequest *request = &args->request;

    if (args->prompt && args->tokens)
        return shc_usage("--prompt and --prompt-tokens exclude each other; give one");
    if (args->prompt && vocab != BYTE_VOCAB)
        return shc_usage("--prompt: the model has a vocabulary of %u, and only models of bytes "
                         "(256) take text; give --prompt-tokens 1,2,3",
                         vocab);
    if (args->tokens) {
        request->n_prompt = args->n_tokens;
        request->prompt = shc_keep_ptr(&env->keep, shc_calloc(args->n_tokens, sizeof(int32_t)));
        for (size_t i = 0; i < args->n_tokens; i++) {
            if (args->tokens[i] >= vocab)
                return shc_usage("--prompt-tokens: %u is not in the model's vocabulary; give ids "
                                 "below %u",
                                 args->tokens[i], vocab);
            request->prompt[i] = (int32_t)args->tokens[i];
        }
        return 0;
    }
    if (!args->prompt || !*args->prompt)
        return shc_usage(vocab == BYTE_VOCAB
                             ? "--prompt is missing or empty; give --prompt TEXT"
                             : "--prompt-tokens is missing; give --prompt-tokens 1,2,3");
    request->n_prompt = strlen(args->prompt);
    request->prompt = shc_keep_ptr(&env->keep, shc_calloc(request->n_prompt, sizeof(int32_t)));
    for (size_t i = 0; i < request->n_prompt; i++)
        request->prompt[i] = (unsigned char)args->prompt[i];
    return 0;
}

/* ---- output ---- */

typedef struct printer {
    const shc_env *env;
    int bytes; /* tokens are bytes */
    int any;
    shc_buf held; /* bytes of a character that is not complete; a terminal gets whole ones */
    shc_json json;
} printer;

static void put_bytes(printer *p, int end)
{
    shc_buf whole = {0};
    size_t done = 0;

    if (!p->env->term.tty) {
        shc_buf_flush(&p->held, stdout);
        return;
    }
    while (done < p->held.len) {
        const unsigned char *at = (const unsigned char *)p->held.data + done;
        const int n = shc_utf8_next(at, p->held.len - done);
        if (n == 0 && !end)
            break;
        /* What would drive the terminal, or is no character, shows as U+FFFD. */
        const int control = n == 1 && (*at < 0x20 || *at == 0x7F) && *at != '\n' && *at != '\t';
        if (n <= 0 || control || (n == 2 && at[0] == 0xC2 && at[1] < 0xA0))
            shc_buf_puts(&whole, p->env->term.utf8 ? "\xEF\xBF\xBD" : "?");
        else
            shc_buf_add(&whole, (const char *)at, (size_t)n);
        done += n > 0 ? (size_t)n : 1;
    }
    if (done) {
        memmove(p->held.data, p->held.data + done, p->held.len - done);
        p->held.len -= done;
    }
    shc_buf_flush(&whole, stdout);
    shc_buf_fini(&whole);
}

static void put_token(printer *p, const Shard__V1__GenerateResponse *r)
{
    if (p->env->json) {
        shc_json_open(&p->json, NULL, '{');
        shc_json_i64(&p->json, "token", r->token);
        shc_json_num(&p->json, "logprob", (double)r->logprob);
        shc_json_u64(&p->json, "step", r->step);
        shc_json_close(&p->json, '}');
        shc_json_line(&p->json, stdout);
    } else if (p->bytes) {
        const char byte = (char)r->token;
        shc_buf_add(&p->held, &byte, 1);
        put_bytes(p, 0);
    } else {
        printf(p->any ? ",%" PRId32 : "%" PRId32, r->token);
        fflush(stdout);
    }
    p->any = 1;
}

static int run(shc_env *env, void *arguments)
{
    generate_args *args = arguments;
    Shard__V1__Job *job;
    ProtobufCMessage *message;
    shc_stream *stream;
    shc_error err;
    int got, rc = shc_find_job(env, args->job, &job);

    if (rc)
        return rc;
    printer p = {.env = env, .bytes = job->vocab == BYTE_VOCAB};
    rc = set_prompt(args, job->vocab, env);
    shard__v1__job__free_unpacked(job, NULL);
    if (rc)
        return rc;
    args->request.job = args->job;
    if (shc_generate(env->client, &args->request, &stream, &err))
        return shc_complain(&err);
    while ((got = shc_stream_next(stream, -1, &message, &err)) == SHC_MESSAGE) {
        /* The prompt, dim, so that a reader sees what the text goes on from. */
        if (!p.any && env->term.tty && !env->json && args->prompt) {
            fputs(shc_dim(&env->term), stdout);
            shc_buf_puts(&p.held, args->prompt);
            put_bytes(&p, 1);
            fputs(shc_plain(&env->term), stdout);
        }
        put_token(&p, (const Shard__V1__GenerateResponse *)message);
        shc_message_free(message);
    }
    put_bytes(&p, 1);
    /* Bytes in a pipe stay exactly those of the model. */
    if (p.any && !env->json && (env->term.tty || !p.bytes))
        putchar('\n');
    shc_stream_close(stream);
    shc_buf_fini(&p.held);
    shc_json_fini(&p.json);
    if (got == SHC_END || *env->interrupt)
        return SHC_EXIT_DONE;
    return shc_complain(&err);
}

const shc_command shc_cmd_generate = {
    .syntax =
        {
            .name = "generate",
            .about = "Writes text, or token ids, from the weights as they are; training goes on.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(generate_args)},
        },
    .summary = "write text from the weights as they are",
    .args_size = sizeof(generate_args),
    .init = init,
    .run = run,
};

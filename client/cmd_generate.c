/* shardctl generate: text from the weights as they are. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/job_arg.h"
#include "client/mem.h"
#include "client/stops.h"
#include "client/textout.h"
#include "client/tokens.h"
#include "client/units.h"

typedef struct generate_args {
    Shard__V1__GenerateRequest request;
    char *job;
    char *prompt;
    uint32_t *tokens;
    size_t n_tokens;
    char **stops;
    size_t n_stops;
} generate_args;

#define NUM(flag, word, field, HAS, kind, low, high, text)                                         \
    {                                                                                              \
        .name = flag, .value = word, .type = kind, .at = offsetof(generate_args, request.field),   \
        .has = offsetof(generate_args, request.has_##field##_case),                                \
        .mark = SHARD__V1__GENERATE_REQUEST__HAS_##HAS##_##HAS, .min = low, .max = high,           \
        .help = text                                                                               \
    }
#define IDS(flag, text)                                                                            \
    {                                                                                              \
        .name = flag, .value = "IDS", .type = SHC_U32_LIST, .at = offsetof(generate_args, tokens), \
        .has = offsetof(generate_args, n_tokens), .help = text                                     \
    }

static const shc_option options[] = {
    {.name = "prompt",
     .value = "TEXT",
     .type = SHC_RAW_TEXT,
     .at = offsetof(generate_args, prompt),
     .help = "text to go on from"},
    IDS("tokens", "token ids to go on from, such as 1,2,3, instead of a text"),
    IDS("prompt-tokens", "the same as --tokens"),
    NUM("max-tokens", "N", max_tokens, MAX_TOKENS, SHC_U32, 1, 0, "tokens to make; default 128"),
    NUM("temperature", "T", temperature, TEMPERATURE, SHC_NUM, 0, 0,
        "default 1; 0: always the likeliest token"),
    NUM("top-k", "K", top_k, TOP_K, SHC_U32, 0, 0, "only among the K likeliest; 0: all"),
    NUM("top-p", "P", top_p, TOP_P, SHC_NUM, 0, 1,
        "only among the likeliest that together have this probability; default 1"),
    NUM("repetition-penalty", "X", repetition_penalty, REPETITION_PENALTY, SHC_NUM, 0, 0,
        "above 1 makes tokens of the prompt and the text so far less likely; default 1"),
    {.name = "stop",
     .value = "ID|TEXT",
     .type = SHC_TEXTS,
     .at = offsetof(generate_args, stops),
     .has = offsetof(generate_args, n_stops),
     .help = "token id, or text that ends the output before it; may be given again"},
    {.name = "ignore-eos",
     .type = SHC_BOOL,
     .at = offsetof(generate_args, request.ignore_eos),
     .help = "go on after the tokenizer's end of text"},
    NUM("seed", "S", seed, SEED, SHC_U64, 0, 0, "default 1"),
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

static void init(void *args)
{
    shard__v1__generate_request__init(&((generate_args *)args)->request);
}

/* ---- the request ---- */

enum mode { MODE_IDS, MODE_BYTES, MODE_TEXT }; /* what the job's tokens are to this command */

/* Token ids or text of the prompt into the request. 0, or the exit status after having complained.
 */
static int set_prompt(generate_args *args, enum mode mode, uint32_t vocab, shc_env *env)
{
    Shard__V1__GenerateRequest *request = &args->request;

    if (args->prompt && args->tokens)
        return shc_usage("--prompt and --tokens (or --prompt-tokens) exclude each other; give one");
    if (args->prompt && mode == MODE_IDS)
        return shc_usage("--prompt: the job has no tokenizer, and its vocabulary of %u is not that "
                         "of bytes; give --tokens 1,2,3, or submit it with --tokenizer",
                         vocab);
    if (args->tokens) {
        request->n_prompt = args->n_tokens;
        request->prompt = shc_keep_ptr(&env->keep, shc_calloc(args->n_tokens, sizeof(int32_t)));
        for (size_t i = 0; i < args->n_tokens; i++) {
            if (args->tokens[i] >= vocab)
                return shc_usage("--tokens: %u is not in the model's vocabulary; give ids below %u",
                                 args->tokens[i], vocab);
            request->prompt[i] = (int32_t)args->tokens[i];
        }
        return 0;
    }
    if (!args->prompt || !*args->prompt)
        return shc_usage(mode == MODE_IDS ? "--tokens is missing; give --tokens 1,2,3"
                                          : "--prompt is missing or empty; give --prompt TEXT");
    const size_t n = strlen(args->prompt);
    if (mode == MODE_TEXT) {
        request->prompt_text =
            (ProtobufCBinaryData){.len = n, .data = (unsigned char *)args->prompt};
        return 0;
    }
    request->n_prompt = n;
    request->prompt = shc_keep_ptr(&env->keep, shc_calloc(n, sizeof(int32_t)));
    for (size_t i = 0; i < n; i++)
        request->prompt[i] = (unsigned char)args->prompt[i];
    return 0;
}

/* A text that is one token ends the text as a token too, for a special token shows no text. What
 * the tokenizer puts around every text is not it. */
static int stop_token_of(shc_env *env, char *job, char *text, Shard__V1__GenerateRequest *request)
{
    enum { MOST = 4 };
    Shard__V1__TokenizeRequest ask = SHARD__V1__TOKENIZE_REQUEST__INIT;
    shc_tokens tokens, back;

    ask.job = job;
    ask.text = (ProtobufCBinaryData){.len = strlen(text), .data = (unsigned char *)text};
    int rc = shc_tokenize_all(env, &ask, &tokens);
    ask.text = (ProtobufCBinaryData){0};
    ask.n_tokens = 1;
    for (size_t i = 0; !rc && i < tokens.n && tokens.n <= MOST; i++) {
        ask.tokens = &tokens.ids[i];
        rc = shc_tokenize_all(env, &ask, &back);
        if (!rc && back.text.len == strlen(text) && !strcmp(shc_buf_str(&back.text), text)) {
            request->stop[request->n_stop++] = tokens.ids[i];
            i = MOST;
        }
        shc_tokens_fini(&back);
    }
    shc_tokens_fini(&tokens);
    return rc;
}

/* Sorts --stop into token ids of the request and texts, which are left at the beginning of
 * args->stops. 0, or the exit status after having complained. */
static int set_stops(generate_args *args, enum mode mode, uint32_t vocab, shc_env *env)
{
    Shard__V1__GenerateRequest *request = &args->request;
    size_t texts = 0;

    request->stop = shc_keep_ptr(&env->keep, shc_calloc(args->n_stops + 1, sizeof(int32_t)));
    for (size_t i = 0; i < args->n_stops; i++) {
        char *text = args->stops[i];
        if (text[strspn(text, "0123456789")] == '\0') {
            const uint64_t id = strlen(text) > 10 ? UINT64_MAX : strtoull(text, NULL, 10);
            if (id >= vocab)
                return shc_usage("--stop: %s is not in the model's vocabulary; give an id below %u",
                                 text, vocab);
            request->stop[request->n_stop++] = (int32_t)id;
            continue;
        }
        if (mode == MODE_IDS)
            return shc_usage("--stop: \"%s\" is a text, and the job has no tokenizer; give token "
                             "ids",
                             text);
        args->stops[texts++] = text;
        const int rc = mode == MODE_TEXT ? stop_token_of(env, args->job, text, request) : 0;
        if (rc)
            return rc;
    }
    args->n_stops = texts;
    return 0;
}

/* ---- output ---- */

typedef struct printer {
    const shc_env *env;
    enum mode mode;
    int any;
    shc_stops stops;
    shc_buf held; /* bytes of a character that is not complete; a terminal gets whole ones */
    shc_json json;
} printer;

static void put_json(printer *p, const Shard__V1__GenerateResponse *r)
{
    shc_json_open(&p->json, NULL, '{');
    shc_json_i64(&p->json, "token", r->token);
    shc_json_num(&p->json, "logprob", (double)r->logprob);
    shc_json_u64(&p->json, "step", r->step);
    if (r->prompt_left_out)
        shc_json_u64(&p->json, "prompt_left_out", r->prompt_left_out);
    if (p->mode == MODE_TEXT)
        shc_json_strn(&p->json, "text", (const char *)r->text.data, r->text.len);
    if (*r->finish)
        shc_json_str(&p->json, "finish", r->finish);
    shc_json_close(&p->json, '}');
    shc_json_line(&p->json, stdout);
}

/* Not in the output, which is the model's alone. */
static void say_left_out(uint64_t n)
{
    fprintf(stderr,
            "shardctl: note: the model does not see the first %" PRIu64 " token%s of the prompt; "
            "it sees as many as the job's --seq-len\n",
            n, n == 1 ? "" : "s");
}

/* 1: a stop text has come. */
static int put_token(printer *p, const Shard__V1__GenerateResponse *r)
{
    const char byte = (char)r->token;
    const int of_stop = p->mode == MODE_BYTES && !strcmp(r->finish, "stop");
    shc_buf clear = {0};
    int stopped = 0;

    if (p->mode == MODE_TEXT && r->text.len)
        stopped = shc_stops_put(&p->stops, (const char *)r->text.data, r->text.len, &clear);
    else if (p->mode == MODE_BYTES && !of_stop)
        stopped = shc_stops_put(&p->stops, &byte, 1, &clear);
    if (p->env->json) {
        put_json(p, r);
    } else if (p->mode == MODE_IDS) {
        printf(p->any ? ",%" PRId32 : "%" PRId32, r->token);
        fflush(stdout);
    } else {
        shc_buf_add(&p->held, shc_buf_str(&clear), clear.len);
        shc_textout(&p->held, &p->env->term, 0);
    }
    p->any = 1;
    shc_buf_fini(&clear);
    return stopped;
}

static int stream_text(shc_env *env, generate_args *args, enum mode mode)
{
    printer p = {.env = env, .mode = mode, .stops = {.texts = args->stops, .n = args->n_stops}};
    ProtobufCMessage *message;
    shc_stream *stream;
    shc_error err;
    int got, stopped = 0;

    if (shc_generate(env->client, &args->request, &stream, &err))
        return shc_complain(&err);
    while (!stopped && (got = shc_stream_next(stream, -1, &message, &err)) == SHC_MESSAGE) {
        /* The prompt, dim, so that a reader sees what the text goes on from. */
        if (!p.any && env->term.tty && !env->json && args->prompt) {
            fputs(shc_dim(&env->term), stdout);
            shc_buf_puts(&p.held, args->prompt);
            shc_textout(&p.held, &env->term, 1);
            fputs(shc_plain(&env->term), stdout);
        }
        const Shard__V1__GenerateResponse *r = (const Shard__V1__GenerateResponse *)message;
        if (r->prompt_left_out)
            say_left_out(r->prompt_left_out);
        stopped = put_token(&p, r);
        shc_message_free(message);
    }
    if (!stopped)
        shc_stops_end(&p.stops, &p.held);
    if (env->json)
        shc_buf_clear(&p.held);
    shc_textout(&p.held, &env->term, 1);
    /* Text in a pipe stays exactly that of the model. */
    if (p.any && !env->json && (env->term.tty || mode == MODE_IDS))
        putchar('\n');
    shc_stream_close(stream);
    shc_stops_fini(&p.stops);
    shc_buf_fini(&p.held);
    shc_json_fini(&p.json);
    if (stopped || got == SHC_END || *env->interrupt)
        return SHC_EXIT_DONE;
    return shc_complain(&err);
}

static int run(shc_env *env, void *arguments)
{
    generate_args *args = arguments;
    Shard__V1__Job *job;
    int rc = shc_find_job(env, args->job, &job);

    if (rc)
        return rc;
    const uint32_t vocab = job->vocab;
    const enum mode mode = shc_job_of_bytes(job)  ? MODE_BYTES
                           : shc_job_of_text(job) ? MODE_TEXT
                                                  : MODE_IDS;
    shard__v1__job__free_unpacked(job, NULL);
    args->request.job = args->job;
    if ((rc = set_prompt(args, mode, vocab, env)) || (rc = set_stops(args, mode, vocab, env)))
        return rc;
    return stream_text(env, args, mode);
}

const shc_command shc_cmd_generate = {
    .syntax =
        {
            .name = "generate",
            .about =
                "Writes text, or token ids, from the weights as they are; training goes on. The "
                "model sees the last --seq-len tokens (of the job) of prompt and text.",
            .tables = {&table},
            .operands = {SHC_JOB_OPERAND(generate_args)},
        },
    .summary = "write text from the weights as they are",
    .args_size = sizeof(generate_args),
    .init = init,
    .run = run,
};

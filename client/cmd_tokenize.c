/* shardctl tokenize: text to token ids and back, and files into the daemon's cache. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/job_arg.h"
#include "client/mem.h"
#include "client/textout.h"
#include "client/tokens.h"
#include "client/units.h"

typedef struct tokenize_args {
    char *job;
    char *tokenizer;
    char *text;
    uint32_t *tokens;
    size_t n_tokens;
    int decode;
    char *data;
    char *data_format;
} tokenize_args;

static const shc_option options[] = {
    {.name = "tokenizer",
     .value = "SOURCE",
     .type = SHC_PRESET,
     .at = offsetof(tokenize_args, tokenizer),
     .help = "bytes, or a tokenizer.json, a tokenizer.model or a directory with one; instead of "
             "JOB"},
    {.name = "text",
     .value = "TEXT",
     .type = SHC_RAW_TEXT,
     .at = offsetof(tokenize_args, text),
     .help = "to make ids of; default: standard input"},
    {.name = "tokens",
     .value = "IDS",
     .type = SHC_U32_LIST,
     .at = offsetof(tokenize_args, tokens),
     .has = offsetof(tokenize_args, n_tokens),
     .help = "to make text of, such as 1,2,3"},
    {.name = "decode",
     .type = SHC_BOOL,
     .at = offsetof(tokenize_args, decode),
     .help = "make text of the ids on standard input, with blanks or commas between"},
    {.name = "data",
     .value = "FILE",
     .type = SHC_FILE,
     .at = offsetof(tokenize_args, data),
     .help = "have the daemon put the file's tokens into its cache, where jobs find them"},
    {.name = "data-format",
     .value = "FORMAT",
     .type = SHC_TEXT,
     .at = offsetof(tokenize_args, data_format),
     .help = "of --data: auto (default), text, jsonl"},
};
static const shc_option_table table = {options, sizeof options / sizeof *options, 0};

static void read_input(shc_buf *out)
{
    char chunk[4096];
    size_t n;

    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0)
        shc_buf_add(out, chunk, n);
}

static int add_id(Shard__V1__TokenizeRequest *request, shc_keep *keep, size_t *cap, uint64_t id)
{
    if (id > INT32_MAX)
        return shc_usage("%" PRIu64 " is no token id; ids are at most %d", id, INT32_MAX);
    if (request->n_tokens == *cap) {
        *cap = *cap ? 2 * *cap : 256;
        int32_t *longer = shc_keep_ptr(keep, shc_calloc(*cap, sizeof *longer));
        if (request->n_tokens)
            memcpy(longer, request->tokens, request->n_tokens * sizeof *longer);
        request->tokens = longer;
    }
    request->tokens[request->n_tokens++] = (int32_t)id;
    return 0;
}

/* 0, or the exit status after having complained. */
static int parse_ids(const char *text, Shard__V1__TokenizeRequest *request, shc_keep *keep)
{
    static const char blanks[] = " \t\r\n,[]";
    size_t cap = 0;

    for (const char *p = text + strspn(text, blanks); *p; p += strspn(p, blanks)) {
        char *end;
        errno = 0;
        const uint64_t id = strtoull(p, &end, 10);
        if (*p < '0' || *p > '9' || errno || (*end && !strchr(blanks, *end)))
            return shc_usage("standard input: \"%.*s\" is not a token id; give whole numbers",
                             (int)strcspn(p, blanks), p);
        const int rc = add_id(request, keep, &cap, id);
        if (rc)
            return rc;
        p = end;
    }
    if (!request->n_tokens)
        return shc_usage("standard input holds no token ids; give at least one");
    return 0;
}

/* 0, or the exit status after having complained. `input` keeps what the request borrows. */
static int fill(const tokenize_args *args, shc_env *env, Shard__V1__TokenizeRequest *request,
                shc_buf *input)
{
    const int given = !!args->text + !!args->tokens + args->decode + !!args->data;
    size_t cap = 0;

    if (!args->job == !args->tokenizer)
        return shc_usage("give either JOB or --tokenizer SOURCE; see shardctl tokenize --help");
    if (given > 1)
        return shc_usage("--text, --tokens, --decode and --data exclude each other; give one");
    if (args->data_format && !args->data)
        return shc_usage("--data-format says how to read --data; give --data FILE too");
    if (args->job)
        request->job = args->job;
    else
        request->tokenizer = args->tokenizer;
    if (args->data) {
        request->data = args->data;
        if (args->data_format)
            request->data_format = args->data_format;
        return 0;
    }
    for (size_t i = 0; i < args->n_tokens; i++) {
        const int rc = add_id(request, &env->keep, &cap, args->tokens[i]);
        if (rc)
            return rc;
    }
    if (args->tokens)
        return 0;
    if (args->text)
        shc_buf_puts(input, args->text);
    else
        read_input(input);
    if (ferror(stdin))
        return shc_usage("standard input: %s; give readable input", strerror(errno));
    if (args->decode)
        return parse_ids(shc_buf_str(input), request, &env->keep);
    if (!input->len)
        return shc_usage("the text is empty; give --text TEXT or text on standard input");
    request->text = (ProtobufCBinaryData){.len = input->len, .data = (uint8_t *)input->data};
    return 0;
}

static void show_json(const Shard__V1__TokenizeRequest *request, const shc_tokens *t)
{
    shc_json json = {0};

    shc_json_open(&json, NULL, '{');
    if (*request->data) {
        shc_json_str(&json, "path", t->path ? t->path : "");
        shc_json_u64(&json, "count", t->count);
        shc_json_u64(&json, "documents", t->documents);
        shc_json_str(&json, "digest", t->digest ? t->digest : "");
    } else if (request->n_tokens) {
        shc_json_strn(&json, "text", shc_buf_str(&t->text), t->text.len);
    } else {
        shc_json_open(&json, "tokens", '[');
        for (size_t i = 0; i < t->n; i++)
            shc_json_i64(&json, NULL, t->ids[i]);
        shc_json_close(&json, ']');
        shc_json_u64(&json, "count", t->n);
    }
    shc_json_u64(&json, "vocab", t->vocab);
    shc_json_close(&json, '}');
    shc_json_line(&json, stdout);
    shc_json_fini(&json);
}

static void show(const shc_env *env, const Shard__V1__TokenizeRequest *request, shc_tokens *t)
{
    shc_buf line = {0};

    if (*request->data) {
        shc_text_clean(&line, t->path ? t->path : "");
        shc_buf_printf(&line, ": %" PRIu64 " tokens in %" PRIu64 " document%s, vocabulary %u\n",
                       t->count, t->documents, t->documents == 1 ? "" : "s", t->vocab);
        shc_buf_flush(&line, stdout);
    } else if (request->n_tokens) {
        shc_textout(&t->text, &env->term, 1);
        if (env->term.tty)
            putchar('\n');
    } else {
        for (size_t i = 0; i < t->n; i++)
            shc_buf_printf(&line, "%s%" PRId32, i ? " " : "", t->ids[i]);
        shc_buf_puts(&line, "\n");
        shc_buf_flush(&line, stdout);
    }
    shc_buf_fini(&line);
}

static int run(shc_env *env, void *arguments)
{
    const tokenize_args *args = arguments;
    Shard__V1__TokenizeRequest request = SHARD__V1__TOKENIZE_REQUEST__INIT;
    shc_tokens tokens;
    shc_buf input = {0};
    int rc = fill(args, env, &request, &input);

    if (!rc)
        rc = shc_env_connect(env);
    if (!rc)
        rc = shc_tokenize_all(env, &request, &tokens);
    if (!rc) {
        if (env->json)
            show_json(&request, &tokens);
        else
            show(env, &request, &tokens);
        shc_tokens_fini(&tokens);
    }
    shc_buf_fini(&input);
    return rc;
}

const shc_command shc_cmd_tokenize = {
    .syntax =
        {
            .name = "tokenize",
            .about = "Makes token ids of text, or text of ids, with the tokenizer of a job or of a "
                     "file; or tokenizes a data file into the daemon's cache.",
            .tables = {&table},
            .operands = {{"JOB", offsetof(tokenize_args, job), 0}},
        },
    .summary = "make token ids of text, or text of ids",
    .args_size = sizeof(tokenize_args),
    .run = run,
};

#include "client/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "client/mem.h"
#include "client/meter.h"

enum { BYTE_VOCAB = 256 };

void shc_tokens_fini(shc_tokens *tokens)
{
    free(tokens->ids);
    free(tokens->path);
    free(tokens->digest);
    shc_buf_fini(&tokens->text);
    *tokens = (shc_tokens){0};
}

static void keep(char **to, const char *text)
{
    if (*text) {
        free(*to);
        *to = shc_strdup(text);
    }
}

static void take(shc_tokens *out, size_t *cap, const Shard__V1__TokenizeResponse *r)
{
    if (out->n + r->n_tokens > *cap) {
        *cap = 2 * (out->n + r->n_tokens);
        out->ids = shc_reallocarray(out->ids, *cap, sizeof *out->ids);
    }
    if (r->n_tokens)
        memcpy(out->ids + out->n, r->tokens, r->n_tokens * sizeof *out->ids);
    out->n += r->n_tokens;
    if (r->text.len)
        shc_buf_add(&out->text, (const char *)r->text.data, r->text.len);
    keep(&out->path, r->path);
    keep(&out->digest, r->digest);
    out->count = r->count ? r->count : out->count;
    out->documents = r->documents ? r->documents : out->documents;
    out->vocab = r->vocab ? r->vocab : out->vocab;
}

int shc_tokenize_all(shc_env *env, const Shard__V1__TokenizeRequest *request, shc_tokens *out)
{
    shc_meter meter = {.env = env};
    ProtobufCMessage *message;
    shc_stream *stream;
    shc_error err;
    size_t cap = 0;
    int got;

    *out = (shc_tokens){0};
    if (shc_tokenize(env->client, request, &stream, &err))
        return shc_complain(&err);
    while ((got = shc_stream_next(stream, -1, &message, &err)) == SHC_MESSAGE) {
        const Shard__V1__TokenizeResponse *r = (const Shard__V1__TokenizeResponse *)message;
        if (r->progress)
            shc_meter_show(&meter, r->progress);
        take(out, &cap, r);
        shc_message_free(message);
    }
    shc_meter_clear(&meter);
    shc_stream_close(stream);
    if (got == SHC_END)
        return 0;
    shc_tokens_fini(out);
    return shc_complain(&err);
}

int shc_job_of_bytes(const Shard__V1__Job *job)
{
    const char *tokenizer = job->spec ? job->spec->tokenizer : "";
    return *tokenizer ? !strcmp(tokenizer, "bytes") : job->vocab == BYTE_VOCAB;
}

int shc_job_of_text(const Shard__V1__Job *job)
{
    return job->spec && *job->spec->tokenizer;
}

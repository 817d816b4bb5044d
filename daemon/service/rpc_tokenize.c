#include "daemon/service/rpc_tokenize.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/mem.h"
#include "daemon/service/job.h"
#include "daemon/service/jobs.h"
#include "daemon/service/prepare.h"
#include "daemon/service/tokenizer_files.h"
#include "daemon/service/workers.h"
#include "proto/shard.pb-c.h"

enum {
    MAX_OF_USER = 4, /* calls of one user, files in work included */
    LIMIT_S = 5,     /* for a text; long ones have longer */
    IDS_A_MESSAGE = 1 << 16,
    TEXT_A_MESSAGE = 1 << 20,
    PROGRESS_MS = 200
};

typedef struct tokenizing {
    struct tokenizing *next;
    shd_tokenize *service;
    shd_task task;
    int on_thread;    /* a thread has it */
    uv_timer_t timer; /* only while a file is in work */
    int timer_open;
    shd_jobs *jobs;
    shd_call *call; /* NULL once the client is gone */
    shd_identity who;
    char **roots; /* copies for the thread */
    uint32_t n_roots;
    char *name; /* of the tokenizer; unused when tok is there already */
    shd_tokenizer *tok;

    /* one of the three */
    char *text;
    size_t text_size;
    int32_t *tokens;
    size_t n_tokens;
    char *data;
    shd_data_format format;
    int fd; /* of data */
    shd_preparation *preparation;

    shd_ids ids; /* results of the thread */
    char *out;
    size_t out_size;
    size_t sent; /* ids or bytes */
    int sending;
    int rc;
    shd_error err;
} tokenizing;

struct shd_tokenize {
    shd_jobs *jobs;
    tokenizing *calls;
};

static tokenizing *of_task(shd_task *task)
{
    return (tokenizing *)((char *)task - offsetof(tokenizing, task));
}

static void free_now(tokenizing *t)
{
    shd_auth_roots_free(t->roots, t->n_roots);
    free(t->name);
    shd_tokenizer_free(t->tok);
    free(t->text);
    free(t->tokens);
    free(t->data);
    if (t->fd >= 0) {
        close(t->fd);
    }
    shd_ids_fini(&t->ids);
    free(t->out);
    free(t);
}

static void on_timer_closed(uv_handle_t *handle)
{
    free_now(handle->data);
}

static void tokenizing_free(tokenizing *t)
{
    tokenizing **at = &t->service->calls;
    while (*at != t) {
        at = &(*at)->next;
    }
    *at = t->next;
    shd_prepare_cancel(t->preparation);
    t->preparation = NULL;
    if (t->timer_open) {
        uv_close((uv_handle_t *)&t->timer, on_timer_closed);
    } else {
        free_now(t);
    }
}

static void give_up(tokenizing *t, const shd_error *why)
{
    if (t->call != NULL) {
        shd_call_fail(t->call, why);
    }
    tokenizing_free(t);
}

/* ---- on a thread ---- */

static int work(tokenizing *t, shd_error *err)
{
    if (t->tok == NULL) {
        const shd_opener opener = {&t->who, t->roots, t->n_roots};
        SHD_TRY(shd_tokenizer_open(&opener, t->name, &t->tok, err));
    }
    if (t->data != NULL) {
        SHD_TRY(shd_auth_open(&t->who, t->roots, t->n_roots, t->data, &t->fd, err));
        if (t->format == SHD_DATA_AUTO) {
            SHD_TRY(shd_data_format_of(t->fd, t->data, &t->format, err));
        }
        return t->format == SHD_DATA_TEXT || t->format == SHD_DATA_JSONL
                   ? SHD_OK
                   : shd_fail(err, SHD_EINVAL, "'%s' is a token file (%s) already", t->data,
                              shd_data_format_name(t->format));
    }
    if (t->text == NULL) {
        return shd_tokenizer_decode(t->tok, t->tokens, t->n_tokens, 0, &t->out, &t->out_size, err);
    }
    shd_encoder *encoder = shd_encoder_create(t->tok);
    shd_encoder_limit(encoder, &t->task.cancel, LIMIT_S);
    const int rc =
        shd_encoder_run(encoder, t->text, t->text_size, SHD_ENCODE_SPECIAL, &t->ids, err);
    shd_encoder_free(encoder);
    return rc;
}

static void on_work(shd_task *task)
{
    tokenizing *t = of_task(task);
    t->rc = work(t, &t->err);
}

/* ---- answers ---- */

/* Sends what there is in parts that fit a message, as the client reads them. */
static void send_more(tokenizing *t)
{
    const size_t all = t->text != NULL ? t->ids.n : t->out_size;
    const size_t most = t->text != NULL ? IDS_A_MESSAGE : TEXT_A_MESSAGE;
    do {
        const size_t n = all - t->sent < most ? all - t->sent : most;
        Shard__V1__TokenizeResponse m = SHARD__V1__TOKENIZE_RESPONSE__INIT;
        if (t->text != NULL) {
            m.tokens = t->ids.items != NULL ? t->ids.items + t->sent : NULL;
            m.n_tokens = n;
        } else {
            m.text = (ProtobufCBinaryData){.len = n, .data = (uint8_t *)t->out + t->sent};
        }
        m.count = t->text != NULL ? t->ids.n : t->n_tokens;
        m.vocab = shd_tokenizer_vocab(t->tok);
        shd_call_send(t->call, &m.base);
        t->sent += n;
    } while (t->sent < all && shd_call_writable(t->call));
    if (t->sent == all) {
        shd_call_end(t->call);
        tokenizing_free(t);
    }
}

static void send_progress(uv_timer_t *timer)
{
    tokenizing *t = timer->data;
    Shard__V1__TokenizeResponse m = SHARD__V1__TOKENIZE_RESPONSE__INIT;
    Shard__V1__Progress progress = SHARD__V1__PROGRESS__INIT;
    if (t->preparation == NULL || !shd_call_writable(t->call)) {
        return; /* the next one will do */
    }
    progress.what = (char *)"tokenizing";
    shd_prepare_progress(t->preparation, &progress.done, &progress.total);
    m.progress = &progress;
    shd_call_send(t->call, &m.base);
}

static void on_prepared(void *arg, shd_source *source, const shd_error *failed)
{
    tokenizing *t = arg;
    t->preparation = NULL;
    if (failed != NULL) {
        give_up(t, failed);
        return;
    }
    const shd_jobs_options *options = shd_jobs_get_options(t->jobs);
    Shard__V1__TokenizeResponse m = SHARD__V1__TOKENIZE_RESPONSE__INIT;
    char *path = shd_asprintf("%s/%s.tokens", options->token_cache_path, shd_source_key(source));
    m.path = path;
    m.count = shd_source_tokens(source);
    m.documents = shd_source_documents(source);
    m.digest = (char *)shd_source_key(source);
    m.vocab = shd_tokenizer_vocab(t->tok);
    shd_call_send(t->call, &m.base);
    shd_call_end(t->call);
    free(path);
    shd_source_free(source);
    tokenizing_free(t);
}

static void after_work(shd_task *task)
{
    tokenizing *t = of_task(task);
    shd_jobs *jobs = t->jobs;
    const shd_jobs_options *options = shd_jobs_get_options(jobs);
    t->on_thread = 0;
    if (t->rc < 0 && shd_jobs_stopping(jobs)) {
        shd_fail(&t->err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    if (t->rc < 0 || t->call == NULL) {
        give_up(t, &t->err);
    } else if (t->data == NULL) {
        t->sending = 1;
        send_more(t);
    } else if (options->preparer == NULL || shd_jobs_stopping(jobs)) {
        shd_error why;
        shd_fail(&why, SHD_EUNAVAILABLE, "the daemon is stopping, or has no token cache");
        give_up(t, &why);
    } else {
        t->preparation = shd_prepare(options->preparer, t->who.uid, t->fd, t->data, t->format,
                                     t->tok, on_prepared, t);
        uv_timer_init(options->loop, &t->timer);
        t->timer.data = t;
        t->timer_open = 1;
        uv_timer_start(&t->timer, send_progress, PROGRESS_MS, PROGRESS_MS);
    }
    shd_jobs_unhold(jobs);
}

static void on_writable(void *arg)
{
    tokenizing *t = arg;
    if (t->sending) {
        send_more(t);
    }
}

static void on_gone(void *arg)
{
    tokenizing *t = arg;
    t->call = NULL;
    if (t->on_thread) {
        __atomic_store_n(&t->task.cancel, 1, __ATOMIC_RELAXED);
    } else {
        tokenizing_free(t);
    }
}

/* ---- the call ---- */

static int check(const shd_tokenize *service, const Shard__V1__TokenizeRequest *q,
                 const shd_identity *who, shd_error *err)
{
    if (shd_jobs_stopping(service->jobs)) {
        return shd_fail(err, SHD_EUNAVAILABLE, "the daemon is stopping");
    }
    const int given = (q->text.len > 0) + (q->n_tokens > 0) + (q->data[0] != '\0');
    if (given != 1) {
        return shd_fail(err, SHD_EINVAL, "give one of text, tokens and data; %d are given", given);
    }
    if ((q->job[0] != '\0') == (q->tokenizer[0] != '\0')) {
        return shd_fail(err, SHD_EINVAL, "give a job or a tokenizer, not %s",
                        q->job[0] != '\0' ? "both" : "neither");
    }
    if (q->data_format[0] != '\0' && q->data[0] == '\0') {
        return shd_fail(err, SHD_EINVAL,
                        "data_format '%.20s' is given without data: only a file has a format",
                        q->data_format);
    }
    uint32_t of_user = 0;
    for (const tokenizing *t = service->calls; t != NULL; t = t->next) {
        of_user += t->who.uid == who->uid;
    }
    if (of_user >= MAX_OF_USER) {
        return shd_fail(err, SHD_EFULL, "%u texts of yours are being tokenized already; try again",
                        of_user);
    }
    return SHD_OK;
}

/* The tokenizer of a job, which its user may use. */
static int find(shd_jobs *jobs, const shd_identity *who, const char *ref, shd_tokenizer **out,
                shd_error *err)
{
    shd_job *job;
    SHD_TRY(shd_jobs_find(jobs, who, ref, SHD_RIGHT_USE, &job, err));
    if (job->tokenizer == NULL) {
        return shd_fail(err, SHD_ESTATE, "job %s has no tokenizer; name one", job->id);
    }
    *out = shd_tokenizer_ref(job->tokenizer);
    return SHD_OK;
}

static int start(tokenizing *t, const Shard__V1__TokenizeRequest *q, shd_error *err)
{
    SHD_TRY(check(t->service, q, &t->who, err));
    SHD_TRY(shd_data_format_parse(q->data_format, &t->format, err));
    if (q->job[0] != '\0') {
        SHD_TRY(find(t->jobs, &t->who, q->job, &t->tok, err));
    }
    const shd_jobs_options *options = shd_jobs_get_options(t->jobs);
    t->n_roots = options->n_data_roots;
    t->roots = shd_auth_roots_copy(options->data_roots, t->n_roots);
    t->name = shd_strdup(q->tokenizer);
    if (q->data[0] != '\0') {
        t->data = shd_strdup(q->data);
    } else if (q->text.len > 0) {
        t->text = shd_malloc(q->text.len);
        t->text_size = q->text.len;
        memcpy(t->text, q->text.data, q->text.len);
    } else {
        t->tokens = shd_reallocarray(NULL, q->n_tokens, sizeof(*t->tokens));
        t->n_tokens = q->n_tokens;
        memcpy(t->tokens, q->tokens, q->n_tokens * sizeof(*t->tokens));
    }
    return SHD_OK;
}

static void tokenize(shd_call *call, const ProtobufCMessage *request, void *service)
{
    tokenizing *t = shd_calloc(1, sizeof(*t));
    t->service = service;
    t->jobs = t->service->jobs;
    t->call = call;
    t->who = *shd_call_identity(call);
    t->fd = -1;
    if (start(t, (const Shard__V1__TokenizeRequest *)request, &t->err) < 0) {
        shd_call_fail(call, &t->err);
        free_now(t);
        return;
    }
    t->next = t->service->calls;
    t->service->calls = t;
    t->task = (shd_task){.run = on_work, .done = after_work, .uid = t->who.uid};
    t->on_thread = 1;
    shd_jobs_hold(t->jobs);
    shd_call_callbacks(call, on_gone, on_writable, t);
    shd_workers_run(shd_jobs_workers(t->jobs, SHD_WORKERS_TEXT), &t->task);
}

shd_tokenize *shd_tokenize_create(shd_jobs *jobs)
{
    shd_tokenize *service = shd_calloc(1, sizeof(*service));
    service->jobs = jobs;
    return service;
}

void shd_tokenize_free(shd_tokenize *service)
{
    if (service != NULL) {
        while (service->calls != NULL) {
            tokenizing_free(service->calls);
        }
        free(service);
    }
}

const shd_rpc_method *shd_rpc_tokenize_methods(size_t *n)
{
    static const shd_rpc_method methods[] = {
        {"/shard.v1.Shard/Tokenize", &shard__v1__tokenize_request__descriptor, tokenize, 1},
    };
    *n = sizeof(methods) / sizeof(methods[0]);
    return methods;
}

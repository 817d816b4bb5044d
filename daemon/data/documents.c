/* Documents; see documents.h. Floor F3. */
#include "daemon/data/documents.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"

#define CHUNK (1u << 20)

/* A text in memory that is filled from behind and used up from the front. */
typedef struct window {
    shd_read_fn read;
    void *arg;
    char *bytes;
    size_t n, capacity;
    int ended;
} window;

typedef struct job {
    shd_tokenizer *tok;
    shd_encoder *encoder;
    shd_token_writer *writer;
    shd_ids ids;
    shd_error *err;
} job;

/* Reads on until the window holds `wanted` bytes, or the file ends. */
static int fill(window *w, size_t wanted, shd_error *err)
{
    if (w->capacity < wanted) {
        w->capacity = wanted;
        w->bytes = shd_reallocarray(w->bytes, w->capacity, 1);
    }
    while (w->n < wanted && !w->ended) {
        size_t got = 0;
        SHD_TRY(w->read(w->arg, w->bytes + w->n, wanted - w->n, &got, err));
        w->ended = got == 0;
        w->n += got;
    }
    return 0;
}

static void drop(window *w, size_t n)
{
    w->n -= n;
    memmove(w->bytes, w->bytes + n, w->n);
}

/* Writes the ids out and forgets them. */
static int put(job *j, int masked)
{
    const int rc = shd_token_writer_put(j->writer, j->ids.items, j->ids.n, masked, j->err);
    j->ids.n = 0;
    return rc;
}

static void begin_document(job *j)
{
    const int32_t *before, *after;
    size_t n_before, n_after;
    shd_tokenizer_template(j->tok, &before, &n_before, &after, &n_after);
    shd_ids_append(&j->ids, before, n_before);
}

/* What stands behind a text, and the end-of-text token unless that is it. */
static void end_document(job *j)
{
    const int32_t *before, *after;
    size_t n_before, n_after;
    const int32_t eos = shd_tokenizer_eos(j->tok);
    shd_tokenizer_template(j->tok, &before, &n_before, &after, &n_after);
    shd_ids_append(&j->ids, after, n_after);
    if (eos >= 0 && (n_after == 0 || after[n_after - 1] != eos)) {
        shd_ids_push(&j->ids, eos);
    }
}

/* ---- text ---- */

static int write_text(job *j, window *w)
{
    size_t wanted = CHUNK;
    SHD_TRY(shd_token_writer_document(j->writer, j->err));
    begin_document(j);
    for (;;) {
        size_t taken = 0;
        SHD_TRY(fill(w, wanted, j->err));
        SHD_TRY(shd_encoder_piece(j->encoder, w->bytes, w->n, w->ended, &j->ids, &taken, j->err));
        drop(w, taken);
        if (w->ended) {
            break;
        }
        SHD_TRY(put(j, 0));
        wanted = taken > 0 ? CHUNK : 2 * wanted;
        if (wanted > SHD_DOCUMENT_MAX) {
            return shd_fail(j->err, SHD_EDATA,
                            "the text cannot be cut within %u bytes; give it as documents (JSONL)",
                            SHD_DOCUMENT_MAX);
        }
    }
    end_document(j);
    return put(j, 0);
}

/* ---- JSONL ---- */

static int encode(job *j, json_t *string)
{
    return shd_encoder_run(j->encoder, json_string_value(string), json_string_length(string), 0,
                           &j->ids, j->err);
}

static int write_object(job *j, json_t *object)
{
    json_t *text = json_object_get(object, "text");
    json_t *prompt = json_object_get(object, "prompt");
    json_t *completion = json_object_get(object, "completion");
    const int plain = json_is_string(text) && prompt == NULL && completion == NULL;
    if (!plain && (text != NULL || !json_is_string(prompt) || !json_is_string(completion))) {
        return shd_fail(j->err, SHD_EDATA,
                        "not an object with \"text\", or with \"prompt\" and \"completion\", that "
                        "are strings");
    }
    if (json_string_length(plain ? text : completion) == 0) {
        return 0; /* nothing to learn */
    }
    SHD_TRY(shd_token_writer_document(j->writer, j->err));
    begin_document(j);
    if (!plain) {
        SHD_TRY(encode(j, prompt));
        SHD_TRY(put(j, 1));
    }
    SHD_TRY(encode(j, plain ? text : completion));
    end_document(j);
    return put(j, 0);
}

static int write_line(job *j, const char *line, size_t n)
{
    size_t blank = 0;
    while (blank < n && strchr(" \t\r", line[blank]) != NULL && line[blank] != '\0') {
        blank++;
    }
    if (blank == n) {
        return 0;
    }
    /* No number is read here: an identity of 64 bits may stand beside the text. */
    static const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL;
    json_error_t at;
    json_t *object = json_loadb(line, n, flags, &at);
    if (object == NULL) {
        return shd_fail(j->err, SHD_EDATA, "not JSON: %s, column %d", at.text, at.column);
    }
    const int rc = write_object(j, object);
    json_decref(object);
    return rc;
}

static int write_lines(job *j, window *w)
{
    unsigned long long number = 1;
    size_t wanted = CHUNK, seen = 0; /* bytes without the end of a line */
    SHD_TRY(fill(w, wanted, j->err));
    if (w->n >= 3 && memcmp(w->bytes, "\xef\xbb\xbf", 3) == 0) {
        drop(w, 3); /* a byte order mark, which some programs put before UTF-8 */
    }
    for (;;) {
        SHD_TRY(fill(w, wanted, j->err));
        size_t done = 0;
        for (const char *end;
             (end = memchr(w->bytes + done + seen, '\n', w->n - done - seen)) != NULL; number++) {
            const size_t n = (size_t)(end - (w->bytes + done));
            const int rc = write_line(j, w->bytes + done, n);
            if (rc < 0) {
                return shd_error_prefix(j->err, rc, "line %llu", number);
            }
            done += n + 1;
            seen = 0;
        }
        drop(w, done);
        seen = w->n;
        if (w->ended) {
            const int rc = write_line(j, w->bytes, w->n);
            return rc < 0 ? shd_error_prefix(j->err, rc, "line %llu", number) : 0;
        }
        wanted = done > 0 ? (w->n > CHUNK / 2 ? 2 * w->n : CHUNK) : 2 * wanted;
        if (wanted > 2 * (size_t)SHD_DOCUMENT_MAX) {
            return shd_fail(j->err, SHD_EDATA, "line %llu: longer than %u bytes", number,
                            SHD_DOCUMENT_MAX);
        }
    }
}

int shd_documents_write(shd_read_fn read, void *arg, shd_data_format format, shd_tokenizer *tok,
                        const int *cancel, shd_token_writer *writer, shd_error *err)
{
    window w = {.read = read, .arg = arg};
    job j = {.tok = tok, .encoder = shd_encoder_create(tok), .writer = writer, .err = err};
    shd_encoder_limit(j.encoder, cancel, 0);
    const int rc = format == SHD_DATA_JSONL ? write_lines(&j, &w) : write_text(&j, &w);
    shd_encoder_free(j.encoder);
    shd_ids_fini(&j.ids);
    free(w.bytes);
    return rc;
}

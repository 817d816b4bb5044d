/* Making tokenizers, and ids back to text; see tokenizer.h. Floor F3. */
#include "daemon/data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/data/digest.h"
#include "daemon/data/tokenizer_internal.h"
#include "daemon/data/utf8.h"

/* Changes when the same files come to mean other ids: cached token files depend on it. */
#define MEANING_VERSION 1u

/* ---- making ---- */

static shd_tokenizer *create(const char *name)
{
    shd_tokenizer *tok = shd_calloc(1, sizeof(*tok));
    atomic_init(&tok->owners, 1);
    tok->name = name;
    tok->bos = tok->eos = -1;
    return tok;
}

int shd_tokenizer_put_piece(shd_tokenizer *tok, int64_t id, const char *text, size_t n,
                            shd_piece_kind kind, shd_error *err)
{
    const int shown = n < 100 ? (int)n : 100;
    if (id < 0 || id >= SHD_MAX_VOCAB) {
        return shd_fail(err, SHD_EDATA, "token '%.*s' has id %lld; ids are 0..%u", shown, text,
                        (long long)id, SHD_MAX_VOCAB - 1);
    }
    if (id >= tok->vocab) {
        const uint32_t vocab = (uint32_t)id + 1;
        if ((uint32_t)id >= tok->pieces_capacity) {
            tok->pieces_capacity = 2 * vocab;
            tok->pieces = shd_reallocarray(tok->pieces, tok->pieces_capacity, sizeof(*tok->pieces));
        }
        memset(tok->pieces + tok->vocab, 0, (vocab - tok->vocab) * sizeof(*tok->pieces));
        tok->vocab = vocab;
    }
    shd_piece *piece = &tok->pieces[id];
    if (piece->kind != SHD_PIECE_NONE) {
        return shd_fail(err, SHD_EDATA, "tokens '%.100s' and '%.*s' both have id %lld", piece->text,
                        shown, text, (long long)id);
    }
    piece->text = shd_malloc(n + 1);
    memcpy(piece->text, text, n);
    piece->text[n] = '\0';
    piece->size = (uint32_t)n;
    piece->kind = kind;
    return 0;
}

shd_tokenizer *shd_tokenizer_bytes(void)
{
    shd_tokenizer *tok = create("bytes");
    for (int b = 0; b < 256; b++) {
        const char byte = (char)b;
        shd_tokenizer_put_piece(tok, b, &byte, 1, SHD_PIECE_TEXT, NULL);
    }
    snprintf(tok->digest, sizeof(tok->digest), "%064x", MEANING_VERSION);
    return tok;
}

static void make_digest(shd_tokenizer *tok, const shd_tokenizer_files *files)
{
    static const char what[] = "shardd tokenizer";
    const uint64_t version = MEANING_VERSION;
    unsigned char bytes[SHD_DIGEST_BYTES];
    shd_digest *digest = shd_digest_create(what, sizeof(what) - 1);
    shd_digest_add(digest, &version, sizeof(version));
    shd_digest_add_sized(digest, files->json, files->json != NULL ? files->json_size : 0);
    shd_digest_add_sized(digest, files->model, files->model != NULL ? files->model_size : 0);
    shd_digest_add_sized(digest, files->config, files->config != NULL ? files->config_size : 0);
    shd_digest_take(digest, bytes);
    shd_digest_free(digest);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        snprintf(tok->digest + 2 * i, 3, "%02x", bytes[i]);
    }
}

/* <0x41> */
static int byte_of(const char *text, size_t n)
{
    unsigned byte;
    char end;
    return n == 6 && sscanf(text, "<0x%2X%c", &byte, &end) == 2 && end == '>' ? (int)byte : -1;
}

/* The text of a sentencepiece piece: U+2581 is a space. */
static size_t piece_text(const char *piece, size_t n, char *out)
{
    size_t size = 0;
    for (size_t i = 0; i < n;) {
        if (n - i >= SHD_SP_SPACE_SIZE && memcmp(piece + i, SHD_SP_SPACE, SHD_SP_SPACE_SIZE) == 0) {
            out[size++] = ' ';
            i += SHD_SP_SPACE_SIZE;
        } else {
            out[size++] = piece[i++];
        }
    }
    return size;
}

static int read_piece(shd_tokenizer *tok, int32_t id, shd_error *err)
{
    size_t n;
    shd_sp_kind kind;
    const char *piece = shd_sp_piece(tok->sp, id, &n, &kind);
    const int byte = kind == SHD_SP_BYTE ? byte_of(piece, n) : -1;
    if (byte >= 0) {
        const char c = (char)byte;
        return shd_tokenizer_put_piece(tok, id, &c, 1, SHD_PIECE_TEXT, err);
    }
    if (kind == SHD_SP_CONTROL) {
        return shd_tokenizer_put_piece(tok, id, piece, n, SHD_PIECE_SPECIAL, err);
    }
    size_t size;
    char *text;
    if (kind == SHD_SP_UNKNOWN) {
        text = shd_sp_decode(tok->sp, &id, 1, &size); /* as the library writes it */
    } else {
        text = shd_malloc(n + 1);
        size = piece_text(piece, n, text);
    }
    const int rc = shd_tokenizer_put_piece(tok, id, text, size, SHD_PIECE_TEXT, err);
    free(text);
    return rc;
}

/* Does the library take a space off that a text begins with? */
static int takes_space_off(const shd_tokenizer *tok)
{
    for (uint32_t id = 0; id < tok->vocab; id++) {
        const shd_piece *piece = &tok->pieces[id];
        size_t n;
        shd_sp_kind kind;
        shd_sp_piece(tok->sp, (int32_t)id, &n, &kind);
        if (kind == SHD_SP_TEXT && piece->size > 1 && piece->text[0] == ' ') {
            const int32_t first = (int32_t)id;
            size_t size;
            char *text = shd_sp_decode(tok->sp, &first, 1, &size);
            const int off = size + 1 == piece->size && memcmp(text, piece->text + 1, size) == 0;
            free(text);
            return off;
        }
    }
    return 0;
}

static int read_sentencepiece(shd_tokenizer *tok, const char *bytes, size_t n, shd_error *err)
{
    shd_sp_maps maps;
    SHD_TRY(shd_sp_create(bytes, n, &tok->sp, &maps, err));
    for (int32_t id = 0; id < shd_sp_size(tok->sp); id++) {
        SHD_TRY(read_piece(tok, id, err));
    }
    tok->leading_space = takes_space_off(tok);
    shd_sp_cuts_make(tok->sp, &maps, &tok->cuts);
    tok->bos = shd_sp_bos(tok->sp);
    tok->eos = shd_sp_eos(tok->sp);
    return 0;
}

int shd_tokenizer_create(const shd_tokenizer_files *files, shd_tokenizer **out, shd_error *err)
{
    const int json = files->json != NULL;
    const char *part = json ? "tokenizer.json" : "tokenizer.model";
    if (json == (files->model != NULL)) {
        return shd_fail(err, SHD_EINVAL, "'%s': give tokenizer.json or tokenizer.model",
                        files->path);
    }
    shd_tokenizer *tok = create(json ? "bpe" : "sentencepiece");
    int rc = json ? shd_tokenizer_read_json(tok, files->json, files->json_size, err)
                  : read_sentencepiece(tok, files->model, files->model_size, err);
    if (rc == 0) {
        part = "tokenizer_config.json";
        rc = shd_tokenizer_read_config(tok, files->config, files->config_size, err);
    }
    if (rc == 0) {
        part = "added_tokens.json";
        rc = shd_tokenizer_read_added(tok, files->added, files->added_size, err);
    }
    if (rc < 0) {
        shd_tokenizer_free(tok);
        return shd_error_prefix(err, rc, "'%s': %s", files->path, part);
    }
    make_digest(tok, files);
    *out = tok;
    return 0;
}

shd_tokenizer *shd_tokenizer_ref(shd_tokenizer *tok)
{
    atomic_fetch_add(&tok->owners, 1);
    return tok;
}

void shd_tokenizer_free(shd_tokenizer *tok)
{
    if (tok == NULL || atomic_fetch_sub(&tok->owners, 1) > 1) {
        return;
    }
    for (uint32_t i = 0; i < tok->vocab; i++) {
        free(tok->pieces[i].text);
    }
    free(tok->pieces);
    for (uint32_t i = 0; i < tok->n_stages; i++) {
        shd_regex_free(tok->stages[i].regex);
    }
    shd_ids_fini(&tok->before);
    shd_ids_fini(&tok->after);
    shd_added_free(tok->raw);
    shd_added_free(tok->normalized);
    shd_bpe_free(tok->bpe);
    shd_sp_free(tok->sp);
    free(tok);
}

/* ---- asking ---- */

const char *shd_tokenizer_name(const shd_tokenizer *tok)
{
    return tok->name;
}

const char *shd_tokenizer_digest(const shd_tokenizer *tok)
{
    return tok->digest;
}

uint32_t shd_tokenizer_vocab(const shd_tokenizer *tok)
{
    return tok->vocab;
}

int32_t shd_tokenizer_bos(const shd_tokenizer *tok)
{
    return tok->bos;
}

int32_t shd_tokenizer_eos(const shd_tokenizer *tok)
{
    return tok->eos;
}

int32_t shd_tokenizer_find(const shd_tokenizer *tok, const char *name, size_t size)
{
    for (uint32_t id = 0; id < tok->vocab; id++) {
        const shd_piece *piece = &tok->pieces[id];
        if (piece->kind != SHD_PIECE_NONE && piece->size == size &&
            memcmp(piece->text, name, size) == 0) {
            return (int32_t)id;
        }
    }
    return -1;
}

void shd_tokenizer_template(const shd_tokenizer *tok, const int32_t **before, size_t *n_before,
                            const int32_t **after, size_t *n_after)
{
    *before = tok->before.items;
    *n_before = tok->before.n;
    *after = tok->after.items;
    *n_after = tok->after.n;
}

/* ---- ids to text ---- */

int shd_tokenizer_decode(const shd_tokenizer *tok, const int32_t *ids, size_t n, unsigned flags,
                         char **out, size_t *out_size, shd_error *err)
{
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= tok->vocab ||
            tok->pieces[ids[i]].kind == SHD_PIECE_NONE) {
            return shd_fail(err, SHD_EINVAL, "token %zu is %d, which is no token of this tokenizer",
                            i, ids[i]);
        }
        size += tok->pieces[ids[i]].size;
    }
    char *text = shd_malloc(size + 1);
    size = 0;
    int begins = tok->leading_space;
    for (size_t i = 0; i < n; i++) {
        const shd_piece *piece = &tok->pieces[ids[i]];
        if (piece->kind == SHD_PIECE_SPECIAL && (flags & SHD_DECODE_SKIP_SPECIAL) != 0) {
            continue;
        }
        const int off =
            begins && piece->kind == SHD_PIECE_TEXT && piece->size > 0 && piece->text[0] == ' ';
        memcpy(text + size, piece->text + off, piece->size - (size_t)off);
        size += piece->size - (size_t)off;
        begins &= piece->kind == SHD_PIECE_SPECIAL;
    }
    *out = text;
    *out_size = size;
    return 0;
}

uint32_t shd_tokenizer_token_bytes(const shd_tokenizer *tok, int32_t id)
{
    const int known = id >= 0 && (uint32_t)id < tok->vocab;
    return known && tok->pieces[id].kind == SHD_PIECE_TEXT ? tok->pieces[id].size : 0;
}

struct shd_text_stream {
    shd_tokenizer *tok;
    int begins;
    char held[4]; /* the begin of a character */
    size_t n_held;
    char *raw, *text;
    size_t capacity;
};

shd_text_stream *shd_text_stream_create(shd_tokenizer *tok, int begins)
{
    shd_text_stream *s = shd_calloc(1, sizeof(*s));
    s->tok = shd_tokenizer_ref(tok);
    s->begins = begins && tok->leading_space;
    return s;
}

void shd_text_stream_free(shd_text_stream *s)
{
    if (s != NULL) {
        shd_tokenizer_free(s->tok);
        free(s->raw);
        free(s->text);
        free(s);
    }
}

/* Gives out s->raw[n] but for a character that has only begun. */
static const char *give_out(shd_text_stream *s, size_t n, size_t *out)
{
    size_t whole = n;
    for (size_t back = 1; back <= 3 && back <= n; back++) { /* the last lead byte */
        const unsigned char byte = (unsigned char)s->raw[n - back];
        int valid;
        if (byte >= 0xc0) {
            whole = shd_utf8_step(s->raw + n - back, back, &valid) == 0 ? n - back : n;
            break;
        }
        if (byte < 0x80) {
            break;
        }
    }
    *out = shd_utf8_lossy(s->raw, whole, s->text);
    s->n_held = n - whole;
    memcpy(s->held, s->raw + whole, s->n_held);
    return s->text;
}

const char *shd_text_stream_push(shd_text_stream *s, int32_t id, size_t *n)
{
    static const shd_piece none = {NULL, 0, SHD_PIECE_NONE};
    const shd_piece *piece = id >= 0 && (uint32_t)id < s->tok->vocab ? &s->tok->pieces[id] : &none;
    *n = 0;
    if (piece->kind != SHD_PIECE_TEXT || piece->size == 0) {
        return "";
    }
    const size_t off = s->begins && piece->text[0] == ' ';
    const size_t size = s->n_held + piece->size - off;
    s->begins = 0;
    if (size > s->capacity) {
        s->capacity = 2 * size;
        s->raw = shd_reallocarray(s->raw, s->capacity, 1);
        s->text = shd_reallocarray(s->text, s->capacity, 3);
    }
    if (size == 0) {
        return "";
    }
    memcpy(s->raw, s->held, s->n_held);
    memcpy(s->raw + s->n_held, piece->text + off, piece->size - off);
    return give_out(s, size, n);
}

const char *shd_text_stream_end(shd_text_stream *s, size_t *n)
{
    *n = s->n_held > 0 ? 3 : 0; /* a torn character is one subpart */
    s->n_held = 0;
    return *n > 0 ? "\xef\xbf\xbd" : "";
}

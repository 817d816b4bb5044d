/* Text to ids: added tokens, normalisation, cuts into words, byte pairs; see tokenizer.h. Floor F3.
 */
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

#include "daemon/base/mem.h"
#include "daemon/data/tokenizer_internal.h"
#include "daemon/data/utf8.h"

#define TEXT_MAX (UINT64_C(1) << 30) /* bytes of one text */

/* How far behind a cut a pattern is shown the text, and how many cuts are tried. */
#define AHEAD 4096u
#define TRIES 16

/* The slowest that a text with a limit may go, in bytes a second; a clock is read every so many
 * words. */
#define SLOWEST 65536.0
#define WORDS_A_LOOK 16u

/* Bytes that go to sentencepiece at a time, about, where a text is cut. */
#define SP_PART 8192u

/* Bytes that are normalised between two looks at whether to go on. */
#define NORMAL_PART 65536u

/* A word that a stage makes may reach over the cut: the text cannot be cut here. */
#define CROSSES 1

struct shd_encoder {
    shd_tokenizer *tok;
    shd_matcher *matcher;
    shd_bpe_cache *cache;
    char *spaced; /* a word with a space before it */
    size_t spaced_capacity;
    double seconds;
    size_t skip; /* between pieces: ids of the next one that belong to what came before */
    int cutting; /* and: the text is cut for sentencepiece */

    /* the call in execution */
    shd_ends ends;
    shd_ids *ids;
    shd_error *err;
    const char *ahead; /* what follows the text, for patterns to look at */
    size_t n_ahead;
    const char *end; /* of the part that `ahead` follows, in memory too */
};

shd_encoder *shd_encoder_create(shd_tokenizer *tok)
{
    shd_encoder *e = shd_calloc(1, sizeof(*e));
    e->tok = shd_tokenizer_ref(tok);
    if (tok->bpe != NULL) {
        e->matcher = shd_matcher_create(&e->ends);
        e->cache = shd_bpe_cache_create();
    }
    return e;
}

void shd_encoder_free(shd_encoder *e)
{
    if (e != NULL) {
        shd_tokenizer_free(e->tok);
        shd_matcher_free(e->matcher);
        shd_bpe_cache_free(e->cache);
        free(e->spaced);
        free(e);
    }
}

/* ---- ends ---- */

void shd_encoder_limit(shd_encoder *e, const int *cancel, double seconds)
{
    e->ends.cancel = cancel;
    e->seconds = seconds;
}

static void set_deadline(shd_encoder *e, size_t n)
{
    const double own = (double)n / SLOWEST;
    e->ends.deadline = e->seconds > 0 ? shd_ends_now() + (own > e->seconds ? own : e->seconds) : 0;
}

/* ---- text that is normalised ---- */

char *shd_normalize(uninorm_t form, const char *text, size_t n, size_t *size)
{
    char *out = (char *)u8_normalize(form, (const uint8_t *)text, n, NULL, size);
    if (out == NULL && n > 0) {
        abort(); /* out of memory: the text is well-formed */
    }
    return out;
}

typedef struct buffer {
    char *bytes;
    size_t n, capacity;
} buffer;

static void reserve(buffer *b, size_t more)
{
    if (b->n + more > b->capacity) {
        b->capacity = 2 * (b->n + more);
        b->bytes = shd_reallocarray(b->bytes, b->capacity, 1);
    }
}

static int put_character(void *arg, ucs4_t c)
{
    buffer *b = arg;
    reserve(b, 6);
    b->n += (size_t)u8_uctomb((uint8_t *)b->bytes + b->n, c, 6);
    return 0;
}

/* Where a part of text[n] that begins at `at` may end: before an ASCII character, which combines
 * with nothing that precedes it. 0: nowhere near. */
static size_t part_end(const char *text, size_t n, size_t at)
{
    size_t end = n - at > NORMAL_PART ? at + NORMAL_PART : n;
    while (end > at && end < n && (text[end] & 0x80) != 0) {
        end--;
    }
    return end > at ? end : 0;
}

/* Normalises text[n] character by character until an ASCII one comes; *at goes on. */
static int normalize_run(shd_encoder *e, uninorm_t form, const char *text, size_t n, size_t *at,
                         buffer *out)
{
    struct uninorm_filter *filter = uninorm_filter_create(form, put_character, out);
    int rc = filter != NULL ? 0 : shd_fail(e->err, SHD_ENOMEM, "out of memory");
    for (size_t i = 0, size; rc == 0 && *at < n && (i == 0 || (text[*at] & 0x80) != 0); i++) {
        if (uninorm_filter_write(filter, shd_utf8_get(text + *at, &size)) < 0) {
            rc = shd_fail(e->err, SHD_ENOMEM, "out of memory");
        } else if (i % NORMAL_PART == NORMAL_PART - 1) {
            rc = shd_ends_look(&e->ends, 1, e->err);
        }
        *at += size;
    }
    if (filter != NULL) {
        uninorm_filter_free(filter); /* with what it still holds */
    }
    return rc;
}

/* As shd_normalize, in parts that give the same together. *out is to be freed. */
static int normalize(shd_encoder *e, uninorm_t form, const char *text, size_t n, buffer *out)
{
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < n;) {
        const size_t end = part_end(text, n, at);
        if (end == 0) {
            rc = normalize_run(e, form, text, n, &at, out);
            continue;
        }
        size_t size;
        char *part = shd_normalize(form, text + at, end - at, &size);
        reserve(out, size);
        memcpy(out->bytes + out->n, part, size);
        out->n += size;
        free(part);
        at = end;
        rc = shd_ends_look(&e->ends, 1, e->err);
    }
    return rc;
}

/* ---- words ---- */

static int run_stage(shd_encoder *e, uint32_t k, const char *text, size_t n, size_t ahead);

static int put_space(shd_encoder *e, uint32_t k, const char *text, size_t n)
{
    if (n == 0 || text[0] == ' ') {
        return run_stage(e, k + 1, text, n, 0);
    }
    if (e->spaced_capacity < n + 1) {
        e->spaced_capacity = 2 * (n + 1);
        e->spaced = shd_reallocarray(e->spaced, e->spaced_capacity, 1);
    }
    e->spaced[0] = ' ';
    memcpy(e->spaced + 1, text, n);
    return run_stage(e, k + 1, e->spaced, n + 1, 0);
}

static int cut(shd_encoder *e, uint32_t k, const char *text, size_t n, size_t ahead)
{
    const shd_stage *stage = &e->tok->stages[k];
    for (size_t at = 0; at < n;) {
        SHD_TRY(shd_ends_look(&e->ends, WORDS_A_LOOK, e->err));
        size_t begin = n + ahead, end = n + ahead;
        const int rc = shd_matcher_find(e->matcher, stage->regex, text, n + ahead, at, ahead > 0,
                                        &begin, &end, e->err);
        if (rc < 0) {
            return rc;
        }
        /* A match that reaches over the end of the text, or may: no match begins on its far side.
         */
        if (begin <= n && (rc == SHD_REGEX_PARTIAL || (begin < n && end > n))) {
            return CROSSES;
        }
        /* What lies before the next match may go on behind the text: the stages below see it. */
        const size_t rest = begin < n ? begin : n;
        if (rest > at && !stage->drop_rest) {
            const int inner = run_stage(e, k + 1, text + at, rest - at, begin - rest);
            if (inner != 0) {
                return inner;
            }
        }
        if (begin >= n) {
            break;
        }
        if (!stage->drop_matches) {
            const int inner = run_stage(e, k + 1, text + begin, end - begin, 0);
            if (inner != 0) {
                return inner;
            }
        }
        at = end;
    }
    return 0;
}

/* Cuts text[n] by the stages from k on and encodes the words. `ahead` bytes follow in memory that
 * do not belong to it: then CROSSES when a word would go on there, or may. */
static int run_stage(shd_encoder *e, uint32_t k, const char *text, size_t n, size_t ahead)
{
    if (k == e->tok->n_stages) {
        if (ahead > 0) {
            return CROSSES;
        }
        return shd_bpe_word(e->tok->bpe, e->cache, text, n, &e->ends, e->ids, e->err);
    }
    const shd_regex *regex = e->tok->stages[k].regex;
    if (ahead > 0 && (regex == NULL || !shd_regex_forgets(regex))) {
        return CROSSES; /* what comes before a cut would matter behind it */
    }
    return regex != NULL ? cut(e, k, text, n, ahead) : put_space(e, k, text, n);
}

/* ---- added tokens and normalisation ---- */

static int on_normalized(void *arg, int32_t id, const char *text, size_t n)
{
    shd_encoder *e = arg;
    if (id >= 0) {
        shd_ids_push(e->ids, id);
        return 0;
    }
    return run_stage(e, 0, text, n, text + n == e->end ? e->n_ahead : 0);
}

static int normalize_all(shd_encoder *e, const char *text, size_t n, buffer *out)
{
    const shd_tokenizer *tok = e->tok;
    int rc = normalize(e, tok->forms[0], text, n, out);
    for (uint32_t i = 1; rc == 0 && i < tok->n_forms; i++) {
        const buffer before = *out;
        *out = (buffer){0};
        rc = normalize(e, tok->forms[i], before.bytes, before.n, out);
        free(before.bytes);
    }
    return rc;
}

/* A part without names of added tokens, normalised. */
static int on_part(shd_encoder *e, const char *text, size_t n)
{
    const int last = text + n == e->end && e->n_ahead > 0;
    buffer normal = {0};
    int rc = normalize_all(e, text, n, &normal);
    const size_t size = normal.n;
    /* A cut lies between ASCII characters: what follows it does not combine with what is before. */
    if (rc == 0 && last) {
        buffer ahead = {0};
        rc = normalize_all(e, e->ahead, e->n_ahead, &ahead);
        reserve(&normal, ahead.n);
        memcpy(normal.bytes + size, ahead.bytes, ahead.n);
        free(ahead.bytes);
        e->end = normal.bytes + size;
        e->n_ahead = ahead.n;
    }
    if (rc == 0) {
        rc = shd_added_split(e->tok->normalized, normal.bytes, size, &e->ends, on_normalized, e,
                             e->err);
    }
    free(normal.bytes);
    return rc;
}

static int on_raw(void *arg, int32_t id, const char *text, size_t n)
{
    shd_encoder *e = arg;
    if (id >= 0) {
        shd_ids_push(e->ids, id);
        return 0;
    }
    return e->tok->n_forms > 0
               ? on_part(e, text, n)
               : shd_added_split(e->tok->normalized, text, n, &e->ends, on_normalized, e, e->err);
}

/* text[n], well-formed, with ahead[n_ahead] behind it in memory. 0, CROSSES or an error. */
static int encode(shd_encoder *e, const char *text, size_t n, size_t n_ahead, shd_ids *ids,
                  shd_error *err)
{
    e->ids = ids;
    e->err = err;
    e->ahead = e->end = text + n;
    e->n_ahead = n_ahead;
    return shd_added_split(e->tok->raw, text, n, &e->ends, on_raw, e, err);
}

/* ---- sentencepiece ---- */

/* Takes ids but for the first ones. */
typedef struct taker {
    shd_ids *ids;
    size_t skip;
} taker;

static void take(void *arg, int32_t id)
{
    taker *t = arg;
    if (t->skip > 0) {
        t->skip--;
    } else {
        shd_ids_push(t->ids, id);
    }
}

/* A part of a text in one go. */
static int encode_part(shd_encoder *e, const char *text, size_t n, shd_ids *ids, shd_error *err)
{
    taker t = {.ids = ids, .skip = e->skip};
    const size_t size = shd_utf8_lossy(text, n, NULL), most = e->tok->cuts.most;
    SHD_TRY(shd_ends_look(&e->ends, 1, err));
    if (size > most) {
        return shd_fail(err, SHD_EDATA,
                        "this tokenizer.model is given at most %zu bytes of a text in one go, and "
                        "%zu have neither a space nor an end of a line between words at which they "
                        "could be cut: give the text as shorter documents (JSONL)",
                        most, size);
    }
    if (shd_utf8_valid(text, n) == n) {
        return shd_sp_encode(e->tok->sp, text, n, take, &t, err);
    }
    char *lossy = shd_malloc(size);
    shd_utf8_lossy(text, n, lossy);
    const int rc = shd_sp_encode(e->tok->sp, lossy, size, take, &t, err);
    free(lossy);
    return rc;
}

/* The first place from `from` on where text[n] can be cut; 0: none. */
static size_t next_cut(const shd_sp_cuts *cuts, const char *text, size_t n, size_t from,
                       size_t *rest, size_t *skip)
{
    for (size_t at = from; at < n; at++) {
        if (shd_sp_cuts_at(cuts, text, n, at, rest, skip)) {
            return at;
        }
    }
    return 0;
}

/* Parts of text[n] while there is more than one; *taken: bytes that they are. They end at the same
 * places when the text goes on behind n. */
static int encode_parts(shd_encoder *e, const char *text, size_t n, shd_ids *ids, size_t *taken,
                        shd_error *err)
{
    size_t at, rest, skip;
    while (n - *taken > SP_PART && (at = next_cut(&e->tok->cuts, text + *taken, n - *taken,
                                                  SP_PART / 2, &rest, &skip)) > 0) {
        SHD_TRY(encode_part(e, text + *taken, at, ids, err));
        *taken += rest;
        e->skip = skip;
    }
    return 0;
}

/* text[n], behind which `more` may come: *taken is as for shd_encoder_piece. The library takes much
 * longer for one long text than for its parts; but where parts need not give the whole's ids, it
 * gets what it can in one go. */
static int encode_sp(shd_encoder *e, const char *text, size_t n, int more, shd_ids *ids,
                     size_t *taken, shd_error *err)
{
    const shd_sp_cuts *cuts = &e->tok->cuts;
    /* What n cuts off of a character counts as U+FFFD, and may be less. */
    const size_t most = cuts->most + (more ? 3 : 0);
    int rc = 0;
    *taken = 0;
    e->cutting |= cuts->merges || shd_utf8_lossy(text, n, NULL) > most;
    if (e->cutting) {
        rc = encode_parts(e, text, n, ids, taken, err);
    }
    if (rc == 0 && more && shd_utf8_lossy(text + *taken, n - *taken, NULL) <= most) {
        return 0;
    }
    if (rc == 0) {
        rc = encode_part(e, text + *taken, n - *taken, ids, err);
        *taken = n;
    }
    e->skip = 0;
    e->cutting = 0;
    return rc;
}

/* ---- whole texts ---- */

static int check_size(size_t n, shd_error *err)
{
    return n <= TEXT_MAX ? 0
                         : shd_fail(err, SHD_EDATA, "a text of %zu bytes is longer than %llu", n,
                                    (unsigned long long)TEXT_MAX);
}

int shd_encoder_run(shd_encoder *e, const char *text, size_t n, unsigned flags, shd_ids *ids,
                    shd_error *err)
{
    const int special = (flags & SHD_ENCODE_SPECIAL) != 0;
    SHD_TRY(check_size(n, err));
    set_deadline(e, n);
    if (special) {
        shd_ids_append(ids, e->tok->before.items, e->tok->before.n);
    }
    if (e->tok->bpe == NULL && e->tok->sp == NULL) {
        for (size_t i = 0; i < n; i++) {
            shd_ids_push(ids, (unsigned char)text[i]);
        }
    } else if (e->tok->sp != NULL) {
        size_t taken;
        SHD_TRY(encode_sp(e, text, n, 0, ids, &taken, err));
    } else if (shd_utf8_valid(text, n) == n) {
        SHD_TRY(encode(e, text, n, 0, ids, err));
    } else {
        const size_t size = shd_utf8_lossy(text, n, NULL);
        char *lossy = shd_malloc(size);
        shd_utf8_lossy(text, n, lossy);
        const int rc = encode(e, lossy, size, 0, ids, err);
        free(lossy);
        SHD_TRY(rc);
    }
    if (special) {
        shd_ids_append(ids, e->tok->after.items, e->tok->after.n);
    }
    return 0;
}

/* ---- pieces ---- */

/* Can texts be cut at all? */
static int can_cut(const shd_tokenizer *tok)
{
    return tok->bpe != NULL && (tok->n_forms == 0 || shd_added_empty(tok->normalized));
}

static int is_graph(char c)
{
    return c > ' ' && c < 0x7f;
}

static int is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The last line that begins before text[n]: a place between ASCII characters, with a letter behind
 * it, where words usually end. 0: none. */
static size_t last_line(const char *text, size_t n)
{
    for (size_t at = n; at > 2; at--) {
        if (text[at - 1] == '\n' && is_letter(text[at]) && is_graph(text[at - 2])) {
            return at;
        }
    }
    return 0;
}

/* How much of text[n] a pattern may see beyond a cut: well-formed, and its end does not combine
 * with what follows. */
static size_t see_ahead(const char *text, size_t n)
{
    size_t end = n < AHEAD ? n : AHEAD;
    const size_t valid = shd_utf8_valid(text, end);
    end = valid < end ? valid : end - 1;
    while (end > 0 && ((text[end - 1] & 0x80) != 0 || (text[end] & 0x80) != 0)) {
        end--;
    }
    return end;
}

/* Encodes text[0, at) in view of what follows. CROSSES: it cannot be cut there. */
static int try_cut(shd_encoder *e, const char *text, size_t n, size_t at, shd_ids *ids,
                   shd_error *err)
{
    const size_t ahead = see_ahead(text + at, n - at);
    if (ahead == 0 || shd_added_near(e->tok->raw, text, n, at) ||
        shd_added_near(e->tok->normalized, text, n, at)) {
        return CROSSES;
    }
    if (shd_utf8_valid(text, at) == at) {
        return encode(e, text, at, ahead, ids, err);
    }
    const size_t size = shd_utf8_lossy(text, at, NULL);
    char *lossy = shd_malloc(size + ahead);
    shd_utf8_lossy(text, at, lossy);
    memcpy(lossy + size, text + at, ahead);
    const int rc = encode(e, lossy, size, ahead, ids, err);
    free(lossy);
    return rc;
}

int shd_encoder_piece(shd_encoder *e, const char *text, size_t n, int last, shd_ids *ids,
                      size_t *taken, shd_error *err)
{
    *taken = 0;
    if (last || (e->tok->bpe == NULL && e->tok->sp == NULL)) {
        SHD_TRY(shd_encoder_run(e, text, n, 0, ids, err));
        *taken = n;
        return 0;
    }
    SHD_TRY(check_size(n, err));
    set_deadline(e, n);
    if (e->tok->sp != NULL) {
        return encode_sp(e, text, n, 1, ids, taken, err);
    }
    const size_t before = ids->n;
    size_t at = n > AHEAD && can_cut(e->tok) ? n - AHEAD : 0;
    for (int i = 0; i < TRIES && (at = last_line(text, at)) > 0; i++) {
        const int rc = try_cut(e, text, n, at, ids, err);
        if (rc == 0) {
            *taken = at;
            return 0;
        }
        ids->n = before;
        if (rc < 0) {
            return rc;
        }
        at--;
    }
    return 0;
}

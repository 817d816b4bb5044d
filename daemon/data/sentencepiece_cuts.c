/* Cuts of a text for sentencepiece; see sentencepiece_cuts.h. Floor F3. */
#include "daemon/data/sentencepiece_cuts.h"

#include <stdlib.h>
#include <string.h>
#include <unictype.h>
#include <uninorm.h>
#include <unistr.h>

/* Bytes of a text that go to sentencepiece at one time, which cannot be interrupted: so many steps
 * along pieces, but within bounds. */
#define WORK ((size_t)1 << 28)
#define LEAST ((size_t)1 << 13)
#define MOST ((size_t)1 << 20)

#define SPACE SHD_SP_SPACE
#define SPACE_SIZE SHD_SP_SPACE_SIZE
#define SPACE_CHARACTER 0x2581u

/* ---- what a model allows ---- */

/* Bytes of the run of spaces that a piece begins with. */
static size_t leading_spaces(const char *piece, size_t n)
{
    size_t at = 0;
    while (n - at >= SPACE_SIZE && memcmp(piece + at, SPACE, SPACE_SIZE) == 0) {
        at += SPACE_SIZE;
    }
    return at;
}

/* Has no piece a space behind something else, and is a space a piece? */
static int spaces_lead(const shd_sp *sp)
{
    int space = 0;
    for (int32_t id = 0; id < shd_sp_size(sp); id++) {
        size_t n;
        shd_sp_kind kind;
        const char *piece = shd_sp_piece(sp, id, &n, &kind);
        const size_t spaces = leading_spaces(piece, n);
        if (kind == SHD_SP_TEXT && (memmem(piece + spaces, n - spaces, SPACE, SPACE_SIZE) != NULL ||
                                    memchr(piece, ' ', n) != NULL)) {
            return 0;
        }
        space |= kind == SHD_SP_TEXT && n == SPACE_SIZE && spaces == n;
    }
    return space;
}

#define MOST_FEW 8u

/* Ids of a short text. */
typedef struct few {
    int32_t ids[MOST_FEW];
    size_t n; /* may be more than there is room for */
} few;

static void put_few(void *arg, int32_t id)
{
    few *f = arg;
    if (f->n < MOST_FEW) {
        f->ids[f->n] = id;
    }
    f->n++;
}

static few encode_few(const shd_sp *sp, const char *text)
{
    few out = {.n = 0};
    if (shd_sp_encode(sp, text, strlen(text), put_few, &out, NULL) < 0) {
        out.n = SIZE_MAX;
    }
    return out;
}

static int same_few(const few *a, const few *b)
{
    return a->n == b->n && a->n <= MOST_FEW &&
           memcmp(a->ids, b->ids, a->n * sizeof(a->ids[0])) == 0;
}

/* Is "a" followed by a space in pieces, as where spaces are written behind words? */
static int ends_in_space(const shd_sp *sp, const few *a)
{
    size_t n = 0;
    shd_sp_kind kind;
    const char *last =
        a->n > 0 && a->n <= MOST_FEW ? shd_sp_piece(sp, a->ids[a->n - 1], &n, &kind) : "";
    return n >= SPACE_SIZE && memcmp(last + n - SPACE_SIZE, SPACE, SPACE_SIZE) == 0;
}

/* Are "a b" tokenized as "a" is, and then `behind`? */
static int falls_apart(const shd_sp *sp, const char *behind)
{
    const few both = encode_few(sp, "a b"), other = encode_few(sp, behind);
    few joined = encode_few(sp, "a");
    if (ends_in_space(sp, &joined)) {
        return 0;
    }
    for (size_t i = 0; i < other.n && i < MOST_FEW && joined.n < MOST_FEW; i++) {
        put_few(&joined, other.ids[i]);
    }
    return same_few(&both, &joined);
}

/* Is there a "\n" in any piece of more than so many bytes? */
static int has_line(const shd_sp *sp, size_t longer_than)
{
    for (int32_t id = 0; id < shd_sp_size(sp); id++) {
        size_t n;
        shd_sp_kind kind;
        const char *piece = shd_sp_piece(sp, id, &n, &kind);
        if (n > longer_than && memchr(piece, '\n', n) != NULL) {
            return 1;
        }
    }
    return 0;
}

/* Does a "\n" between words mean what a space does? */
static int line_is_space(const shd_sp *sp)
{
    const few line = encode_few(sp, "a\nb"), space = encode_few(sp, "a b");
    return !has_line(sp, 0) && same_few(&line, &space);
}

/* Is every word with the space before it tokenized apart? So it is when spaces lead pieces, and a
 * text that begins with a word gets a space itself, or one that begins with a space keeps it. */
static void find_spaces(const shd_sp *sp, const shd_sp_maps *maps, shd_sp_cuts *out)
{
    if (!maps->joins && spaces_lead(sp)) {
        out->own_space = falls_apart(sp, "b");
        out->spaces = out->own_space || falls_apart(sp, " b");
    }
    out->lines = out->spaces && line_is_space(sp);
}

/* May a text be cut behind "\n"? It may when no piece reaches over that place: then what follows is
 * tokenized as it is behind a text that is nothing but "\n", and the ids of that one can be taken
 * off. */
static size_t line_ids(const shd_sp *sp, const shd_sp_maps *maps)
{
    if (maps->joins || has_line(sp, 1)) {
        return 0;
    }
    const few ids = encode_few(sp, "\n");
    if (ids.n == 0 || ids.n > MOST_FEW) {
        return 0;
    }
    /* Nor is it replaced, nor unknown: it would become one with other unknown characters. */
    size_t n;
    shd_sp_kind kind;
    const char *piece = shd_sp_piece(sp, ids.ids[ids.n - 1], &n, &kind);
    const int is_line = (kind == SHD_SP_TEXT && n == 1 && piece[0] == '\n') ||
                        (kind == SHD_SP_BYTE && n == 6 && memcmp(piece, "<0x0A>", 6) == 0);
    return is_line ? ids.n : 0;
}

/* The library looks from each place of a text along pieces, as long as they are; and a character
 * may become long, with several words of memory for each byte. */
static size_t most_at_a_time(const shd_sp *sp, const shd_sp_maps *maps)
{
    size_t longest = 4 * maps->longest + 1;
    for (int32_t id = 0; id < shd_sp_size(sp); id++) {
        size_t n;
        shd_sp_kind kind;
        shd_sp_piece(sp, id, &n, &kind);
        longest = n > longest ? n : longest;
    }
    const size_t most = WORK / longest;
    return most < LEAST ? LEAST : most > MOST ? MOST : most;
}

void shd_sp_cuts_make(const shd_sp *sp, const shd_sp_maps *maps, shd_sp_cuts *out)
{
    *out = (shd_sp_cuts){.merges = shd_sp_merges(sp),
                         .line_ids = line_ids(sp, maps),
                         .most = most_at_a_time(sp, maps)};
    find_spaces(sp, maps, out);
}

/* ---- places ---- */

/* Something that is seen, and stays so whatever a normal form makes of it. */
static int ends_a_word(ucs4_t c)
{
    if (c < 0x80) {
        return c > ' ' && c < 0x7f;
    }
    return c != SPACE_CHARACTER && !uc_is_property_default_ignorable_code_point(c) &&
           uc_is_general_category_withtable(c, UC_CATEGORY_MASK_L | UC_CATEGORY_MASK_M |
                                                   UC_CATEGORY_MASK_N | UC_CATEGORY_MASK_P);
}

/* A letter that no normal form makes begin with a space. */
static int begins_a_word(ucs4_t c)
{
    if (c < 0x80) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    }
    if (uc_is_property_default_ignorable_code_point(c) ||
        !uc_is_general_category_withtable(c, UC_CATEGORY_MASK_L)) {
        return 0;
    }
    uint8_t form[128];
    size_t size = sizeof(form);
    uint8_t in[6];
    const int n = u8_uctomb(in, c, sizeof(in));
    uint8_t *out = n > 0 ? u8_normalize(UNINORM_NFKC, in, (size_t)n, form, &size) : NULL;
    const int letter = out != NULL && size > 0 && out[0] != ' ';
    if (out != form) {
        free(out);
    }
    return letter;
}

/* Is text[at] a single space between two words, or what becomes one? */
static int is_between_words(const shd_sp_cuts *cuts, const char *text, size_t n, size_t at)
{
    if (text[at] != ' ' && !(cuts->lines && text[at] == '\n')) {
        return 0;
    }
    const uint8_t *bytes = (const uint8_t *)text;
    ucs4_t before, behind;
    return u8_prev(&before, bytes + at, bytes) != NULL && ends_a_word(before) &&
           u8_mbtoucr(&behind, bytes + at + 1, n - at - 1) > 0 && begins_a_word(behind);
}

int shd_sp_cuts_at(const shd_sp_cuts *cuts, const char *text, size_t n, size_t at, size_t *rest,
                   size_t *skip)
{
    if (at == 0 || n < SHD_SP_AHEAD || at > n - SHD_SP_AHEAD) {
        return 0;
    }
    if (cuts->spaces && is_between_words(cuts, text, n, at)) {
        *rest = cuts->own_space ? at + 1 : at;
        *skip = 0;
        return 1;
    }
    *rest = at - 1;
    *skip = cuts->line_ids;
    return cuts->line_ids > 0 && at > 1 && text[at - 1] == '\n';
}

/* Oniguruma patterns for PCRE2; see regex.h. Floor F3. */
#include "daemon/data/regex.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "daemon/base/mem.h"

#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Pc}" /* Oniguruma's \w */

/* A pattern is compiled twice. The quick code sees a window of the text and may take few steps
 * (PCRE2's match limit counts them) from each place where it looks for a match; before each there
 * is a callout. That is enough for words. Where it is not, the watched code takes over, which has a
 * callout before every item, and does the same with all of the text. So between two callouts there
 * is at most one item of the pattern along the text; or with the quick code, one start within the
 * window, which QUICK_BYTES of pattern keep short. */
#define WINDOW 512u /* bytes */
#define QUICK_STEPS 1000u
#define QUICK_BYTES 4096u /* of compiled pattern */
#define LOOK_STEPS 16u    /* callouts between two readings of a clock */

/* A pattern that needs more for one match is not one for text of any length. */
#define MATCH_LIMIT 50000000u
#define MAX_STEPS 100000000u /* callouts of the watched code */
#define JIT_STACK_MAX (8u << 20)
#define HEAP_LIMIT_KIB (256u << 10) /* of the interpreter */

typedef struct program {
    pcre2_code *code; /* NULL: none */
    int jit;
} program;

struct shd_regex {
    program quick, watched;
    int forgets;
};

struct shd_matcher {
    pcre2_match_data *data;
    pcre2_match_context *quick, *watched;
    pcre2_jit_stack *stack;
    shd_ends *ends; /* borrowed */
    unsigned steps; /* of the present find */
    int ended;      /* the callout has set *err */
    shd_error *err;
};

/* ---- translation ---- */

typedef struct translation {
    const char *pattern, *p;
    char *out;
    size_t n, capacity;
    int looks_behind; /* other than by a group that does, which PCRE2 counts */
    shd_error *err;
} translation;

static void put(translation *t, const char *s, size_t n)
{
    if (t->n + n + 1 > t->capacity) {
        t->capacity = 2 * (t->n + n + 1);
        t->out = shd_reallocarray(t->out, t->capacity, 1);
    }
    memcpy(t->out + t->n, s, n);
    t->n += n;
    t->out[t->n] = '\0';
}

static void puts_(translation *t, const char *s)
{
    put(t, s, strlen(s));
}

static int refuse(const translation *t, const char *what)
{
    return shd_fail(t->err, SHD_EUNSUPPORTED,
                    "pattern '%.200s': %s at position %zu is not supported", t->pattern, what,
                    (size_t)(t->p - t->pattern));
}

static int is_category(const char *name, size_t n)
{
    static const char *const all[] = {"Any", "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm",
                                      "Lo",  "Lt", "Lu", "M",  "Mc", "Me", "Mn", "N",  "Nd", "Nl",
                                      "No",  "P",  "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S",
                                      "Sc",  "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (strlen(all[i]) == n && memcmp(all[i], name, n) == 0) {
            return 1;
        }
    }
    return 0;
}

/* \p{L}, \P{^L}, \p{Han}: a name that is no category is a script, and means Script, where PCRE2
 * would take Script_Extensions. */
static int property(translation *t)
{
    const char *open = t->p + 2;
    if (*open != '{') {
        return refuse(t, "a property without braces");
    }
    const char *name = open + 1;
    const int negated = *name == '^';
    name += negated;
    const size_t n = strcspn(name, "}");
    if (name[n] != '}' || n == 0 ||
        strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                     "abcdefghijklmnopqrstuvwxyz_") != n) {
        return refuse(t, "this property");
    }
    put(t, t->p, 2);
    puts_(t, negated ? "{^" : "{");
    puts_(t, is_category(name, n) ? "" : "sc:");
    put(t, name, n + 1);
    t->p = name + n + 1;
    return 0;
}

/* \xHH below 0x80, \x{H...}, \uHHHH */
static int code_point(translation *t)
{
    const char *p = t->p + 2;
    const int braces = t->p[1] == 'x' && *p == '{';
    p += braces;
    size_t n = 0;
    while (n < 8 && isxdigit((unsigned char)p[n]) && (braces || n < (t->p[1] == 'u' ? 4u : 2u))) {
        n++;
    }
    if (n == 0 || (braces && p[n] != '}') || (t->p[1] == 'u' && n != 4)) {
        return refuse(t, "this escape");
    }
    char digits[9];
    memcpy(digits, p, n);
    digits[n] = '\0';
    if (t->p[1] == 'x' && !braces && strtoul(digits, NULL, 16) >= 0x80) {
        return refuse(t, "a single byte beyond ASCII");
    }
    puts_(t, "\\x{");
    puts_(t, digits);
    puts_(t, "}");
    t->p = p + n + braces;
    return 0;
}

static int escape(translation *t, int in_class)
{
    const char c = t->p[1];
    const char *known = NULL;
    switch (c) {
    case 's':
        known = "\\p{White_Space}";
        break;
    case 'S':
        known = "\\P{White_Space}";
        break;
    case 'd':
        known = "\\p{Nd}";
        break;
    case 'D':
        known = "\\P{Nd}";
        break;
    case 'w':
        known = in_class ? WORD : "[" WORD "]";
        break;
    case 'W':
        known = in_class ? NULL : "[^" WORD "]";
        break;
    case 'v':
        known = "\\x0b";
        break;
    case 'A':
    case 'z':
        known = in_class ? NULL : c == 'A' ? "\\A" : "\\z";
        t->looks_behind |= c == 'A';
        break;
    case 'p':
    case 'P':
        return property(t);
    case 'x':
    case 'u':
        return code_point(t);
    default:
        if (c != '\0' && (strchr("nrtfae", c) != NULL || ispunct((unsigned char)c) || c == ' ')) {
            put(t, t->p, 2);
            t->p += 2;
            return 0;
        }
    }
    if (known == NULL) {
        return refuse(t, "this escape");
    }
    puts_(t, known);
    t->p += 2;
    return 0;
}

static int character_class(translation *t)
{
    const char *begin = t->p;
    puts_(t, "[");
    t->p++;
    if (*t->p == '^') {
        puts_(t, "^");
        t->p++;
    }
    if (*t->p == ']') {
        puts_(t, "\\]");
        t->p++;
    }
    while (*t->p != ']') {
        if (*t->p == '\0') {
            t->p = begin;
            return refuse(t, "a character class without end");
        }
        if (*t->p == '[') {
            return refuse(t, "a class within a class");
        }
        if (t->p[0] == '&' && t->p[1] == '&') {
            return refuse(t, "an intersection of classes");
        }
        if (*t->p == '\\') {
            SHD_TRY(escape(t, 1));
        } else {
            put(t, t->p++, 1);
        }
    }
    puts_(t, "]");
    t->p++;
    return 0;
}

static int group(translation *t)
{
    static const char *const kinds[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    if (t->p[1] == '*') {
        return refuse(t, "a verb");
    }
    if (t->p[1] != '?') {
        puts_(t, "(?:"); /* what a group captures is of no use here */
        t->p++;
        return 0;
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const size_t n = strlen(kinds[i]);
        if (strncmp(t->p, kinds[i], n) == 0) {
            put(t, kinds[i], n);
            t->p += n;
            return 0;
        }
    }
    return refuse(t, "this kind of group");
}

/* {n}, {n,}, {n,m}, {,m}; any other brace is a character. */
static int interval(translation *t)
{
    const char *p = t->p + 1;
    const size_t least = strspn(p, "0123456789");
    const int comma = p[least] == ',';
    const size_t most = comma ? strspn(p + least + 1, "0123456789") : 0;
    const char *end = p + least + (size_t)comma + most;
    if (*end != '}' || (least == 0 && most == 0)) {
        puts_(t, "\\{");
        t->p++;
        return 0;
    }
    if (end[1] == '+' || (end[1] == '?' && !comma)) {
        return refuse(t, "a quantifier after this interval");
    }
    puts_(t, least == 0 ? "{0" : "{");
    put(t, p, (size_t)(end - p) + 1);
    t->p = end + 1;
    return 0;
}

static int translate(translation *t)
{
    puts_(t, "");
    while (*t->p != '\0') {
        switch (*t->p) {
        case '\\':
            SHD_TRY(escape(t, 0));
            break;
        case '[':
            SHD_TRY(character_class(t));
            break;
        case '(':
            SHD_TRY(group(t));
            break;
        case '{':
            SHD_TRY(interval(t));
            break;
        default:
            t->looks_behind |= *t->p == '^';
            put(t, t->p++, 1);
        }
    }
    return 0;
}

int shd_regex_translate(const char *pattern, char **out, shd_error *err)
{
    translation t = {.pattern = pattern, .p = pattern, .err = err};
    const int rc = translate(&t);
    if (rc < 0) {
        free(t.out);
        return rc;
    }
    *out = t.out;
    return 0;
}

/* ---- compiling ---- */

static pcre2_code *compile_code(const char *pattern, size_t n, uint32_t flags, const char *shown,
                                shd_error *err)
{
    int number;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, n, flags | PCRE2_UTF, &number, &at, context);
    pcre2_compile_context_free(context);
    if (code == NULL) {
        PCRE2_UCHAR message[128];
        pcre2_get_error_message(number, message, sizeof(message));
        shd_fail(err, SHD_EDATA, "pattern '%.200s': %s", shown, (const char *)message);
    }
    return code;
}

static program make_program(pcre2_code *code)
{
    program p = {.code = code};
    p.jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
    return p; /* without it, slower */
}

/* The regex of code `main`, which is taken over. */
static int create(pcre2_code *main, const char *shown, shd_regex **out, shd_error *err)
{
    uint32_t empty = 0, behind = 0;
    pcre2_pattern_info(main, PCRE2_INFO_MATCHEMPTY, &empty);
    pcre2_pattern_info(main, PCRE2_INFO_MAXLOOKBEHIND, &behind);
    if (empty) {
        pcre2_code_free(main);
        return shd_fail(err, SHD_EUNSUPPORTED, "pattern '%.200s' matches nothing at all", shown);
    }
    *out = shd_calloc(1, sizeof(**out));
    (*out)->watched = make_program(main);
    (*out)->forgets = behind == 0;
    return 0;
}

int shd_regex_compile(const char *pattern, shd_regex **out, shd_error *err)
{
    static const uint32_t flags = PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    translation t = {.pattern = pattern, .p = pattern, .err = err};
    int rc = translate(&t);
    if (rc == 0) {
        pcre2_code *code = compile_code(t.out, t.n, flags | PCRE2_AUTO_CALLOUT, pattern, err);
        rc = code != NULL ? create(code, pattern, out, err) : SHD_EDATA;
    }
    if (rc == 0) {
        char *quick = shd_asprintf("(?C1)(?:%s)", t.out);
        size_t size = SIZE_MAX;
        (*out)->forgets &= !t.looks_behind;
        pcre2_code *code = compile_code(quick, strlen(quick), flags, pattern, NULL);
        if (code != NULL) {
            pcre2_pattern_info(code, PCRE2_INFO_SIZE, &size);
        }
        if (size <= QUICK_BYTES) {
            (*out)->quick = make_program(code);
        } else {
            pcre2_code_free(code);
        }
        free(quick);
    }
    free(t.out);
    return rc;
}

int shd_regex_literal(const char *text, size_t n, shd_regex **out, shd_error *err)
{
    pcre2_code *code = compile_code(text, n, PCRE2_LITERAL, "(literal)", err);
    return code != NULL ? create(code, "(literal)", out, err) : SHD_EDATA;
}

void shd_regex_free(shd_regex *regex)
{
    if (regex != NULL) {
        pcre2_code_free(regex->quick.code);
        pcre2_code_free(regex->watched.code);
        free(regex);
    }
}

int shd_regex_forgets(const shd_regex *regex)
{
    return regex->forgets;
}

/* ---- matching ---- */

static int on_callout(pcre2_callout_block *block, void *arg)
{
    (void)block;
    shd_matcher *m = arg;
    int rc = shd_ends_look(m->ends, LOOK_STEPS, m->err);
    if (rc == 0 && ++m->steps > MAX_STEPS) {
        rc = shd_fail(m->err, SHD_EDATA,
                      "the tokenizer's pattern takes more than %u steps for one word of this text",
                      MAX_STEPS);
    }
    m->ended = rc;
    return rc < 0 ? PCRE2_ERROR_CALLOUT : 0;
}

static pcre2_match_context *make_context(shd_matcher *m, uint32_t limit)
{
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(context, limit);
    pcre2_set_heap_limit(context, HEAP_LIMIT_KIB);
    pcre2_set_callout(context, on_callout, m);
    pcre2_jit_stack_assign(context, NULL, m->stack);
    return context;
}

shd_matcher *shd_matcher_create(shd_ends *ends)
{
    shd_matcher *m = shd_calloc(1, sizeof(*m));
    m->ends = ends;
    m->data = pcre2_match_data_create(1, NULL);
    m->stack = pcre2_jit_stack_create(32u << 10, JIT_STACK_MAX, NULL);
    m->quick = make_context(m, QUICK_STEPS);
    m->watched = make_context(m, MATCH_LIMIT);
    return m;
}

void shd_matcher_free(shd_matcher *m)
{
    if (m != NULL) {
        pcre2_match_data_free(m->data);
        pcre2_match_context_free(m->quick);
        pcre2_match_context_free(m->watched);
        pcre2_jit_stack_free(m->stack);
        free(m);
    }
}

static int match(const shd_matcher *m, const program *p, pcre2_match_context *context,
                 const char *text, size_t n, size_t from, int partial)
{
    const PCRE2_SPTR subject = (PCRE2_SPTR)text;
    const uint32_t flags = partial ? PCRE2_PARTIAL_HARD : 0;
    return p->jit ? pcre2_jit_match(p->code, subject, n, from, flags, m->data, context)
                  : pcre2_match(p->code, subject, n, from, flags | PCRE2_NO_UTF_CHECK, m->data,
                                context);
}

/* The begin of the character that text[at] is of. */
static size_t character(const char *text, size_t at)
{
    while (at > 0 && (text[at] & 0xc0) == 0x80) {
        at--;
    }
    return at;
}

/* Looks in one window after the other. As shd_matcher_find; QUICK_GAVE_UP: there is no match that
 * begins before *from, and it cannot tell about the rest. */
#define QUICK_GAVE_UP 3
static int find_quickly(shd_matcher *m, const shd_regex *regex, const char *text, size_t n,
                        size_t *from, int open)
{
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
    for (;;) {
        const int whole = n - *from <= WINDOW;
        const size_t end = whole ? n : character(text, *from + WINDOW);
        const int rc = match(m, &regex->quick, m->quick, text, end, *from, open || !whole);
        if (rc == PCRE2_ERROR_PARTIAL && !whole) {
            if (at[0] <= *from) {
                return QUICK_GAVE_UP;
            }
            *from = character(text, at[0]);
        } else if (rc == PCRE2_ERROR_NOMATCH && !whole) {
            *from = end; /* what begins before would have come upon the end */
        } else if (rc > 0 || rc == PCRE2_ERROR_PARTIAL || rc == PCRE2_ERROR_NOMATCH) {
            return rc;
        } else {
            return QUICK_GAVE_UP;
        }
    }
}

static int find_watched(shd_matcher *m, const shd_regex *regex, const char *text, size_t n,
                        size_t from, int open)
{
    int rc = match(m, &regex->watched, m->watched, text, n, from, open);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) { /* the interpreter keeps its state on the heap */
        const uint32_t flags = (open ? PCRE2_PARTIAL_HARD : 0) | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT;
        rc =
            pcre2_match(regex->watched.code, (PCRE2_SPTR)text, n, from, flags, m->data, m->watched);
    }
    return rc;
}

int shd_matcher_find(shd_matcher *m, const shd_regex *regex, const char *text, size_t n,
                     size_t from, int open, size_t *begin, size_t *end, shd_error *err)
{
    shd_error own;
    m->err = err != NULL ? err : &own;
    m->steps = 0;
    m->ended = 0;
    int rc = QUICK_GAVE_UP;
    if (regex->quick.code != NULL) {
        rc = find_quickly(m, regex, text, n, &from, open);
    }
    if (rc == QUICK_GAVE_UP && m->ended == 0) {
        rc = find_watched(m, regex, text, n, from, open);
    }
    if (m->ended < 0) {
        return m->ended;
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
        return 0;
    }
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
    if (rc == PCRE2_ERROR_PARTIAL) {
        *begin = at[0];
        return SHD_REGEX_PARTIAL;
    }
    if (rc < 0) {
        PCRE2_UCHAR message[128];
        pcre2_get_error_message(rc, message, sizeof(message));
        return shd_fail(err, SHD_EDATA, "the tokenizer's pattern fails on this text: %s",
                        (const char *)message);
    }
    *begin = at[0];
    *end = at[1];
    return 1;
}

#include "client/options.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/mem.h"
#include "client/units.h"

void *shc_keep_ptr(shc_keep *keep, void *ptr)
{
    keep->ptrs = shc_reallocarray(keep->ptrs, keep->n + 1, sizeof *keep->ptrs);
    keep->ptrs[keep->n++] = ptr;
    return ptr;
}

void shc_keep_fini(shc_keep *keep)
{
    for (size_t i = 0; i < keep->n; i++)
        free(keep->ptrs[i]);
    free(keep->ptrs);
    *keep = (shc_keep){0};
}

void shc_given_fini(shc_given *given)
{
    for (size_t t = 0; t < SHC_MAX_TABLES; t++)
        free(given->flags[t]);
    *given = (shc_given){0};
}

static void bad_value(const shc_option *option, const char *text, const char *want,
                      shc_buf *message)
{
    shc_buf_printf(message, "--%s: \"", option->name);
    shc_text_clean(message, text);
    shc_buf_printf(message, "\" is not %s; give %s", want, want);
}

/* ---- numbers: digits and nothing else, so that "1e3", "-3", " 5" and "5x" are errors ---- */

static int parse_whole(const char *text, size_t n, uint64_t max, uint64_t *out)
{
    uint64_t value = 0;

    if (!n)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        const unsigned digit = (unsigned)(text[i] - '0');
        if (value > (max - digit) / 10)
            return -1;
        value = value * 10 + digit;
    }
    *out = value;
    return 0;
}

static int set_whole(const shc_option *option, const char *text, void *target, shc_buf *message)
{
    uint64_t max = option->type == SHC_U64 ? UINT64_MAX : UINT32_MAX, value;

    if (option->max > 0)
        max = (uint64_t)option->max;
    if (parse_whole(text, strlen(text), max, &value) || value < (uint64_t)option->min) {
        char want[96];
        snprintf(want, sizeof want, "a whole number from %.0f to %llu", option->min,
                 (unsigned long long)max);
        bad_value(option, text, want, message);
        return -1;
    }
    if (option->type == SHC_U64)
        *(uint64_t *)target = value;
    else
        *(uint32_t *)target = (uint32_t)value;
    return 0;
}

static int parse_num(const shc_option *option, const char *text, double *out)
{
    char *end;

    /* strtod also takes blanks, hexadecimal, "nan" and "inf". */
    if (!*text || strspn(text, "0123456789+-.eE") != strlen(text))
        return -1;
    errno = 0;
    *out = strtod(text, &end);
    if (*end || !isfinite(*out) || *out < option->min)
        return -1;
    return option->max > 0 && *out > option->max ? -1 : 0;
}

static int set_num(const shc_option *option, const char *text, void *target, shc_buf *message)
{
    double value;

    if (parse_num(option, text, &value)) {
        char want[96];
        if (option->max > 0)
            snprintf(want, sizeof want, "a number from %g to %g", option->min, option->max);
        else
            snprintf(want, sizeof want, "a number not below %g", option->min);
        bad_value(option, text, want, message);
        return -1;
    }
    *(double *)target = value;
    return 0;
}

static int set_list(const shc_option *option, const char *text, void *base, shc_keep *keep,
                    shc_buf *message)
{
    uint32_t *list = NULL;
    size_t n = 0;

    for (const char *p = text;; p++) {
        const size_t len = strcspn(p, ",");
        uint64_t value;
        if (parse_whole(p, len, UINT32_MAX, &value) || value < (uint64_t)option->min) {
            bad_value(option, text, "a list of whole numbers such as 1,2,3", message);
            free(list);
            return -1;
        }
        list = shc_reallocarray(list, n + 1, sizeof *list);
        list[n++] = (uint32_t)value;
        p += len;
        if (!*p)
            break;
    }
    if (option->max > 0 && (double)n != option->max) {
        char want[64];
        snprintf(want, sizeof want, "a list of %.0f whole numbers", option->max);
        bad_value(option, text, want, message);
        free(list);
        return -1;
    }
    *(uint32_t **)((char *)base + option->at) = shc_keep_ptr(keep, list);
    *(size_t *)((char *)base + option->has) = n;
    return 0;
}

static int set_size(const shc_option *option, const char *text, uint64_t *target, shc_buf *message)
{
    static const struct {
        const char *suffix;
        uint64_t factor;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"K", 1000},
        {"M", 1000000},
        {"G", 1000000000},
        {"T", 1000000000000},
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
        {"KiB", UINT64_C(1) << 10},
        {"MiB", UINT64_C(1) << 20},
        {"GiB", UINT64_C(1) << 30},
        {"TiB", UINT64_C(1) << 40},
    };
    const size_t digits = strspn(text, "0123456789");
    uint64_t value;

    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(text + digits, units[i].suffix) ||
            parse_whole(text, digits, UINT64_MAX / units[i].factor, &value))
            continue;
        value *= units[i].factor;
        if ((double)value < option->min || (option->max > 0 && (double)value > option->max))
            break;
        *target = value;
        return 0;
    }
    char want[96];
    snprintf(want, sizeof want, "a size from %.0f bytes such as 5GB or 512MiB", option->min);
    bad_value(option, text, want, message);
    return -1;
}

/* A number and one of the units, as given; NAN for what is neither. */
static double parse_unit(const char *text, const char *const *units, const double *factors)
{
    const size_t n = strspn(text, "0123456789.eE+-");
    char number[64], *end;

    if (!n || n >= sizeof number || strchr("eE+-", text[0]))
        return NAN;
    memcpy(number, text, n);
    number[n] = '\0';
    const double value = strtod(number, &end);
    for (size_t i = 0; !*end && units[i]; i++)
        if (!strcmp(text + n, units[i]))
            return value * factors[i];
    return NAN;
}

static int set_rate(const shc_option *option, const char *text, double *target, shc_buf *message)
{
    static const char *const units[] = {"",   "K",  "M",  "G",  "T", "P", "KB",
                                        "MB", "GB", "TB", "PB", "B", NULL};
    static const double factors[] = {1, 1e3, 1e6, 1e9, 1e12, 1e15, 1e3, 1e6, 1e9, 1e12, 1e15, 1};
    const double value = parse_unit(text, units, factors);

    if (!(value > 0) || !isfinite(value)) {
        bad_value(option, text, "a number per second above 0 such as 50G or 989T", message);
        return -1;
    }
    *target = value;
    return 0;
}

static int set_seconds(const shc_option *option, const char *text, double *target, shc_buf *message)
{
    static const char *const units[] = {"", "s", "ms", "us", "ns", NULL};
    static const double factors[] = {1, 1, 1e-3, 1e-6, 1e-9};
    const double value = parse_unit(text, units, factors);

    if (!(value >= 0) || !isfinite(value)) {
        bad_value(option, text, "a time such as 5us, 0.1ms or 2s", message);
        return -1;
    }
    *target = value;
    return 0;
}

/* Appends to the list; what it pointed to before stays kept. */
static int add_texts(const shc_option *option, const char *text, void *base, shc_keep *keep,
                     shc_buf *message)
{
    char ***list = (char ***)((char *)base + option->at);
    size_t *n = (size_t *)((char *)base + option->has);
    const int split = option->type == SHC_WORDS;

    for (const char *p = text;; p++) {
        const size_t len = split ? strcspn(p, ",") : strlen(p);
        if (!len) {
            bad_value(option, text, "a list such as one,two", message);
            return -1;
        }
        char **longer = shc_keep_ptr(keep, shc_calloc(*n + 1, sizeof *longer));
        if (*n)
            memcpy(longer, *list, *n * sizeof *longer);
        longer[(*n)++] = shc_keep_ptr(keep, shc_asprintf("%.*s", (int)len, p));
        *list = longer;
        p += len;
        if (!*p)
            return 0;
    }
}

/* ---- paths ---- */

/* Whether a value that may be a name or a path is one. */
static int is_path(const char *text)
{
    struct stat st;

    if (strchr(text, '/') || !strcmp(text, ".") || !strcmp(text, ".."))
        return 1;
    return !stat(text, &st) && (S_ISDIR(st.st_mode) || strchr(text, '.'));
}

/* The directory is resolved, the last part stays as it is (it may not exist yet). */
static char *absolute(const char *given)
{
    size_t n = strlen(given);
    while (n > 1 && given[n - 1] == '/')
        n--;
    char *text = shc_asprintf("%.*s", (int)n, given);
    const char *slash = strrchr(text, '/');
    char *dir = slash ? shc_asprintf("%.*s", (int)(slash - text) + 1, text) : shc_strdup(".");
    const char *last = slash ? slash + 1 : text;
    /* "/", "." and "..": all of it is a directory. */
    const int whole = !*last || !strcmp(last, ".") || !strcmp(last, "..");
    char *real = realpath(whole ? text : dir, NULL);
    char *out = NULL;

    if (real)
        out = whole ? shc_strdup(real) : shc_asprintf("%s/%s", strcmp(real, "/") ? real : "", last);
    const int number = errno;
    free(real);
    free(dir);
    free(text);
    errno = number;
    return out;
}

static int set_path(const shc_option *option, const char *text, char **target, shc_keep *keep,
                    shc_buf *message)
{
    if (option->type == SHC_PRESET && !is_path(text)) {
        *target = (char *)text;
        return 0;
    }
    char *path = absolute(text);
    const char *why = NULL, *todo = "give the path of a readable file";
    if (!path) {
        why = strerror(errno);
        todo = "give a path whose directory exists";
    } else if (option->type == SHC_FILE) {
        struct stat st;
        const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &st))
            why = strerror(errno);
        else if (S_ISDIR(st.st_mode))
            why = "it is a directory";
        else if (S_ISREG(st.st_mode) && !st.st_size)
            why = "the file is empty";
        if (fd >= 0)
            close(fd);
    }
    if (why) {
        shc_buf_printf(message, "--%s: ", option->name);
        shc_text_clean(message, path ? path : text);
        shc_buf_printf(message, ": %s; %s", why, todo);
        free(path);
        return -1;
    }
    *target = shc_keep_ptr(keep, path);
    return 0;
}

int shc_option_set(const shc_option *option, const char *text, void *base, shc_keep *keep,
                   shc_buf *message)
{
    void *target = (char *)base + option->at;
    int rc = 0;

    if (!*text && option->type != SHC_BOOL && option->type != SHC_RAW_TEXT) {
        shc_buf_printf(message, "--%s: the value is empty; give %s", option->name, option->value);
        return -1;
    }
    switch (option->type) {
    case SHC_BOOL:
        *(int *)target = 1;
        break;
    case SHC_TEXT:
    case SHC_RAW_TEXT:
        *(char **)target = (char *)text;
        break;
    case SHC_FILE:
    case SHC_PATH:
    case SHC_PRESET:
        rc = set_path(option, text, target, keep, message);
        break;
    case SHC_U32:
    case SHC_U64:
        rc = set_whole(option, text, target, message);
        break;
    case SHC_NUM:
    case SHC_OPT_NUM:
        rc = set_num(option, text, target, message);
        break;
    case SHC_U32_LIST:
        rc = set_list(option, text, base, keep, message);
        break;
    case SHC_ON_OFF:
        if (strcmp(text, "on") && strcmp(text, "off")) {
            bad_value(option, text, "on or off", message);
            return -1;
        }
        *(int *)target = !strcmp(text, "on");
        break;
    case SHC_SIZE:
        rc = set_size(option, text, target, message);
        break;
    case SHC_RATE:
        rc = set_rate(option, text, target, message);
        break;
    case SHC_SECONDS:
        rc = set_seconds(option, text, target, message);
        break;
    case SHC_TEXTS:
    case SHC_WORDS:
        return add_texts(option, text, base, keep, message);
    }
    if (!rc && option->mark)
        *(int *)((char *)base + option->has) = option->mark;
    return rc;
}

const shc_option *shc_option_find(const shc_option_table *table, const char *name, size_t n)
{
    for (size_t i = 0; i < table->n; i++) {
        const char *have = table->options[i].name;
        size_t k = 0;
        while (k < n && have[k] && (have[k] == name[k] || (have[k] == '-' && name[k] == '_')))
            k++;
        if (k == n && !have[k])
            return &table->options[i];
    }
    return NULL;
}

/* Levenshtein distance, two rows; names are short. */
static size_t distance(const char *a, size_t na, const char *b)
{
    enum { MAX = 64 };
    const size_t nb = strlen(b);
    size_t row[MAX + 1];

    if (nb > MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[nb];
}

static void unknown_flag(const shc_syntax *syntax, const char *name, size_t n, shc_buf *message)
{
    const char *nearest = NULL;
    size_t least = 3;

    for (size_t t = 0; syntax->tables[t]; t++)
        for (size_t i = 0; i < syntax->tables[t]->n; i++) {
            const char *have = syntax->tables[t]->options[i].name;
            const size_t d = distance(name, n, have);
            if (d < least) {
                least = d;
                nearest = have;
            }
        }
    char *text = shc_asprintf("%.*s", (int)n, name);
    shc_buf_puts(message, "unknown flag --");
    shc_text_clean(message, text);
    free(text);
    if (nearest)
        shc_buf_printf(message, "; did you mean --%s? ", nearest);
    else
        shc_buf_puts(message, "; ");
    shc_buf_printf(message, "see shardctl%s%s --help", *syntax->name ? " " : "", syntax->name);
}

/* The name of the flag that a letter stands for, or NULL. */
static const char *name_of_letter(const shc_syntax *syntax, char letter)
{
    for (size_t t = 0; syntax->tables[t]; t++)
        for (size_t i = 0; i < syntax->tables[t]->n; i++)
            if (syntax->tables[t]->options[i].letter == letter)
                return syntax->tables[t]->options[i].name;
    return NULL;
}

/* One flag at argv[*i], called `name`, perhaps with "=value"; moves *i over its value. */
static int parse_flag(const shc_syntax *syntax, const char *name, int argc, char **argv, int *i,
                      void *args, shc_keep *keep, shc_given *given, shc_buf *message)
{
    const size_t n = strcspn(name, "=");
    const char *text = name[n] == '=' ? name + n + 1 : NULL;

    for (size_t t = 0; syntax->tables[t]; t++) {
        const shc_option_table *table = syntax->tables[t];
        const shc_option *option = memchr(name, '_', n) ? NULL : shc_option_find(table, name, n);
        if (!option)
            continue;
        void *base = (char *)args + table->base;
        unsigned char *seen = &given->flags[t][option - table->options];
        if (*seen && option->type != SHC_TEXTS && option->type != SHC_WORDS) {
            shc_buf_printf(message, "--%s is given twice; give it once", option->name);
            return -1;
        }
        *seen = 1;
        if (option->type == SHC_BOOL) {
            if (text) {
                shc_buf_printf(message, "--%s takes no value; leave \"=", option->name);
                shc_text_clean(message, text);
                shc_buf_puts(message, "\" out");
                return -1;
            }
            return shc_option_set(option, "", base, keep, message);
        }
        const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
        if (!text && option->type == SHC_OPT_NUM) {
            /* A following operand is not its value unless it looks like a number. */
            if (!next || !strchr("0123456789.", *next)) {
                if (option->mark)
                    *(int *)((char *)base + option->has) = option->mark;
                return 0;
            }
        }
        if (!text) {
            if (!next || !strncmp(next, "--", 2)) {
                shc_buf_printf(message, "--%s needs a value; give --%s %s", option->name,
                               option->name, option->value);
                return -1;
            }
            text = next;
            ++*i;
        }
        return shc_option_set(option, text, base, keep, message);
    }
    unknown_flag(syntax, name, n, message);
    return -1;
}

int shc_options_parse(const shc_syntax *syntax, int argc, char **argv, void *args, shc_keep *keep,
                      shc_given *given, shc_buf *message)
{
    size_t operand = 0;
    int flags = 1;

    for (size_t t = 0; syntax->tables[t]; t++)
        given->flags[t] = shc_calloc(syntax->tables[t]->n, 1);
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i], *name;
        if (flags && !strcmp(arg, "--")) {
            flags = 0;
        } else if (flags && (!strcmp(arg, "--help") || !strcmp(arg, "-h"))) {
            given->help = 1;
            return 0;
        } else if (flags && !strncmp(arg, "--", 2)) {
            if (parse_flag(syntax, arg + 2, argc, argv, &i, args, keep, given, message))
                return -1;
        } else if (flags && arg[0] == '-' && arg[1] && !arg[2] &&
                   (name = name_of_letter(syntax, arg[1]))) {
            if (parse_flag(syntax, name, argc, argv, &i, args, keep, given, message))
                return -1;
        } else if (flags && arg[0] == '-' && arg[1]) {
            shc_buf_puts(message, "unknown flag ");
            shc_text_clean(message, arg);
            shc_buf_printf(message, "; flags begin with two dashes, see shardctl%s%s --help",
                           *syntax->name ? " " : "", syntax->name);
            return -1;
        } else {
            if (!syntax->operands[operand].name || !*arg) {
                shc_buf_puts(message, *arg ? "unexpected \"" : "empty operand \"");
                shc_text_clean(message, arg);
                shc_buf_printf(message, "\"; see shardctl %s --help", syntax->name);
                return -1;
            }
            *(char **)((char *)args + syntax->operands[operand].at) = (char *)arg;
            operand++;
        }
    }
    if (syntax->operands[operand].name && syntax->operands[operand].required) {
        shc_buf_printf(message, "%s is missing; see shardctl %s --help",
                       syntax->operands[operand].name, syntax->name);
        return -1;
    }
    return 0;
}

/* ---- help ---- */

/* Appends words from column `indent`, the first line having reached it already. */
static void wrap(const char *text, size_t indent, size_t width, shc_buf *out)
{
    size_t column = indent;

    while (*text) {
        const size_t n = strcspn(text, " ");
        if (column > indent && column + 1 + n > width) {
            shc_buf_puts(out, "\n");
            shc_buf_fill(out, ' ', indent);
            column = indent;
        } else if (column > indent) {
            shc_buf_puts(out, " ");
            column++;
        }
        shc_buf_add(out, text, n);
        column += n;
        text += n + (text[n] == ' ');
    }
    shc_buf_puts(out, "\n");
}

void shc_options_help(const shc_syntax *syntax, size_t width, shc_buf *out)
{
    enum { COLUMN = 34 };

    shc_buf_printf(out, "usage: shardctl%s%s", *syntax->name ? " " : "", syntax->name);
    for (const shc_operand *o = syntax->operands; o->name; o++)
        shc_buf_printf(out, o->required ? " %s" : " [%s]", o->name);
    shc_buf_puts(out, " [flags]\n\n");
    wrap(syntax->about, 0, width, out);
    shc_buf_puts(out, "\n");
    for (size_t t = 0; syntax->tables[t]; t++)
        for (size_t i = 0; i < syntax->tables[t]->n; i++) {
            const shc_option *o = &syntax->tables[t]->options[i];
            const size_t start = out->len;
            if (o->letter)
                shc_buf_printf(out, "  -%c, --%s", o->letter, o->name);
            else
                shc_buf_printf(out, "  --%s", o->name);
            if (o->value)
                shc_buf_printf(out, o->type == SHC_OPT_NUM ? " [%s]" : " %s", o->value);
            size_t column = out->len - start;
            if (column + 2 > COLUMN) {
                shc_buf_puts(out, "\n");
                column = 0;
            }
            shc_buf_fill(out, ' ', COLUMN - column);
            wrap(o->help, COLUMN, width, out);
        }
}

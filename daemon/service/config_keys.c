#include "daemon/service/config_keys.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/shard/strategy.h"

#define KI UINT64_C(1024)
#define AT(field) offsetof(shd_config, field)
#define ANY UINT64_MAX

const shd_key shd_keys[SHD_N_KEYS] = {
    {"socket", NULL, SHD_KEY_WORD, AT(socket), 0, 0, "/run/shardd/shardd.sock", 0,
     "path of the local socket (unused under socket activation)"},
    {"socket_mode", NULL, SHD_KEY_MODE, AT(socket_mode), 0, 0777, "0660", 0,
     "permission bits of the socket, octal"},
    {"socket_group", NULL, SHD_KEY_TEXT, AT(socket_group), 0, 0, "", 0,
     "group of the socket; empty: the daemon's own"},
    {"state_dir", NULL, SHD_KEY_WORD, AT(state_dir), 0, 0, "/var/lib/shardd", 0,
     "directory that belongs to this daemon alone"},
    {"device", NULL, SHD_KEY_WORD, AT(device), 0, 0, "cpu", 0, "what ranks compute on: cpu"},
    {"ranks", NULL, SHD_KEY_COUNT, AT(ranks), 1, SHD_MAX_RANKS, NULL, 0,
     "ranks; computed: CPUs / threads_per_rank, at most 64"},
    {"threads_per_rank", NULL, SHD_KEY_COUNT, AT(threads_per_rank), 1, 1024, "1", 0,
     "threads that share the operations of a rank"},
    {"stream_threads", NULL, SHD_KEY_WORD, AT(stream_threads), 0, 0, "auto", 0,
     "threads of their own for what a rank gathers and reduces beside compute: yes, no, or auto: "
     "unless ranks * threads_per_rank is more than the CPUs"},
    {"memory_per_rank", NULL, SHD_KEY_BYTES, AT(memory_per_rank), 1024 * KI, ANY >> 1, NULL, 0,
     "memory that jobs may plan on a rank; computed: 0.8 of what is free at start / ranks"},
    {"log_level", NULL, SHD_KEY_LEVEL, AT(log_level), 0, 0, "info", 1,
     "error, warning, notice, info or debug"},
    {"admin_users", "--admin-user", SHD_KEY_NAMES, AT(admin_users), 0, 0, "", 1,
     "users that see and manage every job"},
    {"admin_groups", "--admin-group", SHD_KEY_NAMES, AT(admin_groups), 0, 0, "", 1,
     "groups whose members do"},
    {"allow_groups", "--allow-group", SHD_KEY_NAMES, AT(allow_groups), 0, 0, "", 1,
     "groups that may use the daemon; none: whoever can connect to the socket"},
    {"share_with_group", NULL, SHD_KEY_YESNO, AT(share_with_group), 0, 0, "no", 1,
     "members of a job owner's group may see the job"},
    {"data_roots", "--data-root", SHD_KEY_PATHS, AT(data_roots), 0, 0, "", 1,
     "directories beneath which clients may name files; none: no files"},
    {"max_jobs", NULL, SHD_KEY_COUNT, AT(max_jobs), 1, 100000, "64", 0,
     "jobs, finished ones included"},
    {"max_jobs_per_user", NULL, SHD_KEY_COUNT, AT(max_jobs_per_user), 1, 100000, "32", 0,
     "jobs of one user"},
    {"max_message", NULL, SHD_KEY_BYTES, AT(max_message), 4 * KI, 1024 * 1024 * KI, "64M", 0,
     "one request"},
    {"max_connections", NULL, SHD_KEY_COUNT, AT(max_connections), 1, 100000, "256", 0,
     "connections; one user other than root gets 3/4 of them at most"},
    {"max_calls", NULL, SHD_KEY_COUNT, AT(max_calls), 1, 100000, "64", 0,
     "calls in flight on one connection"},
    {"max_queue", NULL, SHD_KEY_COUNT, AT(max_queue), 1, 100000, "64", 0,
     "client calls that wait for the ranks of one job"},
    {"max_stream_buffer", NULL, SHD_KEY_BYTES, AT(max_stream_buffer), KI, 1024 * 1024 * KI, "1M", 0,
     "messages that wait for a slow reader of a stream"},
    {"stop_grace_ms", NULL, SHD_KEY_COUNT, AT(stop_grace_ms), 0, 86400000, "60000", 0,
     "milliseconds that running steps and calls get at a stop; then they are cancelled"},
    {"watch_history", NULL, SHD_KEY_COUNT, AT(watch_history), 1, 100000000, "1000000", 0,
     "step results kept of each job"},
    {"token_cache", NULL, SHD_KEY_BYTES, AT(token_cache), 0, ANY >> 1, "32G", 0,
     "tokenized texts kept in state_dir, the least recently used go first; 0: no limit"},
};

static int bad_value(shd_error *err, const shd_place *at, const char *value, const char *want)
{
    if (at->file != NULL) {
        return shd_fail(err, SHD_EINVAL, "%s:%u: %s = '%.120s': want %s", at->file, at->line,
                        at->word, value, want);
    }
    return shd_fail(err, SHD_EINVAL, "%s '%.120s': want %s", at->word, value, want);
}

/* ---- values ---- */

int shd_key_parse_whole(const char *s, int base, uint64_t *out, const char **end)
{
    if (*s < '0' || *s > '9') { /* strtoull would take blanks and signs */
        return -1;
    }
    char *stop;
    errno = 0;
    const unsigned long long v = strtoull(s, &stop, base);
    *end = stop;
    *out = v;
    return errno == 0 ? 0 : -1;
}

static int parse_bytes(const char *s, uint64_t *out)
{
    const char *end;
    if (shd_key_parse_whole(s, 10, out, &end) < 0) {
        return -1;
    }
    unsigned shift = 0;
    switch (*end) {
    case 'K':
    case 'k':
        shift = 10;
        break;
    case 'M':
    case 'm':
        shift = 20;
        break;
    case 'G':
    case 'g':
        shift = 30;
        break;
    case 'T':
    case 't':
        shift = 40;
        break;
    default:
        break;
    }
    if (*out > UINT64_MAX >> shift) {
        return -1;
    }
    *out <<= shift;
    return end[shift != 0] == '\0' ? 0 : -1;
}

static void format_bytes(char *out, size_t size, uint64_t v)
{
    static const char suffix[] = {0, 'K', 'M', 'G', 'T', 0};
    int i = 0;
    while (v != 0 && v % KI == 0 && suffix[i + 1] != 0) {
        v /= KI;
        i++;
    }
    if (suffix[i] == 0) {
        snprintf(out, size, "%" PRIu64, v);
    } else {
        snprintf(out, size, "%" PRIu64 "%c", v, suffix[i]);
    }
}

void shd_key_clear_list(shd_string_list *list)
{
    for (uint32_t i = 0; i < list->n; i++) {
        free(list->items[i]);
    }
    free(list->items);
    *list = (shd_string_list){0};
}

static int list_add(const shd_key *k, shd_string_list *list, const char *item, size_t n,
                    const shd_place *at, shd_error *err)
{
    char *copy = shd_malloc(n + 1);
    memcpy(copy, item, n);
    copy[n] = '\0';
    const int is_path = k->type == SHD_KEY_PATHS;
    if (n == 0 || n >= PATH_MAX || (is_path && copy[0] != '/')) {
        const int rc = bad_value(err, at, copy, is_path ? "an absolute directory" : "a name");
        free(copy);
        return rc;
    }
    list->items = shd_reallocarray(list->items, list->n + 1, sizeof(char *));
    list->items[list->n++] = copy;
    return SHD_OK;
}

/* "a, b": items between commas, blanks around them dropped; "" is the empty list. */
static int list_set(const shd_key *k, shd_string_list *list, const char *value, const shd_place *at,
                    shd_error *err)
{
    shd_key_clear_list(list);
    if (value[strspn(value, " \t")] == '\0') {
        return SHD_OK;
    }
    for (const char *s = value;; s++) {
        s += strspn(s, " \t");
        const char *comma = s + strcspn(s, ",");
        size_t n = (size_t)(comma - s);
        while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t')) {
            n--;
        }
        SHD_TRY(list_add(k, list, s, n, at, err));
        if (*comma == '\0') {
            return SHD_OK;
        }
        s = comma;
    }
}

static int parse_yesno(const char *s, uint32_t *out)
{
    static const char *const words[][2] = {
        {"no", "yes"}, {"false", "true"}, {"off", "on"}, {"0", "1"}};
    for (size_t i = 0; i < 4; i++) {
        for (uint32_t v = 0; v < 2; v++) {
            if (strcmp(s, words[i][v]) == 0) {
                *out = v;
                return 0;
            }
        }
    }
    return -1;
}

int shd_key_set(shd_config *config, const shd_key *k, const char *value, const shd_place *at,
                shd_error *err)
{
    void *field = (char *)config + k->offset;
    char want[128], low[32], high[32];
    uint64_t v;
    const char *end;
    switch (k->type) {
    case SHD_KEY_WORD:
        if (value[0] == '\0') {
            return bad_value(err, at, value, "something");
        }
        __attribute__((fallthrough));
    case SHD_KEY_TEXT: {
        char **text = field;
        free(*text);
        *text = shd_strdup(value);
        return SHD_OK;
    }
    case SHD_KEY_COUNT:
        if (shd_key_parse_whole(value, 10, &v, &end) < 0 || *end != '\0' || v < k->min ||
            v > k->max) {
            snprintf(want, sizeof(want), "a whole number from %" PRIu64 " to %" PRIu64, k->min,
                     k->max);
            return bad_value(err, at, value, want);
        }
        *(uint32_t *)field = (uint32_t)v;
        return SHD_OK;
    case SHD_KEY_MODE:
        if (shd_key_parse_whole(value, 8, &v, &end) < 0 || *end != '\0' || v > k->max) {
            return bad_value(err, at, value, "permission bits in octal, 0000 to 0777");
        }
        *(uint32_t *)field = (uint32_t)v;
        return SHD_OK;
    case SHD_KEY_BYTES:
        if (parse_bytes(value, &v) < 0 || v < k->min || v > k->max) {
            format_bytes(low, sizeof(low), k->min);
            format_bytes(high, sizeof(high), k->max);
            snprintf(want, sizeof(want), "bytes from %s to %s; K, M, G and T are powers of 1024",
                     low, high);
            return bad_value(err, at, value, want);
        }
        *(uint64_t *)field = v;
        return SHD_OK;
    case SHD_KEY_LEVEL: {
        shd_log_level level;
        if (shd_log_level_parse(value, &level, NULL) < 0) {
            return bad_value(err, at, value, "error, warning, notice, info or debug");
        }
        *(uint32_t *)field = level;
        return SHD_OK;
    }
    case SHD_KEY_YESNO:
        if (parse_yesno(value, field) < 0) {
            return bad_value(err, at, value, "yes or no");
        }
        return SHD_OK;
    case SHD_KEY_NAMES:
    case SHD_KEY_PATHS:
        return list_set(k, field, value, at, err);
    }
    return shd_fail(err, SHD_EINTERNAL, "key %s has no type", k->name);
}

int shd_key_add(shd_config *config, const shd_key *k, const char *item, const shd_place *at,
                shd_error *err)
{
    return list_add(k, (shd_string_list *)(void *)((char *)config + k->offset), item, strlen(item),
                    at, err);
}

/* ---- help ---- */

void shd_config_help(FILE *out)
{
    fputs(
        "usage: shardd [--config FILE] [--KEY VALUE] ...\n"
        "\n"
        "Owns the state of transformer models that are trained sharded over ranks, and serves\n"
        "clients (shardctl) on a local socket until SIGTERM. SIGHUP reloads the configuration.\n"
        "\n"
        "  --config FILE    INI file of the keys below (default: " SHD_CONFIG_DEFAULT_FILE "\n"
        "                   where it exists); flags win\n"
        "  --check-config   read everything, say whether it is valid, and stop\n"
        "  --help, --version\n"
        "\n"
        "Every key is a flag too: `threads_per_rank = 2` is `--threads-per-rank 2`. Lists are\n"
        "comma-separated; --data-root, --admin-user, --admin-group and --allow-group add one item\n"
        "each. Keys marked * take effect on SIGHUP.\n"
        "\n",
        out);
    for (size_t i = 0; i < SHD_N_KEYS; i++) {
        const shd_key *k = &shd_keys[i];
        fprintf(out, "  %-18s%c %s [%s]\n", k->name, k->reload ? '*' : ' ', k->help,
                k->initial == NULL   ? "computed"
                : k->initial[0] == 0 ? "empty"
                                     : k->initial);
    }
}

#include <ini.h>
#include <string.h>

#include "daemon/service/config_keys.h"

#define MAX_LINE 4096

typedef struct parser {
    shd_config *config;
    const char *name;
    const char *text;
    size_t size, at;
    unsigned line;             /* of the line that inih was given last */
    unsigned seen[SHD_N_KEYS]; /* line of the first occurrence */
    int rc;
    shd_error *err;
} parser;

/* inih reports a section with its first key only and ignores what follows "]". */
static int is_section_ok(const char *line)
{
    line += strspn(line, " \t");
    if (line[0] != '[') {
        return 1;
    }
    if (strncmp(line, "[shardd]", 8) != 0) {
        return 0;
    }
    line += 8;
    line += strspn(line, " \t\r\n");
    return *line == '\0' || *line == ';' || *line == '#';
}

/* Gives inih one line at a time and so knows the line of what inih reports; refuses what inih
 * would cut or skip in silence. */
static char *read_line(char *out, int room, void *arg)
{
    parser *p = arg;
    if (p->at == p->size || p->rc < 0) {
        return NULL;
    }
    const char *start = p->text + p->at;
    const char *newline = memchr(start, '\n', p->size - p->at);
    const size_t n = newline != NULL ? (size_t)(newline - start) : p->size - p->at;
    p->at += n + (newline != NULL);
    p->line++;
    if (memchr(start, '\0', n) != NULL) {
        p->rc = shd_fail(p->err, SHD_EINVAL, "%s:%u: holds a NUL byte; this is not a text file",
                         p->name, p->line);
        return NULL;
    }
    if (n + 1 > (size_t)room - 1 || n > MAX_LINE) {
        p->rc = shd_fail(p->err, SHD_EINVAL, "%s:%u: has %zu bytes; a line may have %d", p->name,
                         p->line, n, MAX_LINE);
        return NULL;
    }
    memcpy(out, start, n);
    out[n] = '\n';
    out[n + 1] = '\0';
    if (!is_section_ok(out)) {
        p->rc =
            shd_fail(p->err, SHD_EINVAL, "%s:%u: unknown section '%.*s'; the only one is [shardd]",
                     p->name, p->line, (int)(n > 60 ? 60 : n), out);
        return NULL;
    }
    return out;
}

static int unknown_key(parser *p, const char *name)
{
    char list[420] = "";
    for (size_t i = 0; i < SHD_N_KEYS; i++) {
        const size_t used = strlen(list);
        snprintf(list + used, sizeof(list) - used, "%s%s", i == 0 ? "" : ", ", shd_keys[i].name);
    }
    return shd_fail(p->err, SHD_EINVAL, "%s:%u: unknown key '%.60s'; there are %s", p->name,
                    p->line, name, list);
}

static int on_entry(void *arg, const char *section, const char *name, const char *value)
{
    parser *p = arg;
    if (strcmp(section, "") != 0 && strcmp(section, "shardd") != 0) { /* after a byte order mark */
        p->rc = shd_fail(p->err, SHD_EINVAL,
                         "%s:%u: %s stands in section '%s'; the only one is [shardd]", p->name,
                         p->line, name, section);
        return 0;
    }
    for (size_t i = 0; i < SHD_N_KEYS && p->rc == SHD_OK; i++) {
        if (strcmp(shd_keys[i].name, name) != 0) {
            continue;
        }
        if (p->seen[i] != 0) {
            p->rc =
                shd_fail(p->err, SHD_EINVAL, "%s:%u: %s = '%.120s': it is set already on line %u",
                         p->name, p->line, name, value, p->seen[i]);
            return 0;
        }
        p->seen[i] = p->line;
        const shd_place at = {p->name, p->line, name};
        p->rc = shd_key_set(p->config, &shd_keys[i], value, &at, p->err);
        return p->rc == SHD_OK;
    }
    if (p->rc == SHD_OK) {
        p->rc = unknown_key(p, name);
    }
    return 0;
}

int shd_config_parse(shd_config *config, const char *name, const char *text, size_t size,
                     shd_error *err)
{
    parser p = {.config = config, .name = name, .text = text, .size = size, .err = err};
    ini_use_stack = false; /* its stack buffer holds 200 bytes */
    ini_max_line = MAX_LINE + 3;
    ini_initial_alloc = MAX_LINE + 3;
    ini_allow_realloc = false;
    ini_allow_multiline = false;
    ini_stop_on_first_error = true;
    const int line = ini_parse_stream(read_line, &p, on_entry, &p);
    if (p.rc < 0) {
        return p.rc;
    }
    if (line != 0) {
        return shd_fail(err, SHD_EINVAL,
                        "%s:%d: want 'key = value', a comment after # or ;, or [shardd]", name,
                        line);
    }
    return SHD_OK;
}

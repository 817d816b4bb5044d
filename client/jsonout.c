#include "client/jsonout.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/utf8.h"

static void quote(shc_buf *out, const char *s, size_t left)
{
    const unsigned char *p = (const unsigned char *)s;

    shc_buf_puts(out, "\"");
    while (left) {
        int n = shc_utf8_next(p, left);
        if (n <= 0) {
            shc_buf_puts(out, "\\ufffd");
            n = 1;
        } else if (*p == '"' || *p == '\\') {
            shc_buf_printf(out, "\\%c", *p);
        } else if (*p == '\n') {
            shc_buf_puts(out, "\\n");
        } else if (*p < 0x20 || *p == 0x7F) {
            shc_buf_printf(out, "\\u%04x", *p);
        } else {
            shc_buf_add(out, (const char *)p, (size_t)n);
        }
        p += n;
        left -= (size_t)n;
    }
    shc_buf_puts(out, "\"");
}

static void begin(shc_json *json, const char *key)
{
    if (json->comma)
        shc_buf_puts(&json->text, ", ");
    json->comma = 1;
    if (key) {
        quote(&json->text, key, strlen(key));
        shc_buf_puts(&json->text, ": ");
    }
}

void shc_json_open(shc_json *json, const char *key, char bracket)
{
    begin(json, key);
    shc_buf_add(&json->text, &bracket, 1);
    json->comma = 0;
}

void shc_json_close(shc_json *json, char bracket)
{
    shc_buf_add(&json->text, &bracket, 1);
    json->comma = 1;
}

void shc_json_str(shc_json *json, const char *key, const char *value)
{
    shc_json_strn(json, key, value, strlen(value));
}

void shc_json_strn(shc_json *json, const char *key, const char *value, size_t n)
{
    begin(json, key);
    quote(&json->text, value, n);
}

void shc_json_u64(shc_json *json, const char *key, uint64_t value)
{
    begin(json, key);
    shc_buf_printf(&json->text, "%" PRIu64, value);
}

void shc_json_i64(shc_json *json, const char *key, int64_t value)
{
    begin(json, key);
    shc_buf_printf(&json->text, "%" PRId64, value);
}

void shc_json_num(shc_json *json, const char *key, double value)
{
    char text[40];

    if (!isfinite(value)) {
        shc_json_null(json, key);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    begin(json, key);
    shc_buf_puts(&json->text, text);
    /* A reader that tells integers from reals shall see a real every time. */
    if (!strpbrk(text, ".e"))
        shc_buf_puts(&json->text, ".0");
}

void shc_json_bool(shc_json *json, const char *key, int value)
{
    begin(json, key);
    shc_buf_puts(&json->text, value ? "true" : "false");
}

void shc_json_null(shc_json *json, const char *key)
{
    begin(json, key);
    shc_buf_puts(&json->text, "null");
}

void shc_json_line(shc_json *json, FILE *file)
{
    shc_buf_puts(&json->text, "\n");
    shc_buf_flush(&json->text, file);
    json->comma = 0;
}

void shc_json_fini(shc_json *json)
{
    shc_buf_fini(&json->text);
}

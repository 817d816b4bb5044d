#include "client/buf.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/mem.h"

static void reserve(shc_buf *buf, size_t more)
{
    if (buf->cap - buf->len > more)
        return;
    size_t cap = buf->cap ? buf->cap : 128;
    while (cap - buf->len <= more)
        cap *= 2;
    buf->data = shc_reallocarray(buf->data, cap, 1);
    buf->cap = cap;
}

void shc_buf_add(shc_buf *buf, const char *bytes, size_t n)
{
    reserve(buf, n);
    memcpy(buf->data + buf->len, bytes, n);
    buf->len += n;
    buf->data[buf->len] = '\0';
}

void shc_buf_puts(shc_buf *buf, const char *s)
{
    shc_buf_add(buf, s, strlen(s));
}

void shc_buf_fill(shc_buf *buf, char c, size_t n)
{
    reserve(buf, n);
    memset(buf->data + buf->len, c, n);
    buf->len += n;
    buf->data[buf->len] = '\0';
}

void shc_buf_printf(shc_buf *buf, const char *fmt, ...)
{
    va_list ap, again;

    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0) {
        reserve(buf, (size_t)n);
        vsnprintf(buf->data + buf->len, (size_t)n + 1, fmt, again);
        buf->len += (size_t)n;
    }
    va_end(again);
}

const char *shc_buf_str(const shc_buf *buf)
{
    return buf->data ? buf->data : "";
}

void shc_buf_clear(shc_buf *buf)
{
    buf->len = 0;
    if (buf->data)
        buf->data[0] = '\0';
}

void shc_buf_flush(shc_buf *buf, FILE *file)
{
    if (buf->len)
        fwrite(buf->data, 1, buf->len, file);
    fflush(file);
    shc_buf_clear(buf);
}

void shc_buf_fini(shc_buf *buf)
{
    free(buf->data);
    *buf = (shc_buf){0};
}

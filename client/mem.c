#include "client/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *checked(void *ptr)
{
    if (!ptr) {
        fputs("shardctl: out of memory; free some and try again\n", stderr);
        abort();
    }
    return ptr;
}

void *shc_calloc(size_t n, size_t size)
{
    return checked(calloc(n ? n : 1, size ? size : 1));
}

void *shc_reallocarray(void *ptr, size_t n, size_t size)
{
    return checked(reallocarray(ptr, n ? n : 1, size ? size : 1));
}

char *shc_strdup(const char *s)
{
    return checked(strdup(s));
}

char *shc_asprintf(const char *fmt, ...)
{
    va_list ap;
    char *out = NULL;

    va_start(ap, fmt);
    int n = vasprintf(&out, fmt, ap);
    va_end(ap);
    return checked(n < 0 ? NULL : out);
}

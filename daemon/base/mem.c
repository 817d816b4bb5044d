#include "daemon/base/mem.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void out_of_memory(size_t n, size_t size)
{
    fprintf(stderr, "out of memory: cannot allocate %zu x %zu bytes of host memory\n", n, size);
    abort();
}

void *shd_malloc(size_t size)
{
    void *p = malloc(size != 0 ? size : 1);
    if (p == NULL) {
        out_of_memory(1, size);
    }
    return p;
}

void *shd_calloc(size_t n, size_t size)
{
    void *p = n != 0 && size != 0 ? calloc(n, size) : calloc(1, 1);
    if (p == NULL) {
        out_of_memory(n, size);
    }
    return p;
}

void *shd_reallocarray(void *ptr, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) {
        out_of_memory(n, size);
    }
    void *p = realloc(ptr, bytes != 0 ? bytes : 1);
    if (p == NULL) {
        out_of_memory(n, size);
    }
    return p;
}

char *shd_strdup(const char *s)
{
    const size_t bytes = strlen(s) + 1;
    return memcpy(shd_malloc(bytes), s, bytes);
}

char *shd_asprintf(const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (length < 0) {
        fprintf(stderr, "cannot format \"%s\"\n", fmt);
        abort();
    }
    char *s = shd_malloc((size_t)length + 1);
    vsnprintf(s, (size_t)length + 1, fmt, again);
    va_end(again);
    return s;
}

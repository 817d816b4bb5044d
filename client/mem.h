/* Small host memory of the client: allocation that cannot fail (out of memory aborts the process
 * with a message). Any thread. */
#ifndef SHD_CLIENT_MEM_H
#define SHD_CLIENT_MEM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Like calloc, reallocarray, strdup, asprintf; freed with free(). */
void *shc_calloc(size_t n, size_t size);
void *shc_reallocarray(void *ptr, size_t n, size_t size);
char *shc_strdup(const char *s);
char *shc_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif
#endif

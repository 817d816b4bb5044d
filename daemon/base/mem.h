/* Small host memory: allocation that cannot fail (out of memory aborts the process with a message).
 * Tensors never come from here; they come from base/arena.h. Floor F0; any thread. */
#ifndef SHD_DAEMON_BASE_MEM_H
#define SHD_DAEMON_BASE_MEM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Like malloc/calloc/realloc/strdup/asprintf, freed with free(). Overflow of n * size aborts. */
void *shd_malloc(size_t size);
void *shd_calloc(size_t n, size_t size);
void *shd_reallocarray(void *ptr, size_t n, size_t size);
char *shd_strdup(const char *s);
char *shd_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#ifdef __cplusplus
}
#endif
#endif

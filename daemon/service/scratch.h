/* Short-lived memory of one response: taken piece by piece, given back at once. Floor F5; one
 * thread at a time. */
#ifndef SHD_DAEMON_SERVICE_SCRATCH_H
#define SHD_DAEMON_SERVICE_SCRATCH_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_scratch {
    struct shd_scratch_block *blocks;
} shd_scratch;

#define SHD_SCRATCH_INIT                                                                           \
    {                                                                                              \
        NULL                                                                                       \
    }

/* n * size zeroed bytes, aligned for any type; live until shd_scratch_free. */
void *shd_scratch_take(shd_scratch *scratch, size_t n, size_t size);
void shd_scratch_free(shd_scratch *scratch);

#ifdef __cplusplus
}
#endif
#endif

/* A loop over [0, n) cut into ranges of `grain`, run on the pool of an op context.
 * Floor F1; the rank's thread. */
#ifndef SHD_KERNELS_CPU_PARALLEL_H
#define SHD_KERNELS_CPU_PARALLEL_H

#include <stdint.h>

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*shd_range_fn)(void *arg, int64_t begin, int64_t end, int worker);

/* Calls fn on every range [i*grain, min(n, (i+1)*grain)). */
void shd_cpu_parallel(const shd_opctx *ctx, int64_t n, int64_t grain, shd_range_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif

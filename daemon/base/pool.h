/* A small pool of threads that share one loop: how an op uses the cores of its rank.
 * Floor F0; one pool belongs to one rank thread, which takes part in the work itself. */
#ifndef SHD_DAEMON_BASE_POOL_H
#define SHD_DAEMON_BASE_POOL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_pool shd_pool;

/* Called once for every piece in [0, n); `worker` in [0, nthreads) names the executing thread
 * (for per-thread scratch). Which thread takes which piece must not change any result. */
typedef void (*shd_pool_fn)(void *arg, int64_t piece, int worker);

/* A pool of nthreads (>= 1) threads, the caller's included; the others start with the first run.
 * `spin` lets idle threads spin for about a tenth of a millisecond before they sleep; ask for it
 * only when the machine has a core for each. */
shd_pool *shd_pool_create(int nthreads, int spin, const char *name);

/* Joins the threads. NULL is fine. */
void shd_pool_free(shd_pool *pool);

int shd_pool_nthreads(const shd_pool *pool);

/* Runs fn over [0, n) and returns when all pieces are done. n == 1 runs inline. Not re-entrant. */
void shd_pool_run(shd_pool *pool, int64_t n, shd_pool_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif

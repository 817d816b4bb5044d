#include "kernels/cpu/parallel.h"

#include "daemon/base/pool.h"

typedef struct loop {
    shd_range_fn fn;
    void *arg;
    int64_t n, grain;
} loop;

static void run_piece(void *arg, int64_t piece, int worker)
{
    const loop *l = arg;
    const int64_t begin = piece * l->grain;
    const int64_t end = begin + l->grain < l->n ? begin + l->grain : l->n;
    l->fn(l->arg, begin, end, worker);
}

void shd_cpu_parallel(const shd_opctx *ctx, int64_t n, int64_t grain, shd_range_fn fn, void *arg)
{
    loop l = {fn, arg, n, grain};
    shd_pool_run(ctx->pool, (n + grain - 1) / grain, run_piece, &l);
}

/* What an op of the null backend would have done; see shd_op_work. Floor F1; private to kernels. */
#ifndef SHD_KERNELS_NULL_WORK_H
#define SHD_KERNELS_NULL_WORK_H

#include "kernels/ops.h"

/* Products of `flops`, of which `repeated` are not the first time, and `bytes` of memory traffic.
 */
static inline void shd_null_work(const shd_opctx *ctx, double flops, double repeated, double bytes)
{
    shd_op_work *work = ctx->work;
    if (work == NULL) {
        return;
    }
    const double products = work->flops_rate > 0 ? flops / work->flops_rate : 0;
    const double traffic = work->memory_rate > 0 ? bytes / work->memory_rate : 0;
    work->calls++;
    work->flops += flops;
    work->repeated += repeated;
    work->bytes += bytes;
    work->seconds += products > traffic ? products : traffic;
}

static inline void shd_null_traffic(const shd_opctx *ctx, double bytes)
{
    shd_null_work(ctx, 0, 0, bytes);
}

#endif

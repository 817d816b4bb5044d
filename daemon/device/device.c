#include "daemon/device/device.h"

#include <stdlib.h>

#include "daemon/base/mem.h"
#include "daemon/base/pool.h"
#include "daemon/device/backend.h"

struct shd_device {
    const shd_device_backend *backend; /* borrows */
    const shd_ops *ops;                /* borrows; static storage */
    shd_opctx ctx;                     /* owns its pool */
    int streams;                       /* have threads */
};

shd_device *shd_device_create(const shd_device_backend *backend, int nthreads, int spin)
{
    shd_device *dev = shd_calloc(1, sizeof(*dev));
    dev->backend = backend;
    dev->ops = backend->ops();
    dev->ctx.pool = shd_pool_create(nthreads, spin, "op");
    return dev;
}

shd_device *shd_device_beside(const shd_device *dev)
{
    return shd_device_create(dev->backend, 1, 0);
}

void shd_device_set_streams(shd_device *dev, int threads)
{
    dev->streams = threads && !shd_device_is_null(dev);
}

int shd_device_streams(const shd_device *dev)
{
    return dev->streams;
}

void shd_device_free(shd_device *dev)
{
    if (dev != NULL) {
        shd_pool_free(dev->ctx.pool);
        free(dev);
    }
}

const char *shd_device_kind(const shd_device *dev)
{
    return dev->backend->kind;
}

int shd_device_nthreads(const shd_device *dev)
{
    return shd_pool_nthreads(dev->ctx.pool);
}

const shd_ops *shd_device_ops(const shd_device *dev)
{
    return dev->ops;
}

const shd_compute_ops *shd_device_compute_ops(const shd_device *dev, shd_dtype dtype)
{
    return dev->backend->compute_ops(dtype);
}

void shd_device_count_work(shd_device *dev, shd_op_work *work)
{
    dev->ctx.work = work;
}

const shd_opctx *shd_device_opctx(const shd_device *dev)
{
    return &dev->ctx;
}

int shd_device_arena(shd_device *dev, uint64_t extent, shd_arena **out, shd_error *err)
{
    return dev->backend->arena(dev, extent, out, err);
}

void shd_device_to_device(shd_device *dev, void *dst, const void *src, size_t bytes)
{
    dev->backend->to_device(dev, dst, src, bytes);
}

void shd_device_from_host(shd_device *dev, void *dst, const void *src, size_t bytes)
{
    dev->backend->from_host(dev, dst, src, bytes);
}

void shd_device_to_host(shd_device *dev, void *dst, const void *src, size_t bytes)
{
    dev->backend->to_host(dev, dst, src, bytes);
}

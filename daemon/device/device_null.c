/* A device that counts and computes nothing: how a job is planned before it has memory. */
#include <string.h>

#include "daemon/device/backend.h"

static int null_arena(shd_device *dev, uint64_t extent, shd_arena **out, shd_error *err)
{
    (void)dev, (void)extent, (void)err;
    *out = shd_arena_create_virtual();
    return SHD_OK;
}

static void null_copy(shd_device *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev, (void)dst, (void)src, (void)bytes;
}

static void null_to_host(shd_device *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev, (void)src;
    memset(dst, 0, bytes);
}

static const shd_device_backend null_backend = {
    .kind = "null",
    .ops = shd_ops_null,
    .compute_ops = shd_compute_ops_null,
    .arena = null_arena,
    .to_device = null_copy,
    .from_host = null_copy,
    .to_host = null_to_host,
};

shd_device *shd_device_create_null(int nthreads)
{
    return shd_device_create(&null_backend, nthreads, 0);
}

int shd_device_is_null(const shd_device *dev)
{
    return shd_device_ops(dev) == shd_ops_null();
}

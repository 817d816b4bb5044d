/* The CPU: device memory is host memory, so every copy is the op table's. */
#include "daemon/device/backend.h"

static int cpu_arena(shd_device *dev, uint64_t extent, shd_arena **out, shd_error *err)
{
    return shd_arena_create(extent, shd_device_nthreads(dev), out, err);
}

static void cpu_copy(shd_device *dev, void *dst, const void *src, size_t bytes)
{
    shd_device_ops(dev)->copy(shd_device_opctx(dev), dst, src, bytes);
}

static const shd_device_backend cpu_backend = {
    .kind = "cpu",
    .ops = shd_ops_cpu,
    .compute_ops = shd_compute_ops_cpu,
    .arena = cpu_arena,
    .to_device = cpu_copy,
    .from_host = cpu_copy,
    .to_host = cpu_copy,
};

shd_device *shd_device_create_cpu(int nthreads, int spin)
{
    return shd_device_create(&cpu_backend, nthreads, spin);
}

/* What a backend gives to make a device. Floor F1; private to daemon/device. */
#ifndef SHD_DAEMON_DEVICE_BACKEND_H
#define SHD_DAEMON_DEVICE_BACKEND_H

#include "daemon/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_device_backend {
    const char *kind;
    const shd_ops *(*ops)(void);
    const shd_compute_ops *(*compute_ops)(shd_dtype dtype);
    int (*arena)(shd_device *dev, uint64_t extent, shd_arena **out, shd_error *err);
    void (*to_device)(shd_device *dev, void *dst, const void *src, size_t bytes);
    void (*from_host)(shd_device *dev, void *dst, const void *src, size_t bytes);
    void (*to_host)(shd_device *dev, void *dst, const void *src, size_t bytes);
} shd_device_backend;

/* `backend` is borrowed for ever. */
shd_device *shd_device_create(const shd_device_backend *backend, int nthreads, int spin);

#ifdef __cplusplus
}
#endif
#endif

/* A compute device as one rank sees it: memory, copies between host and device, and the op tables.
 * Floor F1; a device belongs to one rank thread. Backends: device_cpu.c, device_null.c. */
#ifndef SHD_DAEMON_DEVICE_DEVICE_H
#define SHD_DAEMON_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/arena.h"
#include "daemon/base/err.h"
#include "kernels/compute_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_device shd_device;

/* The CPU with `nthreads` threads for the ops of this rank (>= 1). `spin`: see base/pool.h. */
shd_device *shd_device_create_cpu(int nthreads, int spin);

/* Counts and computes nothing: memory is virtual, copies do nothing (copies to the host give
 * zeros). Workspace sizes are those of a CPU device with `nthreads` threads. */
shd_device *shd_device_create_null(int nthreads);

void shd_device_free(shd_device *dev); /* NULL is fine */

/* Whether streams of this device (stream.h) have threads; not at first, and never on a null device,
 * which ignores it. To be said before streams are made. */
void shd_device_set_streams(shd_device *dev, int threads);
int shd_device_streams(const shd_device *dev);

/* Another device of the same kind, of one thread, which works on the memory of `dev`: what a thread
 * beside the rank's computes with. Freed by shd_device_free. */
shd_device *shd_device_beside(const shd_device *dev);

const char *shd_device_kind(const shd_device *dev); /* "cpu", "null" */
int shd_device_is_null(const shd_device *dev);
int shd_device_nthreads(const shd_device *dev);

const shd_ops *shd_device_ops(const shd_device *dev);
/* The ops on activations of `dtype`: SHD_F32, SHD_BF16 or SHD_F16; NULL for others. */
const shd_compute_ops *shd_device_compute_ops(const shd_device *dev, shd_dtype dtype);
const shd_opctx *shd_device_opctx(const shd_device *dev);

/* From now on the ops of a null device add what they would have done to *work (borrowed; NULL: no
 * more). Other devices count nothing. */
void shd_device_count_work(shd_device *dev, shd_op_work *work);

/* An arena in this device's memory: real of `extent` bytes, or virtual on a null device
 * (`extent` is then ignored). SHD_ENOMEM with the numbers. Freed with shd_arena_free. */
int shd_device_arena(shd_device *dev, uint64_t extent, shd_arena **out, shd_error *err);

/* Copies; return when done. Host side must be ordinary memory. */
void shd_device_to_device(shd_device *dev, void *dst, const void *src, size_t bytes);
void shd_device_from_host(shd_device *dev, void *dst, const void *src, size_t bytes);
void shd_device_to_host(shd_device *dev, void *dst, const void *src, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

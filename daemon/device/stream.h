/* Work beside a rank's thread: a queue that is worked off in order. Floor F1; a stream belongs to
 * one rank thread, which submits and waits.
 *
 * Where the device says so (shd_device_set_streams) a stream has a thread of its own; elsewhere,
 * and always on the null device, work is done by the caller when it is submitted. What is submitted
 * is the same either way, and so is every result. */
#ifndef SHD_DAEMON_DEVICE_STREAM_H
#define SHD_DAEMON_DEVICE_STREAM_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_stream shd_stream;

/* `dev` is the device to work with: the stream's own, or the rank's where the stream has no thread.
 * It must not touch what belongs to the rank's thread alone (arenas, tapes). */
typedef int (*shd_stream_fn)(void *arg, shd_device *dev, shd_error *err);

/* `dev` is borrowed. `name` (at most 15 characters) is that of the thread, which starts with the
 * first work. */
shd_stream *shd_stream_create(shd_device *dev, const char *name);

/* Waits for the work that is queued. NULL is fine. */
void shd_stream_free(shd_stream *stream);

/* Queues work; `arg` must live until it is done. Returned is what shd_stream_wait takes. After work
 * that failed, later work is not done: it fails likewise. */
uint64_t shd_stream_submit(shd_stream *stream, shd_stream_fn fn, void *arg);

/* Returns when that work, and all before it, is done: 0, or the first failure among it. */
int shd_stream_wait(shd_stream *stream, uint64_t ticket, shd_error *err);

/* Returns when everything is done, and forgets a failure. */
void shd_stream_drain(shd_stream *stream);

#ifdef __cplusplus
}
#endif
#endif

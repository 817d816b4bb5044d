/* Batches of the service definition as batches of the trainer. Floor F5; pure. */
#ifndef SHD_DAEMON_SERVICE_BATCH_H
#define SHD_DAEMON_SERVICE_BATCH_H

#include "daemon/base/err.h"
#include "daemon/train/trainer.h"
#include "proto/shard.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Padding makes much out of little (one long sequence and many short ones), so it has a limit. */
#define SHD_BATCH_MAX_POSITIONS (16u << 20)

/* Pads the sequences to the longest: token 0, target SHD_IGNORE_INDEX. A sequence without targets
 * gets its tokens shifted left by one, the last one ignored. SHD_EINVAL: no batch, no sequence, an
 * empty sequence, one longer than `max_length`, targets of another length, more than
 * SHD_BATCH_MAX_POSITIONS after padding. `out` is filled on success; its arrays are from malloc. */
int shd_batch_convert(const Shard__V1__Batch *in, uint32_t max_length, shd_batch *out,
                      shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

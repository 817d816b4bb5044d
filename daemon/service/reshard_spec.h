/* What a Reshard request makes of a job's specification. Floor F5; pure. */
#ifndef SHD_DAEMON_SERVICE_RESHARD_SPEC_H
#define SHD_DAEMON_SERVICE_RESHARD_SPEC_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "proto/shard.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Does it ask for any change? */
int shd_reshard_asks(const Shard__V1__ReshardRequest *request);

/* A copy of the specification of a job with the changes; the caller frees it. */
Shard__V1__JobSpec *shd_reshard_spec(const Shard__V1__JobSpec *now,
                                     const Shard__V1__ReshardRequest *request);

/* The batch of a step stays as it is: ranks and micro-batches have to divide it. SHD_EINVAL names
 * what would do on a daemon of `n_ranks`. */
int shd_reshard_check_batch(const Shard__V1__JobSpec *spec, uint32_t n_ranks, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

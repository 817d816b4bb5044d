/* Memory in words, for verdicts on plans. Floor F5; pure. */
#ifndef SHD_DAEMON_SERVICE_VERDICT_H
#define SHD_DAEMON_SERVICE_VERDICT_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/train/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_VERDICT_BYTES 24

/* "1.25 GiB" into out, which is returned. */
const char *shd_verdict_bytes(uint64_t bytes, char out[SHD_VERDICT_BYTES]);

/* "optimizer 1.20 GiB, params 600.00 MiB, grads 600.00 MiB": the three largest. */
void shd_verdict_tags(const shd_plan *plan, char *out, size_t size);

#ifdef __cplusplus
}
#endif
#endif

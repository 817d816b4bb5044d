/* What is said about a plan: does it fit, with the numbers. Floor F5; pure. */
#ifndef SHD_DAEMON_SERVICE_VERDICT_H
#define SHD_DAEMON_SERVICE_VERDICT_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/service/room.h"
#include "daemon/train/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_VERDICT_BYTES 24

/* "1.25 GiB" into out, which is returned. */
const char *shd_verdict_bytes(uint64_t bytes, char out[SHD_VERDICT_BYTES]);

/* "fits: needs ... on each of 4 ranks, 1.25 GiB free". `available`: of room, for `world` ranks. */
void shd_verdict_fits(const shd_plan *plan, uint32_t world, const shd_room *room,
                      uint64_t available, char *out, size_t size);

/* "does not fit: needs ..., has ...; largest: ...; " and the hint (hint.h). */
void shd_verdict_refuses(const shd_plan *plan, uint32_t world, const shd_room *room,
                         uint64_t available, const char *hint, char *out, size_t size);

#ifdef __cplusplus
}
#endif
#endif

/* A rank of the daemon: a slot with a device and one thread, which executes what its inbox holds,
 * in order. Floor F2; posting is safe from any thread. */
#ifndef SHD_DAEMON_RANK_RANK_H
#define SHD_DAEMON_RANK_RANK_H

#include <stdint.h>

#include "daemon/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_rank shd_rank;
typedef void (*shd_rank_fn)(shd_rank *rank, void *arg);

/* Starts the thread. Owns `dev`. */
shd_rank *shd_rank_create(uint32_t id, shd_device *dev);

/* Executes what is left in the inbox, joins the thread, frees the device. NULL is fine. */
void shd_rank_free(shd_rank *rank);

/* Appends to the inbox; fn(rank, arg) runs on the rank's thread. */
void shd_rank_post(shd_rank *rank, shd_rank_fn fn, void *arg);

uint32_t shd_rank_id(const shd_rank *rank);
shd_device *shd_rank_device(const shd_rank *rank); /* for the rank's thread */

/* Nanoseconds that the thread has spent executing since it started. Any thread. */
uint64_t shd_rank_busy_ns(const shd_rank *rank);

#ifdef __cplusplus
}
#endif
#endif

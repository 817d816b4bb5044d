/* Live resharding: between two steps, a job's parameters, optimizer states and counters move to
 * other workers, cut by another strategy and over another number of ranks, in memory. Floor F4; the
 * submitter's thread, except for the item itself.
 *
 * The new workers come to be beside the old ones, which stay as they are: until shd_reshard_adopt
 * nothing is lost, whatever fails. While both exist a rank holds its part of the old plan, its part
 * of the new one and SHD_RESHARD_STAGING.
 *
 * What moves is the fp32 master and the optimizer's states of every trained parameter and the
 * p-part of every frozen one, bit by bit; parameters in the compute dtype follow from the masters
 * as after a step. Each element is broadcast once by the first rank that holds it, in pieces,
 * unless every rank that needs it has it already. */
#ifndef SHD_DAEMON_TRAIN_RESHARD_H
#define SHD_DAEMON_TRAIN_RESHARD_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/rank/rank.h"
#include "daemon/train/plan.h"
#include "daemon/train/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elements that are moved at a time, and the bytes that a rank takes for pieces that it passes over
 * (a page of its own). */
#define SHD_RESHARD_PIECE ((int64_t)1 << 18)
#define SHD_RESHARD_STAGING ((uint64_t)2 << 20)

typedef struct shd_trainer shd_trainer;
typedef struct shd_reshard shd_reshard;

/* Prepares the move of `trainer` to `spec` under `plan` on spec->strategy.world ranks (borrowed,
 * old and new ones in any mixture). `spec` may differ from the one in use in strategy, ranks,
 * micro-batch, determinism and how collectives are scheduled; SHD_EINVAL names what else differs
 * of batch, sequence length, kind of optimizer, dtypes, seed and what is trained; the rest the
 * caller keeps alike.
 * SHD_ESTATE before SHD_WORK_INIT is done and while gradients are accumulated. One at a time, no
 * work in flight. It is carried out by an item of SHD_WORK_RESHARD, whose every failure leaves the
 * job as it was. */
int shd_reshard_create(shd_trainer *trainer, const shd_spec *spec, const shd_plan *plan,
                       shd_rank *const *ranks, shd_reshard **out, shd_error *err);

/* After the item was executed: the new workers take over. */
void shd_reshard_adopt(shd_reshard *reshard);

/* Frees what is no longer needed: the old workers, or without adoption the new ones. No work may be
 * in flight; before the trainer. NULL is fine. */
void shd_reshard_free(shd_reshard *reshard);

/* Bytes that parameters and states have been broadcast with, by all ranks together: of what moves,
 * times the other ranks that take part. After the item was executed. */
uint64_t shd_reshard_bytes_sent(const shd_reshard *reshard);

/* The most that one rank held at a time: of the old, the new and the staging. Likewise. */
uint64_t shd_reshard_peak(const shd_reshard *reshard);

#ifdef __cplusplus
}
#endif
#endif

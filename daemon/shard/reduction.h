/* In which order gradients are added, which is what may change their bits: the level of
 * determinism. Floor F3; pure.
 *
 * Leaf i of a batch is its i-th micro-batch; with W ranks, rank r computes leaf jW + r in round j.
 *   strategy: the W leaves of a round are added as one balanced tree, the rounds are folded left.
 *     Same bits for every strategy of a world.
 *   world: trees over V (the reduction width) consecutive leaves, V and W <= V powers of two: the
 *     V/W rounds of a tree give subtrees of it, which are added as a binary counter counts. A batch
 *     begins a tree of its own and ends it: leaves that it lacks count as zero, and so do those
 *     that ranks compute beyond its end to keep company. Every sum of trees begins with +0, so
 *     that signs of zeros do not tell which leaves were missing. Same bits for every W too.
 *   run: as strategy; but where gradients are not sharded (g = 1) each rank folds its own leaves
 *     over the rounds, and the W sums are added once per step, as one balanced tree. Fewest bytes;
 *     the same bits when the same job runs again. */
#ifndef SHD_DAEMON_SHARD_REDUCTION_H
#define SHD_DAEMON_SHARD_REDUCTION_H

#include <stdint.h>

#include "daemon/shard/strategy.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_reduction {
    shd_determinism level;
    uint32_t width; /* V, of level world; elsewhere it is W and not read */
} shd_reduction;

/* Rounds that make one tree: V/W at level world, else 1. */
uint32_t shd_reduction_rounds(const shd_reduction *reduction, const shd_strategy *strategy);

/* Subtrees that wait for their other half, at most: log2 of the rounds. */
uint32_t shd_reduction_partials(const shd_reduction *reduction, const shd_strategy *strategy);

/* Are gradients exchanged in every round? Otherwise once per step. */
int shd_reduction_each_round(const shd_reduction *reduction, const shd_strategy *strategy);

#ifdef __cplusplus
}
#endif
#endif

/* A sharding strategy is three shard degrees: into how many parts parameters (p), gradients (g)
 * and optimizer state (o) are cut, with p | g | o | W. Floor F3; pure.
 *
 * The group of degree d that a rank shares a full copy with is rank / d (consecutive ranks, so that
 * groups stay inside a node first). Which part a rank holds is nested: its o-part lies inside its
 * g-part, which lies inside its p-part, so that one code path serves every triple:
 *   index_p = r mod p
 *   index_g = index_p * (g/p) + (r mod g) / p
 *   index_o = index_g * (o/g) + (r mod o) / g
 *   atom    = index_o * (W/o) + r / o          (one of W parts: where a reduction first lands)
 * ZeRO (Rajbhandari et al. 2020): stage 1 = (1,1,W), stage 2 = (1,W,W), stage 3 = (W,W,W). */
#ifndef SHD_DAEMON_SHARD_STRATEGY_H
#define SHD_DAEMON_SHARD_STRATEGY_H

#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_MAX_WORLD 64u

typedef struct shd_strategy {
    uint32_t world;            /* W */
    uint32_t p, g, o;          /* shard degrees */
    int reshard_after_forward; /* 0: gathered parameters stay from forward to backward */
} shd_strategy;

/* From a preset's name (see shd_strategy_presets) or, when n_degrees is 3, from P,G,O. Both may be
 * given when they agree (with any degrees: what shd_strategy_name says of them). Unknown names,
 * degrees that break p | g | o | W, and worlds outside 1..SHD_MAX_WORLD are refused with the
 * reason. An empty name without degrees is zero3. */
int shd_strategy_make(const char *name, const uint32_t *degrees, uint32_t n_degrees, uint32_t world,
                      shd_strategy *out, shd_error *err);

/* The preset these degrees are known by ("zero3"), or "custom". At W = 1 all presets coincide:
 * "ddp". Static storage. */
const char *shd_strategy_name(const shd_strategy *s);

/* "ddp, no_shard, zero1, ..." for messages. Static storage. */
const char *shd_strategy_presets(void);

/* Which of p, g, o, W parts `rank` holds, by the formulas above. */
uint32_t shd_strategy_index_p(const shd_strategy *s, uint32_t rank);
uint32_t shd_strategy_index_g(const shd_strategy *s, uint32_t rank);
uint32_t shd_strategy_index_o(const shd_strategy *s, uint32_t rank);
uint32_t shd_strategy_atom(const shd_strategy *s, uint32_t rank);

/* The groups that the collectives of `rank` run in. members has room for SHD_MAX_WORLD; the number
 * of members is returned. Order is the order of the parts they hold. */
typedef enum shd_group {
    SHD_GROUP_GATHER = 0, /* p ranks whose p-parts make a full copy */
    SHD_GROUP_REDUCE,     /* all W ranks, by atom */
    SHD_GROUP_REPLICA,    /* W/o ranks that hold the same o-part, by atom */
    SHD_GROUP_UPDATE,     /* o/p ranks of one optimizer group whose o-parts make one p-part */
    SHD_GROUP_NORM,       /* o ranks whose o-parts make a full copy, by o-part */
    SHD_GROUP_COUNT
} shd_group;
uint32_t shd_strategy_group(const shd_strategy *s, uint32_t rank, shd_group group,
                            uint32_t *members);

#ifdef __cplusplus
}
#endif
#endif

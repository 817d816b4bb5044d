/* A sharding strategy is three shard degrees: into how many parts parameters (p), gradients (g)
 * and optimizer state (o) are cut, with p | g | o | W. A fourth number, regather | p, says into how
 * many parts the gathered parameters are cut that stay from forward to backward. Floor F3; pure.
 *
 * The group of degree d that a rank shares a full copy with is rank / d (consecutive ranks, so that
 * groups stay inside a node first). Which part a rank holds is nested: its o-part lies inside its
 * g-part, which lies inside its p-part, so that one code path serves every triple:
 *   index_p = r mod p
 *   index_g = index_p * (g/p) + (r mod g) / p
 *   index_o = index_g * (o/g) + (r mod o) / g
 *   atom    = index_o * (W/o) + r / o          (one of W parts: where a reduction first lands)
 * What stays gathered is not nested in these: rank r keeps part r mod regather, in a buffer of its
 * own.
 *
 * With groups of k ranks:
 *   ddp, no_shard       (1,1,1)     plain data parallelism
 *   zero1, zero2, zero3 (1,1,W), (1,W,W), (W,W,W)  ZeRO stages (Rajbhandari et al. 2020)
 *   full_shard          (W,W,W)     FSDP (Zhao et al. 2023)
 *   shard_grad_op       (W,W,W)     FSDP: regather 1, parameters stay whole until backward
 *   hybrid_shard, mics  (k,k,k)     FSDP; MiCS (Zhang et al. 2022): replicas of a sharded group
 *   hybrid_shard_zero2  (k,k,k)     FSDP: likewise with regather 1
 *   hpz                 (k,W,W)     ZeRO++ (Wang et al. 2023), hierarchical partitioning
 *   megatron            (k,k,W)     optimizer sharded over outer data parallelism (Megatron-FSDP)
 * and FSDP2's reshard_after_forward=N is regather N. */
#ifndef SHD_DAEMON_SHARD_STRATEGY_H
#define SHD_DAEMON_SHARD_STRATEGY_H

#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_MAX_WORLD 16384u /* of a plan */
#define SHD_MAX_RANKS 64u    /* of a daemon */

typedef struct shd_strategy {
    uint32_t world;    /* W */
    uint32_t p, g, o;  /* shard degrees */
    uint32_t regather; /* 1: gathered parameters stay whole until backward; p: nothing stays */
} shd_strategy;

/* How far the same bits reach: every strategy at the same W (the default); the same job run twice;
 * also every W up to the width of the reduction tree. */
typedef enum shd_determinism {
    SHD_DETERMINISM_STRATEGY = 0,
    SHD_DETERMINISM_RUN,
    SHD_DETERMINISM_WORLD
} shd_determinism;

/* What was asked for; zeros and NULLs were not given. */
typedef struct shd_strategy_request {
    uint32_t world;
    const char *name;        /* a preset; may come with degrees when they agree */
    const uint32_t *degrees; /* P,G,O */
    uint32_t n_degrees;
    uint32_t group;      /* k of the presets that have one */
    uint32_t node;       /* ranks of a node: what k is by default; 0: the world */
    const char *reshard; /* "yes" (all), "no", or N: into how many parts what is kept is cut */
} shd_strategy_request;

/* Unknown names, degrees that break p | g | o | W or regather | p, what contradicts itself or has
 * no effect, and worlds outside 1..SHD_MAX_WORLD are refused with the reason, as flags of the
 * command line. Degrees that coincide with those of another preset are accepted. Nothing but a
 * world is zero3. */
int shd_strategy_resolve(const shd_strategy_request *request, shd_strategy *out, shd_error *err);

/* The same from name and degrees alone. */
int shd_strategy_make(const char *name, const uint32_t *degrees, uint32_t n_degrees, uint32_t world,
                      shd_strategy *out, shd_error *err);

/* The first preset that has these degrees ("zero3"), or "custom": what was asked for as
 * hybrid_shard with k = W is zero3. At W = 1 all presets coincide: "ddp". A preset is also known by
 * its degrees when a part of the gathered parameters stays, which shd_strategy_reshard tells.
 * Static storage. */
const char *shd_strategy_name(const shd_strategy *s);

/* k of a strategy whose name is that of a preset with groups, else 0. */
uint32_t shd_strategy_shard_group(const shd_strategy *s);

/* "yes", "no" or the number; "" where parameters are not sharded. `out` is returned. */
#define SHD_STRATEGY_RESHARD_LEN 12
const char *shd_strategy_reshard(const shd_strategy *s, char out[SHD_STRATEGY_RESHARD_LEN]);

/* The flags of the command line that ask for these degrees: "--strategy hpz --shard-group 8",
 * "--shard-degrees 1,2,4 --reshard-after-forward no". `out` is returned. */
#define SHD_STRATEGY_FLAGS_LEN 96
const char *shd_strategy_flags(const shd_strategy *s, char out[SHD_STRATEGY_FLAGS_LEN]);

/* "ddp (no_shard), zero1, ..." for messages. Static storage. */
const char *shd_strategy_presets(void);

/* Which of p, g, o, W parts `rank` holds, by the formulas above. */
uint32_t shd_strategy_index_p(const shd_strategy *s, uint32_t rank);
uint32_t shd_strategy_index_g(const shd_strategy *s, uint32_t rank);
uint32_t shd_strategy_index_o(const shd_strategy *s, uint32_t rank);
uint32_t shd_strategy_atom(const shd_strategy *s, uint32_t rank);
/* Which of `regather` parts it keeps from forward to backward. */
uint32_t shd_strategy_index_kept(const shd_strategy *s, uint32_t rank);

/* The groups that the collectives of a rank run in. Order is the order of the parts they hold. */
typedef enum shd_group {
    SHD_GROUP_GATHER = 0, /* p ranks whose p-parts make a full copy */
    SHD_GROUP_REGATHER,   /* `regather` ranks whose kept parts make a full copy */
    SHD_GROUP_REDUCE,     /* all W ranks, by atom */
    SHD_GROUP_REPLICA,    /* W/o ranks that hold the same o-part, by atom */
    SHD_GROUP_UPDATE,     /* o/p ranks of one optimizer group whose o-parts make one p-part */
    SHD_GROUP_NORM,       /* o ranks whose o-parts make a full copy, by o-part */
    SHD_GROUP_COUNT
} shd_group;

/* Number of ranks in the group of any rank. */
uint32_t shd_strategy_group_size(const shd_strategy *s, shd_group group);
/* The i-th of the group that `rank` is in; i below the size. */
uint32_t shd_strategy_member(const shd_strategy *s, uint32_t rank, shd_group group, uint32_t i);
/* All of them into members[size]; the size is returned. */
uint32_t shd_strategy_group(const shd_strategy *s, uint32_t rank, shd_group group,
                            uint32_t *members);

#ifdef __cplusplus
}
#endif
#endif

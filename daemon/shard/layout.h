/* Where parameters lie in the flat buffers of their units. Floor F3; pure.
 *
 * A unit is the set of parameters that are gathered together. Its flat buffer holds them one after
 * another, each at a multiple of SHD_PARAM_ALIGN elements, padded at the end so that it divides
 * into W atoms of a multiple of SHD_BLOCK elements. Padding holds zeros and stays zero. A block
 * of norms thus holds one parameter, wherever that lies. */
#ifndef SHD_DAEMON_SHARD_LAYOUT_H
#define SHD_DAEMON_SHARD_LAYOUT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_BLOCK 256 /* elements; the block of norms */
#define SHD_PARAM_ALIGN SHD_BLOCK

typedef struct shd_slot {
    uint32_t unit;
    int64_t offset; /* elements, in the unit's flat buffer */
    int64_t numel;
} shd_slot;

typedef struct shd_unit_layout {
    int64_t numel;  /* of its parameters */
    int64_t padded; /* of its flat buffer; a multiple of W * SHD_BLOCK */
    /* Set by the caller after init: */
    int frozen; /* not trained: no gradients, no optimizer */
    int whole;  /* parameters are not sharded, whatever the strategy: small ones */
} shd_unit_layout;

typedef struct shd_layout {
    uint32_t n_params, n_units;
    shd_slot *slots;        /* [n_params], in the order of the parameter table */
    shd_unit_layout *units; /* [n_units] */
    int64_t numel, padded;  /* sums over units */
} shd_layout;

/* numel[i] and unit[i] describe parameter i. Freed by shd_layout_fini. */
void shd_layout_init(shd_layout *layout, uint32_t n_params, const int64_t *numel,
                     const uint32_t *unit, uint32_t n_units, uint32_t world);
void shd_layout_fini(shd_layout *layout);

/* Part of parameter `slot` inside [begin, end) of its unit's flat buffer: *first is the index in
 * the parameter, *at the index in the range; the number of elements is returned (0: none). */
int64_t shd_slot_intersect(const shd_slot *slot, int64_t begin, int64_t end, int64_t *first,
                           int64_t *at);

#ifdef __cplusplus
}
#endif
#endif

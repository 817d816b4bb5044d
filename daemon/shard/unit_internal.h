/* What the files of the units share. Floor F3; private to daemon/shard. */
#ifndef SHD_DAEMON_SHARD_UNIT_INTERNAL_H
#define SHD_DAEMON_SHARD_UNIT_INTERNAL_H

#include "daemon/shard/unit.h"

/* Element i of memory of `dtype`. */
static inline void *shd_unit_element(void *data, shd_dtype dtype, int64_t i)
{
    return (char *)data + i * (int64_t)shd_dtype_size(dtype);
}

static inline int64_t shd_unit_length(const shd_range *range)
{
    return range->end - range->begin;
}

/* Memory for n elements. */
static inline int shd_unit_take(shd_units *units, shd_tag tag, shd_dtype dtype, int64_t n,
                                void **out, shd_error *err)
{
    return shd_arena_alloc(units->arena, tag, (uint64_t)n * shd_dtype_size(dtype), out, err);
}

static inline void shd_unit_zero(shd_units *units, void *data, shd_dtype dtype, int64_t n)
{
    shd_device_ops(units->dev)
        ->zero(shd_device_opctx(units->dev), data, (size_t)n * shd_dtype_size(dtype));
}

/* A part that this rank alone holds is complete as it is. */
static inline int shd_unit_alone(const shd_unit *unit, shd_group group)
{
    return shd_comm_size(unit->groups[group]) == 1;
}

/* Folds the tree over these leaves, elements [at, at + len) of this rank's atom of unit u, into the
 * accumulated gradients, in the order of reduction.h. `dev` is that of the calling thread. */
void shd_unit_fold(shd_units *units, shd_device *dev, uint32_t u, const void *const *leaves,
                   shd_dtype leaf_dtype, uint32_t n_leaves, int64_t at, int64_t len);

/* Do ranks exchange gradients in each round, or once per step? */
static inline int shd_unit_each_round(const shd_units *units)
{
    return shd_reduction_each_round(&units->config.reduction, &units->strategy);
}

/* Adds all ranks' `grads` of unit u by a tree over ranks, in place of this rank's atom of it. */
int shd_unit_reduce_accumulated(shd_units *units, uint32_t u, shd_error *err);

#endif

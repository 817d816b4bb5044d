/* Gradients of units, reduced and measured; see unit.h. Floor F3; the rank's thread. */
#include <stdlib.h>

#include "daemon/base/mem.h"
#include "daemon/shard/unit_internal.h"

/* Alignment gaps between parameters and the tail must not carry garbage into sums and norms. */
static void zero_padding(shd_units *units, uint32_t u, void *flat)
{
    const shd_dtype dtype = units->config.dtype;
    int64_t at = 0;
    for (uint32_t i = 0; i < units->layout->n_params; i++) {
        const shd_slot *slot = &units->layout->slots[i];
        if (slot->unit != u) {
            continue;
        }
        if (slot->offset > at) {
            shd_unit_zero(units, shd_unit_element(flat, dtype, at), dtype, slot->offset - at);
        }
        at = slot->offset + slot->numel;
    }
    if (units->units[u].n > at) {
        shd_unit_zero(units, shd_unit_element(flat, dtype, at), dtype, units->units[u].n - at);
    }
}

/* Is the first local gradient of a step what the step accumulates, as it is? */
static int is_accumulated_as_it_is(const shd_units *units)
{
    const shd_units_config *c = &units->config;
    const int alone =
        units->strategy.world == 1 && shd_reduction_rounds(&c->reduction, &units->strategy) == 1;
    return (alone || !shd_unit_each_round(units)) && units->folded == 0 &&
           c->dtype == c->reduce_dtype;
}

int shd_unit_grad_begin(shd_units *units, uint32_t u, shd_error *err)
{
    shd_unit *unit = &units->units[u];
    if (unit->frozen || unit->local_grad != NULL) {
        return 0;
    }
    if (is_accumulated_as_it_is(units)) {
        unit->local_grad = unit->grads.data;
    } else {
        SHD_TRY(shd_unit_take(units, SHD_TAG_COMM, units->config.dtype, unit->n, &unit->local_grad,
                              err));
    }
    zero_padding(units, u, unit->local_grad);
    return 0;
}

shd_range shd_unit_atom(const shd_units *units, uint32_t u)
{
    const shd_unit *unit = &units->units[u];
    const int64_t n = unit->n / units->strategy.world;
    const int64_t begin = n * shd_strategy_atom(&unit->strategy, units->rank);
    return (shd_range){
        begin, begin + n,
        shd_unit_element(unit->grads.data, units->config.reduce_dtype, begin - unit->grads.begin)};
}

/* ---- sums ---- */

/* Leaves of a tree, [n] each. */
typedef struct leaves {
    const void *const *data; /* [count] */
    shd_dtype dtype;
    uint32_t count;
} leaves;

static void sum(const shd_units *units, shd_device *dev, void *out, const leaves *in, int64_t n,
                int accumulate)
{
    shd_device_ops(dev)->tree_sum(shd_device_opctx(dev), out, units->config.reduce_dtype, in->data,
                                  in->dtype, in->count, n, accumulate);
}

/* A finished tree to what the step has accumulated in out[n]. */
static void fold_tree(const shd_units *units, shd_device *dev, void *out, const leaves *in,
                      int64_t n)
{
    const shd_dtype dtype = units->config.reduce_dtype;
    if (units->trees == 0 && units->config.reduction.level == SHD_DETERMINISM_WORLD) {
        shd_device_ops(dev)->zero(shd_device_opctx(dev), out, (size_t)n * shd_dtype_size(dtype));
        sum(units, dev, out, in, n, 1);
    } else {
        sum(units, dev, out, in, n, units->trees > 0);
    }
}

/* Elements [at, ...) of the sum of 2^level rounds that waits for the next 2^level. */
static void *partial(const shd_units *units, uint32_t u, uint32_t level, int64_t at)
{
    const shd_unit *unit = &units->units[u];
    const int64_t n = unit->n / units->strategy.world;
    return shd_unit_element(unit->partials, units->config.reduce_dtype, level * n + at);
}

void shd_unit_fold(shd_units *units, shd_device *dev, uint32_t u, const void *const *data,
                   shd_dtype leaf_dtype, uint32_t n_leaves, int64_t at, int64_t len)
{
    const shd_range atom = shd_unit_atom(units, u);
    const uint32_t rounds = shd_reduction_rounds(&units->config.reduction, &units->strategy);
    leaves in = {data, leaf_dtype, n_leaves};
    const void *whole = NULL;
    uint32_t level = 0;
    for (; units->open >> level & 1; level++) { /* what waits and this make twice as many */
        void *half = partial(units, u, level, at);
        sum(units, dev, half, &in, len, 1);
        whole = half;
        in = (leaves){&whole, units->config.reduce_dtype, 1};
    }
    if (units->open + 1 < rounds) {
        sum(units, dev, partial(units, u, level, at), &in, len, 0);
    } else {
        fold_tree(units, dev, shd_unit_element(atom.data, units->config.reduce_dtype, at), &in,
                  len);
    }
}

/* The tree that was not finished, the leaves that it lacks left out. */
static void close_tree(shd_units *units, uint32_t u)
{
    const shd_range atom = shd_unit_atom(units, u);
    const int64_t n = shd_unit_length(&atom);
    const void *whole = NULL;
    const leaves in = {&whole, units->config.reduce_dtype, 1};
    for (uint32_t level = 0; units->open >> level != 0; level++) {
        if ((units->open >> level & 1) == 0) {
            continue;
        }
        void *half = partial(units, u, level, 0);
        if (whole != NULL) {
            sum(units, units->dev, half, &in, n, 1);
        }
        whole = half;
    }
    fold_tree(units, units->dev, atom.data, &in, n);
}

void shd_units_round_done(shd_units *units)
{
    units->folded++;
    units->open++;
    if (units->open == shd_reduction_rounds(&units->config.reduction, &units->strategy)) {
        units->open = 0;
        units->trees++;
    }
}

void shd_units_batch_done(shd_units *units)
{
    if (units->open == 0) {
        return;
    }
    for (uint32_t u = 0; u < units->layout->n_units; u++) {
        if (!units->units[u].frozen) {
            close_tree(units, u);
        }
    }
    units->open = 0;
    units->trees++;
}

void shd_units_step_done(shd_units *units)
{
    units->folded = 0;
    units->trees = 0;
    units->open = 0;
}

int shd_unit_grad_finish(shd_units *units, uint32_t u, shd_error *err)
{
    const shd_unit *unit = &units->units[u];
    if (unit->frozen) {
        return 0;
    }
    if (!shd_unit_each_round(units)) {
        SHD_TRY(shd_unit_reduce_accumulated(units, u, err));
    }
    if (shd_unit_alone(unit, SHD_GROUP_REPLICA)) {
        return 0;
    }
    const shd_range atom = shd_unit_atom(units, u);
    const shd_range all = shd_unit_update_grads(units, u);
    return shd_comm_all_gather(
        unit->groups[SHD_GROUP_REPLICA], SHD_COMM_ALL_REDUCE, units->dev, atom.data, all.data,
        (size_t)shd_unit_length(&atom) * shd_dtype_size(units->config.reduce_dtype), err);
}

/* ---- norm ---- */

/* Block sums of unit u, on the host, into one sum for each of its parameters. */
static void combine_blocks(const shd_layout *layout, uint32_t u, const double *blocks, double *sums)
{
    for (uint32_t i = 0; i < layout->n_params; i++) {
        const shd_slot *slot = &layout->slots[i];
        if (slot->unit != u) {
            continue;
        }
        const int64_t end = slot->offset + slot->numel;
        for (int64_t at = slot->offset; at < end; at += SHD_BLOCK) {
            sums[i] += blocks[at / SHD_BLOCK];
        }
    }
}

/* Adds the sum of squares of every parameter of unit u to its place in sums[n_params]. */
static int unit_sumsq(shd_units *units, uint32_t u, double *sums, shd_error *err)
{
    const shd_unit *unit = &units->units[u];
    const shd_range grads = shd_unit_update_grads(units, u);
    const int64_t n = shd_unit_length(&grads);
    const int64_t mine = n / SHD_BLOCK, all = unit->n / SHD_BLOCK;
    void *blocks = NULL;
    SHD_TRY(shd_arena_alloc(units->arena, SHD_TAG_WORKSPACE, (uint64_t)all * sizeof(double),
                            &blocks, err));
    double *own = (double *)blocks + mine * shd_comm_rank(unit->groups[SHD_GROUP_NORM]);
    shd_device_ops(units->dev)
        ->block_sumsq(shd_device_opctx(units->dev), own, grads.data, units->config.reduce_dtype, n);
    const int rc =
        shd_unit_alone(unit, SHD_GROUP_NORM)
            ? 0
            : shd_comm_all_gather(unit->groups[SHD_GROUP_NORM], SHD_COMM_NORM, units->dev, own,
                                  blocks, (size_t)mine * sizeof(double), err);
    if (rc == 0 && !shd_device_is_null(units->dev)) {
        double *host = shd_malloc((size_t)all * sizeof(double));
        shd_device_to_host(units->dev, host, blocks, (size_t)all * sizeof(double));
        combine_blocks(units->layout, u, host, sums);
        free(host);
    }
    shd_arena_release(units->arena, blocks);
    return rc;
}

int shd_units_sumsq(shd_units *units, double *sum, shd_error *err)
{
    const shd_layout *layout = units->layout;
    double *sums = shd_calloc(layout->n_params, sizeof *sums);
    int rc = 0;
    for (uint32_t u = 0; u < layout->n_units && rc == 0; u++) {
        rc = units->units[u].frozen ? 0 : unit_sumsq(units, u, sums, err);
    }
    *sum = 0;
    for (uint32_t i = 0; i < layout->n_params; i++) {
        *sum += sums[i];
    }
    free(sums);
    return rc;
}

shd_range shd_unit_update_grads(const shd_units *units, uint32_t u)
{
    const shd_unit *unit = &units->units[u];
    return (shd_range){unit->master.begin, unit->master.end,
                       shd_unit_element(unit->grads.data, units->config.reduce_dtype,
                                        unit->master.begin - unit->grads.begin)};
}

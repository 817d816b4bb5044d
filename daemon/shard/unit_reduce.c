/* Gradients of units, reduced and measured; see unit.h. Floor F3; the rank's thread. */
#include <stdlib.h>

#include "daemon/base/mem.h"
#include "daemon/shard/unit_internal.h"

/* Elements of one atom that are exchanged at a time, which keeps the tree's inputs in cache, and of
 * all atoms, which bounds the receive buffer. Multiples of SHD_BLOCK. */
enum { REDUCE_CHUNK = 1 << 18, REDUCE_MOST = 1 << 22 };

_Static_assert(REDUCE_MOST / SHD_MAX_WORLD >= SHD_BLOCK, "a block of every atom fits");

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

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

int shd_unit_grad_begin(shd_units *units, uint32_t u, shd_error *err)
{
    shd_unit *unit = &units->units[u];
    if (unit->frozen || unit->local_grad != NULL) {
        return 0;
    }
    /* Alone, and the first of its step: the local gradient is the reduced one. */
    if (units->strategy.world == 1 && units->folded == 0 &&
        units->config.dtype == units->config.reduce_dtype) {
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
    const int64_t begin = n * shd_strategy_atom(&units->strategy, units->rank);
    return (shd_range){
        begin, begin + n,
        shd_unit_element(unit->grads.data, units->config.reduce_dtype, begin - unit->grads.begin)};
}

static void sum(shd_units *units, void *out, const void *const *leaves, shd_dtype leaf_dtype,
                uint32_t n_leaves, int64_t n)
{
    shd_device_ops(units->dev)
        ->tree_sum(shd_device_opctx(units->dev), out, units->config.reduce_dtype, leaves,
                   leaf_dtype, n_leaves, n, units->folded > 0);
}

/* In which gradients travel: see unit.h. */
static shd_dtype wire_dtype(const shd_units *units)
{
    return units->config.reduce_dtype == SHD_F32 ? units->config.dtype : units->config.reduce_dtype;
}

/* Elements [at, at + len) of every atom of the local gradient, rounded for the wire. */
static void round_pieces(shd_units *units, const shd_unit *unit, int64_t at, int64_t len,
                         void *send)
{
    const int64_t n = unit->n / units->strategy.world;
    const shd_dtype dtype = units->config.dtype, wire = wire_dtype(units);
    for (uint32_t i = 0; i < units->strategy.world; i++) {
        shd_device_ops(units->dev)
            ->cast(shd_device_opctx(units->dev), shd_unit_element(send, wire, i * len), wire,
                   shd_unit_element(unit->local_grad, dtype, i * n + at), dtype, len);
    }
}

/* recv and send (NULL: the local gradient is sent as it is) hold W * chunk elements, leaves W. */
static int exchange_and_sum(shd_units *units, uint32_t u, void *recv, void *send,
                            const void **leaves, int64_t chunk, shd_error *err)
{
    const shd_strategy *s = &units->strategy;
    const shd_unit *unit = &units->units[u];
    const shd_range atom = shd_unit_atom(units, u);
    const shd_dtype wire = wire_dtype(units);
    const size_t size = shd_dtype_size(wire);
    const int64_t n = shd_unit_length(&atom);
    for (int64_t at = 0; at < n; at += chunk) {
        const int64_t len = min64(chunk, n - at);
        const void *from = send;
        int64_t stride = len;
        if (send == NULL) {
            from = shd_unit_element(unit->local_grad, wire, at);
            stride = n;
        } else {
            round_pieces(units, unit, at, len, send);
        }
        SHD_TRY(shd_comm_all_to_all(units->groups[SHD_GROUP_REDUCE], SHD_COMM_REDUCE_SCATTER,
                                    units->dev, from, (size_t)stride * size, recv,
                                    (size_t)len * size, err));
        /* The group is ordered by atom; the tree goes over ranks, which are the leaves. */
        for (uint32_t r = 0; r < s->world; r++) {
            leaves[r] = shd_unit_element(recv, wire, (int64_t)shd_strategy_atom(s, r) * len);
        }
        sum(units, shd_unit_element(atom.data, units->config.reduce_dtype, at), leaves, wire,
            s->world, len);
    }
    return 0;
}

/* Of one atom. */
static int64_t chunk_elements(const shd_units *units, const shd_unit *unit)
{
    const int64_t world = units->strategy.world;
    const int64_t most = REDUCE_MOST / world / SHD_BLOCK * SHD_BLOCK;
    return min64(min64(REDUCE_CHUNK, most), unit->n / world);
}

static int exchange(shd_units *units, uint32_t u, shd_error *err)
{
    const uint32_t world = units->strategy.world;
    const int64_t chunk = chunk_elements(units, &units->units[u]);
    const shd_dtype wire = wire_dtype(units);
    void *recv = NULL, *send = NULL;
    int rc = shd_unit_take(units, SHD_TAG_COMM, wire, chunk * world, &recv, err);
    if (rc == 0 && wire != units->config.dtype) {
        rc = shd_unit_take(units, SHD_TAG_COMM, wire, chunk * world, &send, err);
    }
    if (rc == 0) {
        const void **leaves = shd_calloc(world, sizeof *leaves);
        rc = exchange_and_sum(units, u, recv, send, leaves, chunk, err);
        free(leaves);
    }
    shd_arena_release(units->arena, send);
    shd_arena_release(units->arena, recv);
    return rc;
}

int shd_unit_grad_reduce(shd_units *units, uint32_t u, shd_error *err)
{
    shd_unit *unit = &units->units[u];
    if (unit->frozen) {
        return 0;
    }
    if (unit->local_grad == unit->grads.data) {
        unit->local_grad = NULL;
        return 0;
    }
    int rc = 0;
    if (units->strategy.world == 1) {
        const void *leaf = unit->local_grad;
        sum(units, unit->grads.data, &leaf, units->config.dtype, 1, unit->n);
    } else {
        rc = exchange(units, u, err);
    }
    shd_arena_release(units->arena, unit->local_grad);
    unit->local_grad = NULL;
    return rc;
}

void shd_units_round_done(shd_units *units)
{
    units->folded++;
}

int shd_unit_grad_finish(shd_units *units, uint32_t u, shd_error *err)
{
    if (units->units[u].frozen || shd_unit_alone(units, SHD_GROUP_REPLICA)) {
        return 0;
    }
    const shd_range atom = shd_unit_atom(units, u);
    const shd_range all = shd_unit_update_grads(units, u);
    return shd_comm_all_gather(
        units->groups[SHD_GROUP_REPLICA], SHD_COMM_ALL_REDUCE, units->dev, atom.data, all.data,
        (size_t)shd_unit_length(&atom) * shd_dtype_size(units->config.reduce_dtype), err);
}

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
    const shd_range grads = shd_unit_update_grads(units, u);
    const int64_t n = shd_unit_length(&grads);
    const int64_t mine = n / SHD_BLOCK, all = units->units[u].n / SHD_BLOCK;
    void *blocks = NULL;
    SHD_TRY(shd_arena_alloc(units->arena, SHD_TAG_WORKSPACE, (uint64_t)all * sizeof(double),
                            &blocks, err));
    double *own = (double *)blocks + mine * shd_comm_rank(units->groups[SHD_GROUP_NORM]);
    shd_device_ops(units->dev)
        ->block_sumsq(shd_device_opctx(units->dev), own, grads.data, units->config.reduce_dtype, n);
    const int rc =
        shd_unit_alone(units, SHD_GROUP_NORM)
            ? 0
            : shd_comm_all_gather(units->groups[SHD_GROUP_NORM], SHD_COMM_NORM, units->dev, own,
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

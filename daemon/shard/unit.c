/* Memory and movement of units; see unit.h. Floor F3; the rank's thread. */
#include "daemon/shard/unit.h"

#include <stdlib.h>

#include "daemon/base/mem.h"

/* Elements of one atom that are exchanged at a time: bounds the receive buffer to W MiB and keeps
 * the tree's inputs in cache. A multiple of SHD_BLOCK. */
enum { REDUCE_CHUNK = 1 << 18 };

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int take(shd_units *units, shd_tag tag, int64_t n, float **out, shd_error *err)
{
    void *data = NULL;
    SHD_TRY(shd_arena_alloc(units->arena, tag, (uint64_t)n * sizeof(float), &data, err));
    *out = data;
    return 0;
}

static int take_part(shd_units *units, shd_tag tag, int64_t n, uint32_t parts, uint32_t index,
                     shd_range *out, shd_error *err)
{
    const int64_t part = n / parts;
    *out = (shd_range){part * index, part * (index + 1), NULL};
    return take(units, tag, part, &out->data, err);
}

static void zero(shd_units *units, float *data, int64_t n)
{
    shd_device_ops(units->dev)->zero(shd_device_opctx(units->dev), data, (size_t)n * sizeof(float));
}

static int init_unit(shd_units *units, uint32_t u, shd_error *err)
{
    const shd_strategy *s = &units->strategy;
    const uint32_t r = units->rank;
    shd_unit *unit = &units->units[u];
    unit->n = units->layout->units[u].padded;
    SHD_TRY(take_part(units, SHD_TAG_PARAMS, unit->n, s->p, shd_strategy_index_p(s, r),
                      &unit->params, err));
    SHD_TRY(take_part(units, SHD_TAG_GRADS, unit->n, s->g, shd_strategy_index_g(s, r), &unit->grads,
                      err));
    const uint32_t io = shd_strategy_index_o(s, r);
    const int64_t own = unit->n / s->o;
    unit->master =
        (shd_range){own * io, own * (io + 1), unit->params.data + (own * io - unit->params.begin)};
    for (uint32_t k = 0; k < units->n_states; k++) {
        SHD_TRY(take(units, SHD_TAG_OPTIMIZER, own, &unit->state[k], err));
        zero(units, unit->state[k], own);
    }
    return 0;
}

int shd_units_init(shd_units *units, const shd_layout *layout, const shd_strategy *strategy,
                   uint32_t n_states, shd_device *dev, shd_arena *arena, shd_comm *comm,
                   shd_error *err)
{
    *units = (shd_units){.layout = layout,
                         .strategy = *strategy,
                         .rank = shd_comm_rank(comm),
                         .n_states = n_states,
                         .dev = dev,
                         .arena = arena,
                         .comm = comm};
    units->units = shd_calloc(layout->n_units, sizeof *units->units);
    int rc = 0;
    for (uint32_t u = 0; u < layout->n_units && rc == 0; u++) {
        rc = init_unit(units, u, err);
    }
    for (int g = 0; g < SHD_GROUP_COUNT && rc == 0; g++) {
        uint32_t members[SHD_MAX_WORLD];
        const uint32_t n = shd_strategy_group(strategy, units->rank, (shd_group)g, members);
        rc = shd_comm_split(comm, members, n, &units->groups[g], err);
    }
    if (rc < 0) {
        shd_units_fini(units);
    }
    return rc;
}

void shd_units_fini(shd_units *units)
{
    for (int g = 0; g < SHD_GROUP_COUNT; g++) {
        shd_comm_free(units->groups[g]);
    }
    for (uint32_t u = 0; units->units != NULL && u < units->layout->n_units; u++) {
        shd_unit *unit = &units->units[u];
        shd_unit_reshard(units, u);
        if (unit->local_grad != unit->grads.data) {
            shd_arena_release(units->arena, unit->local_grad);
        }
        shd_arena_release(units->arena, unit->params.data);
        shd_arena_release(units->arena, unit->grads.data);
        for (int k = 0; k < SHD_UNIT_STATES; k++) {
            shd_arena_release(units->arena, unit->state[k]);
        }
    }
    free(units->units);
    *units = (shd_units){0};
}

int shd_unit_gather(shd_units *units, uint32_t u, shd_error *err)
{
    shd_unit *unit = &units->units[u];
    if (unit->memory == SHD_UNIT_FULL) {
        return 0;
    }
    if (units->strategy.p == 1) {
        unit->full = unit->params.data;
    } else {
        SHD_TRY(take(units, SHD_TAG_GATHERED, unit->n, &unit->full, err));
        const int64_t part = unit->params.end - unit->params.begin;
        SHD_TRY(shd_comm_all_gather(units->groups[SHD_GROUP_GATHER], SHD_COMM_ALL_GATHER,
                                    units->dev, unit->params.data, unit->full,
                                    (size_t)part * sizeof(float), err));
    }
    unit->memory = SHD_UNIT_FULL;
    return 0;
}

void shd_unit_reshard(shd_units *units, uint32_t u)
{
    shd_unit *unit = &units->units[u];
    if (unit->full != unit->params.data) {
        shd_arena_release(units->arena, unit->full);
    }
    unit->full = NULL;
    unit->memory = SHD_UNIT_SHARDED;
}

/* Alignment gaps between parameters and the tail must not carry garbage into sums and norms. */
static void zero_padding(shd_units *units, uint32_t u, float *flat)
{
    int64_t at = 0;
    for (uint32_t i = 0; i < units->layout->n_params; i++) {
        const shd_slot *slot = &units->layout->slots[i];
        if (slot->unit != u) {
            continue;
        }
        if (slot->offset > at) {
            zero(units, flat + at, slot->offset - at);
        }
        at = slot->offset + slot->numel;
    }
    if (units->units[u].n > at) {
        zero(units, flat + at, units->units[u].n - at);
    }
}

int shd_unit_grad_begin(shd_units *units, uint32_t u, shd_error *err)
{
    shd_unit *unit = &units->units[u];
    if (unit->local_grad != NULL) {
        return 0;
    }
    /* Alone, and the first of its step: the local gradient is the reduced one. */
    if (units->strategy.world == 1 && units->folded == 0) {
        unit->local_grad = unit->grads.data;
    } else {
        SHD_TRY(take(units, SHD_TAG_COMM, unit->n, &unit->local_grad, err));
    }
    zero_padding(units, u, unit->local_grad);
    return 0;
}

shd_range shd_unit_atom(const shd_units *units, uint32_t u)
{
    const shd_unit *unit = &units->units[u];
    const int64_t n = unit->n / units->strategy.world;
    const int64_t begin = n * shd_strategy_atom(&units->strategy, units->rank);
    return (shd_range){begin, begin + n, unit->grads.data + (begin - unit->grads.begin)};
}

static int exchange_and_sum(shd_units *units, uint32_t u, float *recv, int64_t chunk,
                            shd_error *err)
{
    const shd_strategy *s = &units->strategy;
    const shd_unit *unit = &units->units[u];
    const shd_range atom = shd_unit_atom(units, u);
    const int64_t n = atom.end - atom.begin;
    for (int64_t at = 0; at < n; at += chunk) {
        const int64_t len = min64(chunk, n - at);
        SHD_TRY(shd_comm_all_to_all(units->groups[SHD_GROUP_REDUCE], SHD_COMM_REDUCE_SCATTER,
                                    units->dev, unit->local_grad + at, (size_t)n * sizeof(float),
                                    recv, (size_t)len * sizeof(float), err));
        /* The group is ordered by atom; the tree goes over ranks, which are the leaves. */
        const void *leaves[SHD_MAX_WORLD];
        for (uint32_t r = 0; r < s->world; r++) {
            leaves[r] = recv + (int64_t)shd_strategy_atom(s, r) * len;
        }
        shd_device_ops(units->dev)
            ->tree_sum(shd_device_opctx(units->dev), atom.data + at, SHD_F32, leaves, SHD_F32,
                       s->world, len, units->folded > 0);
    }
    return 0;
}

int shd_unit_grad_reduce(shd_units *units, uint32_t u, shd_error *err)
{
    const shd_ops *ops = shd_device_ops(units->dev);
    shd_unit *unit = &units->units[u];
    int rc = 0;
    if (units->strategy.world == 1) {
        if (unit->local_grad == unit->grads.data) {
            unit->local_grad = NULL;
            return 0;
        }
        const void *leaf = unit->local_grad;
        ops->tree_sum(shd_device_opctx(units->dev), unit->grads.data, SHD_F32, &leaf, SHD_F32, 1,
                      unit->n, 1);
    } else {
        const int64_t chunk = min64(REDUCE_CHUNK, unit->n / units->strategy.world);
        float *recv = NULL;
        rc = take(units, SHD_TAG_COMM, chunk * units->strategy.world, &recv, err);
        if (rc == 0) {
            rc = exchange_and_sum(units, u, recv, chunk, err);
        }
        shd_arena_release(units->arena, recv);
    }
    shd_arena_release(units->arena, unit->local_grad);
    unit->local_grad = NULL;
    return rc;
}

void shd_units_round_done(shd_units *units)
{
    units->folded++;
}

/* A part that this rank alone holds is complete as it is. */
static int alone(const shd_units *units, shd_group group)
{
    return shd_comm_size(units->groups[group]) == 1;
}

int shd_unit_grad_finish(shd_units *units, uint32_t u, shd_error *err)
{
    if (alone(units, SHD_GROUP_REPLICA)) {
        return 0;
    }
    const shd_range atom = shd_unit_atom(units, u);
    const shd_range all = shd_unit_update_grads(units, u);
    return shd_comm_all_gather(units->groups[SHD_GROUP_REPLICA], SHD_COMM_ALL_REDUCE, units->dev,
                               atom.data, all.data, (size_t)(atom.end - atom.begin) * sizeof(float),
                               err);
}

int shd_unit_sumsq(shd_units *units, uint32_t u, double *sum, shd_error *err)
{
    const shd_range grads = shd_unit_update_grads(units, u);
    const int64_t n = grads.end - grads.begin;
    const int64_t mine = n / SHD_BLOCK, all = units->units[u].n / SHD_BLOCK;
    void *blocks = NULL;
    SHD_TRY(shd_arena_alloc(units->arena, SHD_TAG_WORKSPACE, (uint64_t)all * sizeof(double),
                            &blocks, err));
    double *own = (double *)blocks + mine * shd_comm_rank(units->groups[SHD_GROUP_NORM]);
    shd_device_ops(units->dev)
        ->block_sumsq(shd_device_opctx(units->dev), own, grads.data, SHD_F32, n);
    const int rc =
        alone(units, SHD_GROUP_NORM)
            ? 0
            : shd_comm_all_gather(units->groups[SHD_GROUP_NORM], SHD_COMM_NORM, units->dev, own,
                                  blocks, (size_t)mine * sizeof(double), err);
    if (rc == 0) {
        double *host = shd_malloc((size_t)all * sizeof(double));
        shd_device_to_host(units->dev, host, blocks, (size_t)all * sizeof(double));
        for (int64_t i = 0; i < all; i++) {
            *sum += host[i];
        }
        free(host);
    }
    shd_arena_release(units->arena, blocks);
    return rc;
}

shd_range shd_unit_update_grads(const shd_units *units, uint32_t u)
{
    const shd_unit *unit = &units->units[u];
    return (shd_range){unit->master.begin, unit->master.end,
                       unit->grads.data + (unit->master.begin - unit->grads.begin)};
}

int shd_unit_update_finish(shd_units *units, uint32_t u, shd_error *err)
{
    if (alone(units, SHD_GROUP_UPDATE)) {
        return 0;
    }
    const shd_unit *unit = &units->units[u];
    const shd_range mine = unit->master;
    return shd_comm_all_gather(units->groups[SHD_GROUP_UPDATE], SHD_COMM_ALL_GATHER, units->dev,
                               mine.data, unit->params.data,
                               (size_t)(mine.end - mine.begin) * sizeof(float), err);
}

/* Memory of units, parameters gathered and updated; see unit.h. Floor F3; the rank's thread. */
#include "daemon/shard/schedule.h"
#include "daemon/shard/unit_internal.h"

#include <stdlib.h>

#include "daemon/base/mem.h"

static int take_part(shd_units *units, shd_tag tag, shd_dtype dtype, int64_t n, uint32_t parts,
                     uint32_t index, shd_range *out, shd_error *err)
{
    const int64_t part = n / parts;
    *out = (shd_range){part * index, part * (index + 1), NULL};
    return shd_unit_take(units, tag, dtype, part, &out->data, err);
}

static int init_optimizer(shd_units *units, shd_unit *unit, shd_error *err)
{
    const shd_strategy *s = &unit->strategy;
    const uint32_t io = shd_strategy_index_o(s, units->rank);
    if (units->config.dtype == SHD_F32) {
        const int64_t own = unit->n / s->o;
        unit->master = (shd_range){own * io, own * (io + 1), NULL};
        unit->master.data =
            shd_unit_element(unit->params.data, SHD_F32, unit->master.begin - unit->params.begin);
    } else {
        SHD_TRY(
            take_part(units, SHD_TAG_OPTIMIZER, SHD_F32, unit->n, s->o, io, &unit->master, err));
    }
    for (uint32_t k = 0; k < units->config.n_states; k++) {
        void *state = NULL;
        SHD_TRY(shd_unit_take(units, SHD_TAG_OPTIMIZER, SHD_F32, shd_unit_length(&unit->master),
                              &state, err));
        unit->state[k] = state;
        shd_unit_zero(units, state, SHD_F32, shd_unit_length(&unit->master));
    }
    return 0;
}

static int init_unit(shd_units *units, uint32_t u, shd_error *err)
{
    shd_unit *unit = &units->units[u];
    const shd_strategy *s = &unit->strategy;
    const uint32_t r = units->rank;
    unit->strategy = shd_schedule_strategy(&units->strategy, &units->layout->units[u]);
    unit->groups = units->layout->units[u].whole ? units->whole_groups : units->groups;
    unit->n = units->layout->units[u].padded;
    unit->frozen = units->layout->units[u].frozen;
    SHD_TRY(take_part(units, SHD_TAG_PARAMS, units->config.dtype, unit->n, s->p,
                      shd_strategy_index_p(s, r), &unit->params, err));
    if (s->p == 1) {
        unit->full = unit->params.data;
        unit->memory = SHD_UNIT_FULL;
    }
    if (unit->frozen) {
        return 0;
    }
    SHD_TRY(take_part(units, SHD_TAG_GRADS, units->config.reduce_dtype, unit->n, s->g,
                      shd_strategy_index_g(s, r), &unit->grads, err));
    const uint32_t partials = shd_reduction_partials(&units->config.reduction, s);
    if (partials > 0) {
        SHD_TRY(shd_unit_take(units, SHD_TAG_GRADS, units->config.reduce_dtype,
                              unit->n / s->world * partials, &unit->partials, err));
    }
    return init_optimizer(units, unit, err);
}

static int split(shd_units *units, const shd_strategy *strategy, shd_comm **groups, shd_error *err)
{
    uint32_t *members = shd_calloc(strategy->world, sizeof *members);
    int rc = 0;
    for (int g = 0; g < SHD_GROUP_COUNT && rc == 0; g++) {
        const uint32_t n = shd_strategy_group(strategy, units->rank, (shd_group)g, members);
        rc = shd_comm_split(units->comm, members, n, &groups[g], err);
    }
    free(members);
    return rc;
}

static int split_all(shd_units *units, shd_error *err)
{
    SHD_TRY(split(units, &units->strategy, units->groups, err));
    for (uint32_t u = 0; u < units->layout->n_units; u++) {
        if (units->layout->units[u].whole) {
            return split(units, &units->units[u].strategy, units->whole_groups, err);
        }
    }
    return 0;
}

int shd_units_init(shd_units *units, const shd_layout *layout, const shd_strategy *strategy,
                   const shd_units_config *config, shd_device *dev, shd_arena *arena,
                   shd_comm *comm, shd_error *err)
{
    *units = (shd_units){.layout = layout,
                         .strategy = *strategy,
                         .config = *config,
                         .rank = shd_comm_rank(comm),
                         .dev = dev,
                         .arena = arena,
                         .comm = comm};
    units->units = shd_calloc(layout->n_units, sizeof *units->units);
    int rc = 0;
    for (uint32_t u = 0; u < layout->n_units && rc == 0; u++) {
        rc = init_unit(units, u, err);
    }
    if (rc == 0) {
        rc = split_all(units, err);
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
        shd_comm_free(units->whole_groups[g]);
    }
    for (uint32_t u = 0; units->units != NULL && u < units->layout->n_units; u++) {
        shd_unit *unit = &units->units[u];
        shd_unit_reshard(units, u);
        if (unit->local_grad != unit->grads.data) {
            shd_arena_release(units->arena, unit->local_grad);
        }
        shd_arena_release(units->arena, unit->params.data);
        shd_arena_release(units->arena, unit->grads.data);
        shd_arena_release(units->arena, unit->partials);
        if (units->config.dtype != SHD_F32) {
            shd_arena_release(units->arena, unit->master.data);
        }
        for (int k = 0; k < SHD_UNIT_STATES; k++) {
            shd_arena_release(units->arena, unit->state[k]);
        }
    }
    free(units->units);
    *units = (shd_units){0};
}

static size_t bytes_of(const shd_units *units, int64_t n)
{
    return (size_t)n * shd_dtype_size(units->config.dtype);
}

int shd_unit_gather_begin(shd_units *units, uint32_t u, shd_error *err)
{
    shd_unit *unit = &units->units[u];
    SHD_TRY(shd_unit_take(units, SHD_TAG_GATHERED, units->config.dtype, unit->n, &unit->full, err));
    unit->memory = SHD_UNIT_COMING;
    return 0;
}

int shd_unit_gather_run(shd_units *units, uint32_t u, shd_device *dev, shd_error *err)
{
    const shd_unit *unit = &units->units[u];
    if (unit->kept != NULL) {
        return shd_comm_all_gather(unit->groups[SHD_GROUP_REGATHER], SHD_COMM_ALL_GATHER, dev,
                                   unit->kept, unit->full,
                                   bytes_of(units, unit->n / unit->strategy.regather), err);
    }
    return shd_comm_all_gather(unit->groups[SHD_GROUP_GATHER], SHD_COMM_ALL_GATHER, dev,
                               unit->params.data, unit->full,
                               bytes_of(units, shd_unit_length(&unit->params)), err);
}

void shd_unit_gather_end(shd_units *units, uint32_t u)
{
    shd_unit *unit = &units->units[u];
    shd_arena_release(units->arena, unit->kept);
    unit->kept = NULL;
    unit->memory = SHD_UNIT_FULL;
}

int shd_unit_gather(shd_units *units, uint32_t u, shd_error *err)
{
    if (units->units[u].memory == SHD_UNIT_FULL) {
        return 0;
    }
    SHD_TRY(shd_unit_gather_begin(units, u, err));
    SHD_TRY(shd_unit_gather_run(units, u, units->dev, err));
    shd_unit_gather_end(units, u);
    return 0;
}

static void drop_full(shd_units *units, shd_unit *unit)
{
    shd_arena_release(units->arena, unit->full);
    unit->full = NULL;
    unit->memory = SHD_UNIT_SHARDED;
}

void shd_unit_reshard(shd_units *units, uint32_t u)
{
    shd_unit *unit = &units->units[u];
    if (unit->full == unit->params.data) {
        return;
    }
    drop_full(units, unit);
    shd_arena_release(units->arena, unit->kept);
    unit->kept = NULL;
}

int shd_unit_keep(shd_units *units, uint32_t u, shd_error *err)
{
    shd_unit *unit = &units->units[u];
    const shd_dtype dtype = units->config.dtype;
    const int64_t n = unit->n / unit->strategy.regather;
    const int64_t first = n * shd_strategy_index_kept(&unit->strategy, units->rank);
    SHD_TRY(shd_unit_take(units, SHD_TAG_GATHERED, dtype, n, &unit->kept, err));
    shd_device_to_device(units->dev, unit->kept, shd_unit_element(unit->full, dtype, first),
                         bytes_of(units, n));
    drop_full(units, unit);
    return 0;
}

int shd_unit_update_finish(shd_units *units, uint32_t u, shd_error *err)
{
    const shd_unit *unit = &units->units[u];
    const shd_dtype dtype = units->config.dtype;
    if (unit->frozen) {
        return 0;
    }
    const int64_t n = shd_unit_length(&unit->master);
    void *mine =
        shd_unit_element(unit->params.data, dtype, unit->master.begin - unit->params.begin);
    if (dtype != SHD_F32) {
        shd_device_ops(units->dev)
            ->cast(shd_device_opctx(units->dev), mine, dtype, unit->master.data, SHD_F32, n);
    }
    if (shd_unit_alone(unit, SHD_GROUP_UPDATE)) {
        return 0;
    }
    return shd_comm_all_gather(unit->groups[SHD_GROUP_UPDATE], SHD_COMM_ALL_GATHER, units->dev,
                               mine, unit->params.data, (size_t)n * shd_dtype_size(dtype), err);
}

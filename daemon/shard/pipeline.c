/* The schedule of one micro-batch; see pipeline.h. Floor F3; the rank's thread. */
#include "daemon/shard/pipeline.h"

typedef struct item {
    uint32_t segment;
    int backward;
} item;

static uint32_t n_items(const shd_pipeline *pl, int train)
{
    return train ? 2 * pl->n_segments - pl->first_backward : pl->n_segments;
}

static item item_at(const shd_pipeline *pl, uint32_t i)
{
    const uint32_t n = pl->n_segments;
    return i < n ? (item){i, 0} : (item){2 * n - 1 - i, 1};
}

static int uses(const shd_segment *segment, uint32_t unit)
{
    for (uint32_t k = 0; k < segment->n_units; k++) {
        if (segment->units[k] == unit) {
            return 1;
        }
    }
    return 0;
}

static int needs_params(const shd_pipeline *pl, uint32_t i, uint32_t unit)
{
    const item it = item_at(pl, i);
    const shd_segment *segment = &pl->segments[it.segment];
    return uses(segment, unit) &&
           (!it.backward || segment->backward_needs_params || segment->recompute);
}

/* Is unit wanted by the next item, or by any later one when it is to stay gathered? */
static int keep(const shd_pipeline *pl, const shd_units *units, uint32_t i, uint32_t n,
                uint32_t unit)
{
    const int stays = units->strategy.p > 1 && units->strategy.regather == 1;
    const uint32_t horizon = !stays && i + 2 < n ? i + 2 : n;
    for (uint32_t later = i + 1; later < horizon; later++) {
        if (needs_params(pl, later, unit)) {
            return 1;
        }
    }
    return 0;
}

static int last_gradient(const shd_pipeline *pl, uint32_t segment, uint32_t unit)
{
    for (uint32_t earlier = pl->first_backward; earlier < segment; earlier++) {
        if (uses(&pl->segments[earlier], unit)) {
            return 0;
        }
    }
    return 1;
}

static int run_backward(const shd_pipeline *pl, shd_units *units, uint32_t segment, shd_error *err)
{
    const shd_segment *seg = &pl->segments[segment];
    if (seg->recompute) {
        SHD_TRY(pl->recompute(pl->arg, segment, err));
    }
    for (uint32_t k = 0; k < seg->n_units; k++) {
        SHD_TRY(shd_unit_grad_begin(units, seg->units[k], err));
    }
    SHD_TRY(pl->backward(pl->arg, segment, err));
    for (uint32_t k = 0; k < seg->n_units; k++) {
        if (!units->units[seg->units[k]].frozen && last_gradient(pl, segment, seg->units[k])) {
            pl->complete_grads(pl->arg, seg->units[k]);
            SHD_TRY(shd_unit_grad_reduce(units, seg->units[k], err));
        }
    }
    return 0;
}

static int run(const shd_pipeline *pl, shd_units *units, int train, shd_error *err)
{
    const uint32_t n = n_items(pl, train);
    for (uint32_t i = 0; i < n; i++) {
        const item it = item_at(pl, i);
        const shd_segment *seg = &pl->segments[it.segment];
        for (uint32_t k = 0; k < seg->n_units; k++) {
            if (needs_params(pl, i, seg->units[k])) {
                SHD_TRY(shd_unit_gather(units, seg->units[k], err));
            }
        }
        if (it.backward) {
            SHD_TRY(run_backward(pl, units, it.segment, err));
        } else if (pl->forward != NULL) {
            SHD_TRY(pl->forward(pl->arg, it.segment, err));
        }
        for (uint32_t k = 0; k < seg->n_units; k++) {
            if (!keep(pl, units, i, n, seg->units[k])) {
                shd_unit_reshard(units, seg->units[k]);
            }
        }
    }
    return 0;
}

int shd_pipeline_train(const shd_pipeline *pipeline, shd_units *units, shd_error *err)
{
    return run(pipeline, units, 1, err);
}

int shd_pipeline_forward(const shd_pipeline *pipeline, shd_units *units, shd_error *err)
{
    return run(pipeline, units, 0, err);
}

/* Parameter to unit, offset, padding; see layout.h. Floor F3; pure. */
#include "daemon/shard/layout.h"

#include <stdlib.h>

#include "daemon/base/mem.h"

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

void shd_layout_init(shd_layout *layout, uint32_t n_params, const int64_t *numel,
                     const uint32_t *unit, uint32_t n_units, uint32_t world)
{
    *layout = (shd_layout){.n_params = n_params, .n_units = n_units};
    layout->slots = shd_calloc(n_params, sizeof *layout->slots);
    layout->units = shd_calloc(n_units, sizeof *layout->units);
    for (uint32_t i = 0; i < n_params; i++) {
        shd_unit_layout *u = &layout->units[unit[i]];
        layout->slots[i] = (shd_slot){unit[i], u->padded, numel[i]};
        u->numel += numel[i];
        u->padded += round_up(numel[i], SHD_PARAM_ALIGN);
    }
    for (uint32_t i = 0; i < n_units; i++) {
        layout->units[i].padded = round_up(layout->units[i].padded, (int64_t)world * SHD_BLOCK);
        layout->numel += layout->units[i].numel;
        layout->padded += layout->units[i].padded;
    }
}

void shd_layout_fini(shd_layout *layout)
{
    free(layout->slots);
    free(layout->units);
    *layout = (shd_layout){0};
}

int64_t shd_slot_intersect(const shd_slot *slot, int64_t begin, int64_t end, int64_t *first,
                           int64_t *at)
{
    const int64_t lo = slot->offset > begin ? slot->offset : begin;
    const int64_t slot_end = slot->offset + slot->numel;
    const int64_t hi = slot_end < end ? slot_end : end;
    if (hi <= lo) {
        return 0;
    }
    *first = lo - slot->offset;
    *at = lo - begin;
    return hi - lo;
}

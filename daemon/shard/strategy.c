/* Degrees to parts and groups; see strategy.h. Floor F3; pure. */
#include "daemon/shard/strategy.h"

uint32_t shd_strategy_index_p(const shd_strategy *s, uint32_t rank)
{
    return rank % s->p;
}

uint32_t shd_strategy_index_g(const shd_strategy *s, uint32_t rank)
{
    return shd_strategy_index_p(s, rank) * (s->g / s->p) + rank % s->g / s->p;
}

uint32_t shd_strategy_index_o(const shd_strategy *s, uint32_t rank)
{
    return shd_strategy_index_g(s, rank) * (s->o / s->g) + rank % s->o / s->g;
}

uint32_t shd_strategy_atom(const shd_strategy *s, uint32_t rank)
{
    return shd_strategy_index_o(s, rank) * (s->world / s->o) + rank / s->o;
}

uint32_t shd_strategy_index_kept(const shd_strategy *s, uint32_t rank)
{
    return rank % s->regather;
}

/* The rank of an optimizer group (ranks [o * which, o * (which + 1))) that holds o-part `index`:
 * the formulas of the parts, solved for r. */
static uint32_t holder(const shd_strategy *s, uint32_t index, uint32_t which)
{
    const uint32_t ig = index / (s->o / s->g), ip = ig / (s->g / s->p);
    return ip + s->p * (ig % (s->g / s->p)) + s->g * (index % (s->o / s->g)) + s->o * which;
}

uint32_t shd_strategy_group_size(const shd_strategy *s, shd_group group)
{
    switch (group) {
    case SHD_GROUP_GATHER:
        return s->p;
    case SHD_GROUP_REGATHER:
        return s->regather;
    case SHD_GROUP_REDUCE:
        return s->world;
    case SHD_GROUP_REPLICA:
        return s->world / s->o;
    case SHD_GROUP_UPDATE:
        return s->o / s->p;
    case SHD_GROUP_NORM:
        return s->o;
    case SHD_GROUP_COUNT:
        break;
    }
    return 0;
}

uint32_t shd_strategy_member(const shd_strategy *s, uint32_t rank, shd_group group, uint32_t i)
{
    const uint32_t replicas = s->world / s->o;
    switch (group) {
    case SHD_GROUP_GATHER:
        return rank - rank % s->p + i;
    case SHD_GROUP_REGATHER:
        return rank - rank % s->regather + i;
    case SHD_GROUP_REDUCE:
        return holder(s, i / replicas, i % replicas);
    case SHD_GROUP_REPLICA:
        return rank % s->o + s->o * i;
    case SHD_GROUP_UPDATE:
        return holder(s, shd_strategy_index_p(s, rank) * (s->o / s->p) + i, rank / s->o);
    case SHD_GROUP_NORM:
        return holder(s, i, rank / s->o);
    case SHD_GROUP_COUNT:
        break;
    }
    return rank;
}

uint32_t shd_strategy_group(const shd_strategy *s, uint32_t rank, shd_group group,
                            uint32_t *members)
{
    const uint32_t n = shd_strategy_group_size(s, group);
    for (uint32_t i = 0; i < n; i++) {
        members[i] = shd_strategy_member(s, rank, group, i);
    }
    return n;
}

/* Levels of determinism; see reduction.h. Floor F3; pure. */
#include "daemon/shard/reduction.h"

uint32_t shd_reduction_rounds(const shd_reduction *reduction, const shd_strategy *strategy)
{
    return reduction->level == SHD_DETERMINISM_WORLD ? reduction->width / strategy->world : 1;
}

uint32_t shd_reduction_partials(const shd_reduction *reduction, const shd_strategy *strategy)
{
    uint32_t n = 0;
    for (uint32_t rounds = shd_reduction_rounds(reduction, strategy); rounds > 1; rounds /= 2) {
        n++;
    }
    return n;
}

int shd_reduction_each_round(const shd_reduction *reduction, const shd_strategy *strategy)
{
    return reduction->level != SHD_DETERMINISM_RUN || strategy->g > 1 || strategy->world == 1;
}

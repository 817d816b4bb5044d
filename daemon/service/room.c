#include "daemon/service/room.h"

#include <stddef.h>

uint32_t shd_room_place(const uint64_t *planned, uint32_t n_ranks, uint32_t world,
                        uint64_t *fullest)
{
    uint32_t best = 0;
    uint64_t best_max = UINT64_MAX, best_sum = UINT64_MAX;
    for (uint32_t first = 0; first + world <= n_ranks; first++) {
        uint64_t max = 0, sum = 0;
        for (uint32_t r = first; r < first + world; r++) {
            max = planned[r] > max ? planned[r] : max;
            sum += planned[r];
        }
        if (max < best_max || (max == best_max && sum < best_sum)) {
            best = first;
            best_max = max;
            best_sum = sum;
        }
    }
    *fullest = best_max;
    return best;
}

uint64_t shd_room_available(const shd_room *room, uint32_t world, uint32_t *first)
{
    uint64_t fullest = 0;
    *first =
        room->planned != NULL ? shd_room_place(room->planned, room->n_ranks, world, &fullest) : 0;
    return fullest < room->budget ? room->budget - fullest : 0;
}

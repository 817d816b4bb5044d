/* Where there is room for a job: on the ranks of this daemon, beside what other jobs have planned,
 * or on those of a stated machine. Floor F5; pure. */
#ifndef SHD_DAEMON_SERVICE_ROOM_H
#define SHD_DAEMON_SERVICE_ROOM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_room {
    const uint64_t *planned; /* [n_ranks], bytes; borrowed. NULL: a stated machine's ranks */
    uint32_t n_ranks;
    uint64_t budget; /* bytes of a rank */
} shd_room;

/* The window of `world` consecutive ranks whose fullest rank has the least planned (then: whose sum
 * is least; then: the first). *fullest gets that rank's planned bytes. world <= n_ranks. */
uint32_t shd_room_place(const uint64_t *planned, uint32_t n_ranks, uint32_t world,
                        uint64_t *fullest);

/* Bytes free on each of `world` ranks; *first gets the first of them, 0 on a stated machine. */
uint64_t shd_room_available(const shd_room *room, uint32_t world, uint32_t *first);

#ifdef __cplusplus
}
#endif
#endif

/* Tagged, counted memory of one (job, rank): every byte of model state, activation, buffer and
 * staging is taken here under a tag, so that a plan can be compared with what was really used, to
 * the byte. Floor F0; one thread at a time (the rank's), except shd_arena_usage (any thread).
 *
 * An arena is one address range with a deterministic first-fit allocator over it: the same
 * sequence of calls gives the same offsets. A *virtual* arena has no memory behind its addresses
 * and no limit; running a step on it measures how large a real one must be ("extent"). A *real*
 * arena is mapped once, with huge pages asked for and every page touched, and never grows: an
 * allocation beyond its extent is SHD_ENOMEM. */
#ifndef SHD_DAEMON_BASE_ARENA_H
#define SHD_DAEMON_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What bytes are for. The order is the order of every table shown to a user. */
typedef enum shd_tag {
    SHD_TAG_PARAMS = 0,  /* parameter shards (in fp32 training they are the master weights) */
    SHD_TAG_GRADS,       /* gradient shards, reduced */
    SHD_TAG_OPTIMIZER,   /* moments */
    SHD_TAG_GATHERED,    /* full parameters of units while they are needed */
    SHD_TAG_ACTIVATIONS, /* tensors kept from forward to backward, and their gradients */
    SHD_TAG_COMM,        /* unreduced gradients of a unit, receive buffers of collectives */
    SHD_TAG_WORKSPACE,   /* scratch of a single op or of the norm */
    SHD_TAG_DATA,        /* token ids and targets of the batch */
    SHD_TAG_COUNT
} shd_tag;

/* Lower-case name as in status and plan: "params", "grads", ... Static storage. */
const char *shd_tag_name(shd_tag tag);

typedef struct shd_usage {
    uint64_t now;  /* bytes */
    uint64_t peak; /* bytes; the largest `now` since creation or reset */
} shd_usage;

typedef struct shd_arena shd_arena;

/* Every allocation is rounded up to this many bytes and aligned to it (a huge page holds a whole
 * number of them, and vector loads never straddle two tensors). Counted bytes are rounded bytes. */
#define SHD_ARENA_ALIGN 256u

/* Creates an arena without memory behind it. Never fails. */
shd_arena *shd_arena_create_virtual(void);

/* Creates an arena of `extent` bytes (rounded up to 2 MiB). Maps and touches all of it, with
 * `nthreads` threads touching. SHD_ENOMEM with the numbers when the system refuses. */
int shd_arena_create(uint64_t extent, int nthreads, shd_arena **out, shd_error *err);

/* Unmaps everything. NULL is fine. Outstanding allocations die with it. */
void shd_arena_free(shd_arena *arena);

int shd_arena_is_virtual(const shd_arena *arena);

/* Takes `size` bytes (0 becomes SHD_ARENA_ALIGN) under `tag`; *out stays valid until
 * shd_arena_release. Contents are undefined. SHD_ENOMEM names tag, size, and what is free. */
int shd_arena_alloc(shd_arena *arena, shd_tag tag, uint64_t size, void **out, shd_error *err);

/* Gives a block back; NULL is fine; an address that is not a live block aborts the process. */
void shd_arena_release(shd_arena *arena, void *ptr);

/* Bytes by tag. Safe from any thread while the owner allocates (values are relaxed atomics). */
void shd_arena_usage(const shd_arena *arena, shd_usage out[SHD_TAG_COUNT]);

/* The largest number of bytes that all tags together held at one moment. */
uint64_t shd_arena_total_peak(const shd_arena *arena);

/* Highest offset ever in use: the extent a real arena needs to run the same calls (fragmentation
 * included). */
uint64_t shd_arena_extent(const shd_arena *arena);

/* Forgets peaks: `peak` becomes `now` for every tag and in total. */
void shd_arena_reset_peaks(shd_arena *arena);

#ifdef __cplusplus
}
#endif
#endif

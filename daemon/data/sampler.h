/* Which window of a token source a sample is: shuffled epochs as a pure function of (seed, global
 * sample cursor), so that neither the number of ranks nor a restart changes the order.
 * Floor F3; pure, any thread. */
#ifndef SHD_DAEMON_DATA_SAMPLER_H
#define SHD_DAEMON_DATA_SAMPLER_H

#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Windows of seq_len tokens plus the next one (the last target), laid end to end over the tokens
 * [begin, end): sample i of an epoch's permutation covers [begin + i*seq_len, ... + seq_len + 1).
 */
typedef struct shd_sampler {
    uint64_t begin;
    uint64_t windows; /* per epoch */
    uint64_t seed;
    uint32_t seq_len;
    uint32_t slack; /* tokens that the windows leave over; < seq_len */
    int shuffle;    /* 0: in file order */
} shd_sampler;

/* SHD_EDATA when [begin, end) holds fewer than seq_len + 1 tokens (names both numbers); SHD_EINVAL
 * when seq_len is 0. */
int shd_sampler_init(shd_sampler *sampler, uint64_t begin, uint64_t end, uint32_t seq_len,
                     uint64_t seed, int shuffle, shd_error *err);

/* Token offset of the window for global sample number `cursor` (epoch = cursor / windows). Every
 * window comes exactly once an epoch. When shuffling, the windows of epoch e also begin at a shift
 * of Philox(seed, e) mod (slack + 1) tokens, so that borders move and no window is lost. */
uint64_t shd_sampler_offset(const shd_sampler *sampler, uint64_t cursor);

#ifdef __cplusplus
}
#endif
#endif

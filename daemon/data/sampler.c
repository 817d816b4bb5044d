/* Windows in shuffled order without a table: the order of an epoch is a keyed permutation of the
 * window numbers. Floor F3. */
#include "daemon/data/sampler.h"

#include "kernels/philox.h"

/* Four rounds make a good permutation (Luby & Rackoff 1988); some more for very small domains. */
#define ROUNDS 6u

/* Counters of the epoch's stream: the shift, and one per (round, half block) from ROUND on. */
#define INDEX_SHIFT 0u
#define INDEX_ROUND(round) ((uint64_t)((round) + 1) << 32)

static uint32_t random_word(const shd_sampler *sampler, uint64_t epoch, uint64_t index)
{
    uint32_t out[4];
    shd_philox(sampler->seed, SHD_STREAM(SHD_STREAM_SHUFFLE, epoch), index, out);
    return out[0];
}

/* The permutation's value at i < windows: a Feistel network on 2 * half bits, walked until it is
 * back among the windows (Black & Rogaway 2002, "Ciphers with arbitrary finite domains", §3). */
static uint64_t permute(const shd_sampler *sampler, uint64_t epoch, uint64_t i)
{
    unsigned half = 1;
    while (half < 32 && (sampler->windows - 1) >> (2 * half) != 0) {
        half++;
    }
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (unsigned round = 0; round < ROUNDS; round++) {
            const uint64_t mixed =
                (left ^ random_word(sampler, epoch, INDEX_ROUND(round) | right)) & mask;
            left = right;
            right = mixed;
        }
        i = left << half | right;
    } while (i >= sampler->windows);
    return i;
}

int shd_sampler_init(shd_sampler *sampler, uint64_t begin, uint64_t end, uint32_t seq_len,
                     uint64_t seed, int shuffle, shd_error *err)
{
    const uint64_t tokens = end > begin ? end - begin : 0;

    if (seq_len == 0) {
        return shd_fail(err, SHD_EINVAL, "the sequence length must be at least 1");
    }
    if (tokens < (uint64_t)seq_len + 1) {
        return shd_fail(err, SHD_EDATA,
                        "%llu tokens are too few for sequences of %u: at least %llu are needed",
                        (unsigned long long)tokens, seq_len, (unsigned long long)seq_len + 1);
    }
    sampler->begin = begin;
    sampler->windows = (tokens - 1) / seq_len;
    sampler->slack = (uint32_t)((tokens - 1) % seq_len);
    sampler->seed = seed;
    sampler->seq_len = seq_len;
    sampler->shuffle = shuffle;
    return 0;
}

uint64_t shd_sampler_offset(const shd_sampler *sampler, uint64_t cursor)
{
    const uint64_t epoch = cursor / sampler->windows;
    const uint64_t i = cursor % sampler->windows;

    if (!sampler->shuffle) {
        return sampler->begin + i * sampler->seq_len;
    }
    const uint32_t shift = random_word(sampler, epoch, INDEX_SHIFT) % (sampler->slack + 1);
    return sampler->begin + shift + permute(sampler, epoch, i) * sampler->seq_len;
}

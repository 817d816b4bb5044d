/* Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): a
 * counter-based generator, so that a random number is a function of what it is for (seed, stream,
 * index) and never of who draws it. Floor F1; pure. */
#ifndef SHD_KERNELS_PHILOX_H
#define SHD_KERNELS_PHILOX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a stream of random numbers is for; the upper bits of `stream` keep uses apart. */
#define SHD_STREAM(use, id) (((uint64_t)(use) << 48) | (uint64_t)(id))
enum shd_stream_use {
    SHD_STREAM_INIT = 1,    /* id: parameter index */
    SHD_STREAM_SHUFFLE = 2, /* id: epoch */
    SHD_STREAM_SAMPLE = 3,  /* id: request; generation */
    SHD_STREAM_DROPOUT = 4  /* id: site; gives a key, see kernels/cpu/mask.h */
};

/* Four 32-bit words for counter (index, stream) under key seed. */
static inline void shd_philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        const uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Uniform in (0, 1]: never 0, so a logarithm of it is finite. */
static inline float shd_philox_unit(uint32_t word)
{
    return (float)((word >> 8) + 1u) * (1.0f / 16777216.0f);
}

#ifdef __cplusplus
}
#endif
#endif

/* Which elements a dropout keeps. A group of 64 elements takes 16 Philox blocks: element e of a
 * sample is word (e / 16) % 4 of block (e / 64) * 16 + e % 16, so that whole vectors of any width
 * come out in order. The generator's key is itself drawn from (seed, step, site), its stream is the
 * sample. Floor F1; pure. Included only by files that are compiled per instruction set. */
#ifndef SHD_KERNELS_CPU_MASK_H
#define SHD_KERNELS_CPU_MASK_H

#include "kernels/compute_ops.h"
#include "kernels/cpu/half.h"
#include "kernels/philox.h"

#define MASK_GROUP 64

typedef uint64_t vu64 __attribute__((vector_size(VL * 4))); /* VL / 2 lanes */

typedef struct mask {
    uint64_t key;
    uint32_t threshold; /* words below it drop their element */
    float factor;       /* of what is kept */
} mask;

static inline mask mask_of(const shd_dropout *d)
{
    uint32_t words[4];
    shd_philox(d->seed, SHD_STREAM(SHD_STREAM_DROPOUT, d->site), d->step, words);
    return (mask){.key = (uint64_t)words[1] << 32 | words[0],
                  .threshold = (uint32_t)((double)d->p * 4294967296.0),
                  .factor = (float)(1.0 / (1.0 - (double)d->p))};
}

/* Products of the lower halves of 64-bit lanes. */
static inline vu64 mask_multiply(vu64 a, vu64 b)
{
#if VL == 16
    return (vu64)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif VL == 8
    return (vu64)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#else
    return (vu64)_mm_mul_epu32((__m128i)a, (__m128i)b);
#endif
}

/* shd_philox on VL / 2 counters from `index` on; words[16 j + i] becomes word j of counter
 * index + i. Only the lower half of a lane counts on the way. */
static inline void mask_blocks(uint64_t key, uint64_t stream, uint64_t index, uint32_t *words)
{
    vu64 count;
    for (int i = 0; i < VL / 2; i++) {
        count[i] = index + (uint64_t)i;
    }
    vu64 c0 = count, c1 = count >> 32;
    vu64 c2 = (vu64){0} + (uint32_t)stream, c3 = (vu64){0} + (stream >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const vu64 p0 = mask_multiply((vu64){0} + 0xD2511F53u, c0);
        const vu64 p1 = mask_multiply((vu64){0} + 0xCD9E8D57u, c2);
        c0 = (p1 >> 32) ^ c1 ^ k0;
        c2 = (p0 >> 32) ^ c3 ^ k1;
        c1 = p1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const vu64 out[4] = {c0, c1, c2, c3};
    for (int j = 0; j < 4; j++) {
        for (int i = 0; i < VL / 2; i++) {
            words[16 * j + i] = (uint32_t)out[j][i];
        }
    }
}

/* The words of elements 64 g .. 64 g + 63, in order; `base` + 16 g is the first counter. */
static inline void mask_words(const mask *m, uint64_t sample, uint64_t base, uint64_t g,
                              uint32_t words[MASK_GROUP])
{
    for (int i = 0; i < 16; i += VL / 2) {
        mask_blocks(m->key, sample, base + 16 * g + (uint64_t)i, words + i);
    }
}

/* 0 where an element is dropped, else the factor. */
static inline vf mask_factors(const mask *m, const uint32_t *words)
{
    vu32 w;
    memcpy(&w, words, sizeof(w));
    const vu32 keep = (vu32)(w >= m->threshold);
    return (vf)(keep & (vu32)v_set1(m->factor));
}

#endif

/* Normal numbers by position: value i of a stream comes from Philox block i / 4 by the transform of
 * Box & Muller (1958); words (0, 1) of a block give its values 0 and 1, words (2, 3) the others. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/philox.h"

#include <math.h>

#define GRAIN 4096

typedef struct normal_args {
    float *out;
    uint64_t seed, stream;
    int64_t index0;
    float mean, std;
} normal_args;

static void normal_block(const normal_args *t, int64_t block, float out[4])
{
    uint32_t words[4];
    shd_philox(t->seed, t->stream, (uint64_t)block, words);
    for (int j = 0; j < 4; j += 2) {
        const float radius = sqrtf(-2.0f * logf(shd_philox_unit(words[j])));
        const float angle = 6.2831853071795865f * shd_philox_unit(words[j + 1]);
        out[j] = t->mean + t->std * (radius * cosf(angle));
        out[j + 1] = t->mean + t->std * (radius * sinf(angle));
    }
}

static void normal_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const normal_args *t = arg;
    int64_t i = begin;
    (void)worker;
    while (i < end) {
        const int64_t index = t->index0 + i;
        float block[4];
        normal_block(t, index / 4, block);
        for (int64_t j = index % 4; j < 4 && i < end; j++, i++) {
            t->out[i] = block[j];
        }
    }
}

void SHD_FN(fill_normal)(const shd_opctx *ctx, float *out, int64_t n, uint64_t seed,
                         uint64_t stream, int64_t index0, float mean, float std)
{
    normal_args t = {out, seed, stream, index0, mean, std};
    shd_cpu_parallel(ctx, n, GRAIN, normal_range, &t);
}

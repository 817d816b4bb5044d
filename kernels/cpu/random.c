/* Normal numbers by position: value i of a stream comes from Philox block i / 4 by the transform of
 * Box & Muller (1958); words (0, 1) of a block give its values 0 and 1, words (2, 3) the others. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/philox.h"

#define GRAIN 16384
#define GROUP (4 * VL) /* values that are made together, from VL blocks */

typedef int32_t vi32 __attribute__((vector_size(VL * 4)));

/* Natural logarithm of normal numbers in (0, 1], about 1 unit in the last place of max(|log x|,
 * 1): x = 2^e m with m in [√½, √2), polynomial of degree 9 in m - 1 (Cephes, logf). */
static inline vf log_of(vf x)
{
    const vi32 bits = (vi32)x;
    const vi32 e = (bits - 0x3f3504f3) >> 23;
    const vf f = (vf)(bits - (e << 23)) - v_set1(1.0f), ef = v_from_int((vi)e);
    const vf z = f * f;
    vf p = v_set1(7.0376836292e-2f);
    p = v_fma(p, f, v_set1(-1.1514610310e-1f));
    p = v_fma(p, f, v_set1(1.1676998740e-1f));
    p = v_fma(p, f, v_set1(-1.2420140846e-1f));
    p = v_fma(p, f, v_set1(1.4249322787e-1f));
    p = v_fma(p, f, v_set1(-1.6668057665e-1f));
    p = v_fma(p, f, v_set1(2.0000714765e-1f));
    p = v_fma(p, f, v_set1(-2.4999993993e-1f));
    p = v_fma(p, f, v_set1(3.3333331174e-1f));
    p = p * f * z;
    p = v_fma(ef, v_set1(-2.12194440e-4f), p);
    p = v_fma(z, v_set1(-0.5f), p);
    return v_fma(ef, v_set1(0.693359375f), f + p);
}

static inline vf choose(vi32 mask, vf yes, vf no)
{
    return (vf)((mask & (vi32)yes) | (~mask & (vi32)no));
}

/* cos 2πu and sin 2πu for u in [0, 1]: the nearest quarter turn is taken off exactly, the rest, at
 * most π/4, goes through polynomials (Cephes, sinf and cosf). */
static inline void turn(vf u, vf *cosine, vf *sine)
{
    const vi q = v_round_int(u * v_set1(4.0f));
    const vf t = (u - v_from_int(q) * v_set1(0.25f)) * v_set1(6.28318530718f), z = t * t;
    vf s = v_fma(v_set1(-1.9515295891e-4f), z, v_set1(8.3321608736e-3f));
    s = v_fma(s, z, v_set1(-1.6666654611e-1f));
    s = v_fma(s * z, t, t);
    vf c = v_fma(v_set1(2.443315711809948e-5f), z, v_set1(-1.388731625493765e-3f));
    c = v_fma(c, z, v_set1(4.166664568298827e-2f));
    c = v_fma(c * z, z, v_fma(z, v_set1(-0.5f), v_set1(1.0f)));
    const vi32 quarter = (vi32)q, odd = -(quarter & 1);
    const vi32 cos_sign = ((quarter + 1) & 2) << 30, sin_sign = (quarter & 2) << 30;
    *cosine = (vf)((vi32)choose(odd, s, c) ^ cos_sign);
    *sine = (vf)((vi32)choose(odd, c, s) ^ sin_sign);
}

typedef struct normal_args {
    float *out;
    uint64_t seed, stream;
    int64_t index0;
    float mean, std;
} normal_args;

/* The GROUP values of blocks [block, block + VL). */
static void normal_group(const normal_args *t, int64_t block, float out[GROUP])
{
    float unit[4][VL], value[4][VL];
    for (int lane = 0; lane < VL; lane++) {
        uint32_t words[4];
        shd_philox(t->seed, t->stream, (uint64_t)(block + lane), words);
        for (int j = 0; j < 4; j++) {
            unit[j][lane] = shd_philox_unit(words[j]);
        }
    }
    const vf mean = v_set1(t->mean), std = v_set1(t->std);
    for (int j = 0; j < 4; j += 2) {
        vf cosine, sine;
        turn(v_load(unit[j + 1]), &cosine, &sine);
        const vf radius = v_sqrt(v_set1(-2.0f) * log_of(v_load(unit[j])));
        v_store(value[j], v_fma(std, radius * cosine, mean));
        v_store(value[j + 1], v_fma(std, radius * sine, mean));
    }
    for (int lane = 0; lane < VL; lane++) {
        for (int j = 0; j < 4; j++) {
            out[4 * lane + j] = value[j][lane];
        }
    }
}

static void normal_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const normal_args *t = arg;
    int64_t i = begin;
    (void)worker;
    while (i < end) {
        const int64_t index = t->index0 + i, group = index / GROUP;
        const int64_t skip = index - group * GROUP;
        const int64_t n = GROUP - skip < end - i ? GROUP - skip : end - i;
        float values[GROUP];
        normal_group(t, group * VL, values);
        memcpy(t->out + i, values + skip, (size_t)n * sizeof(float));
        i += n;
    }
}

void SHD_FN(fill_normal)(const shd_opctx *ctx, float *out, int64_t n, uint64_t seed,
                         uint64_t stream, int64_t index0, float mean, float std)
{
    normal_args t = {out, seed, stream, index0, mean, std};
    shd_cpu_parallel(ctx, n, GRAIN, normal_range, &t);
}

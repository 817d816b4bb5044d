/* Rotary positions on pairs (i, i + D/2). The angle, an fp32 product, is brought into a quarter
 * turn in double, where positions of millions lose nothing; sine and cosine are the polynomials of
 * Cephes (sinf, cosf), about 1 unit in the last place. */
#include "kernels/cpu/elt.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"

#define GRAIN_ELEMENTS 16384
#define PAIRS 64 /* pairs whose angles are made at a time */

typedef int32_t vi32 __attribute__((vector_size(VL * 4)));
typedef double wide __attribute__((vector_size(VL * 8)));

static inline vf choose(vi32 mask, vf yes, vf no)
{
    return (vf)((mask & (vi32)yes) | (~mask & (vi32)no));
}

static inline void turn(vf angle, vf *cosine, vf *sine)
{
    const wide a = __builtin_convertvector(angle, wide);
    const wide magic = (wide){0} + 0x1.8p52; /* rounds to whole numbers */
    const wide q = (a * 0.63661977236758134308 + magic) - magic;
    const vf t = __builtin_convertvector(a - q * 1.57079632679489661923, vf), z = t * t;
    const vi32 quarter = __builtin_convertvector(q, vi32), odd = -(quarter & 1);
    vf s = v_fma(v_set1(-1.9515295891e-4f), z, v_set1(8.3321608736e-3f));
    s = v_fma(s, z, v_set1(-1.6666654611e-1f));
    s = v_fma(s * z, t, t);
    vf c = v_fma(v_set1(2.443315711809948e-5f), z, v_set1(-1.388731625493765e-3f));
    c = v_fma(c, z, v_set1(4.166664568298827e-2f));
    c = v_fma(c * z, z, v_fma(z, v_set1(-0.5f), v_set1(1.0f)));
    const vi32 cos_sign = ((quarter + 1) & 2) << 30, sin_sign = (quarter & 2) << 30;
    *cosine = (vf)((vi32)choose(odd, s, c) ^ cos_sign);
    *sine = (vf)((vi32)choose(odd, c, s) ^ sin_sign);
}

typedef struct rope_args {
    elt *out;
    const elt *x;
    const float *inv_freq;
    int64_t T, heads, half, pos0;
    int inverse, acc;
} rope_args;

/* Cosines and sines of pairs [p0, p0 + n) at one position. */
static void angles(const rope_args *t, int64_t position, int64_t p0, int64_t n, float *cosine,
                   float *sine)
{
    const vf at = v_set1((float)position);
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t k = n - i < VL ? n - i : VL;
        vf c, s;
        turn(at * v_load_n(t->inv_freq + p0 + i, k < VL ? k : VL), &c, &s);
        v_store(cosine + i, c);
        v_store(sine + i, t->inverse ? (vf)(v_set1(0.0f) - s) : s);
    }
}

static inline void rotate(const rope_args *t, int64_t at, int64_t n, vf c, vf s)
{
    elt *low = t->out + at, *high = low + t->half;
    const elt *x = t->x + at;
    const int whole = n == VL;
    const vf a = whole ? e_load(x) : e_load_n(x, n);
    const vf b = whole ? e_load(x + t->half) : e_load_n(x + t->half, n);
    vf u = a * c - b * s, v = b * c + a * s;
    if (t->acc) {
        u += whole ? e_load(low) : e_load_n(low, n);
        v += whole ? e_load(high) : e_load_n(high, n);
    }
    if (whole) {
        e_store(low, u);
        e_store(high, v);
    } else {
        e_store_n(low, u, n);
        e_store_n(high, v, n);
    }
}

static void rope_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const rope_args *t = arg;
    const int64_t D = 2 * t->half;
    float cosine[PAIRS], sine[PAIRS];
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t p0 = 0; p0 < t->half; p0 += PAIRS) {
            const int64_t n = t->half - p0 < PAIRS ? t->half - p0 : PAIRS;
            angles(t, t->pos0 + r % t->T, p0, n, cosine, sine);
            for (int64_t h = 0; h < t->heads; h++) {
                const int64_t at = (r * t->heads + h) * D + p0;
                for (int64_t i = 0; i < n; i += VL) {
                    rotate(t, at + i, n - i < VL ? n - i : VL, v_load(cosine + i),
                           v_load(sine + i));
                }
            }
        }
    }
}

void SHD_FN(rope)(const shd_opctx *ctx, void *out, const void *x, int64_t R, int64_t T,
                  int64_t heads, int64_t D, int64_t pos0, const float *inv_freq, int inverse,
                  int acc)
{
    rope_args t = {out, x, inv_freq, T, heads, D / 2, pos0, inverse, acc};
    const int64_t width = heads * D;
    shd_cpu_parallel(ctx, R, width < GRAIN_ELEMENTS ? GRAIN_ELEMENTS / width : 1, rope_rows, &t);
}

/* Reductions over flat buffers. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/typed.h"

#define GRAIN 32768
#define BLOCK 256

/* From this size on a sum does not stay in cache, and storing past the cache saves reading what is
 * overwritten. */
#define STREAM_ELEMENTS ((int64_t)4 << 20)

typedef struct tree_args {
    void *out;
    const void *const *in;
    shd_dtype out_dtype, in_dtype;
    int64_t V;
    int acc;
    int stream; /* out is fp32, aligned and large */
} tree_args;

TYPED_INLINE vf sum_of(shd_dtype to, vf a, vf b)
{
    return typed_round(to, a + b);
}

TYPED_INLINE vf leaf(const tree_args *t, shd_dtype to, shd_dtype from, int64_t v, int64_t i)
{
    const vf x = typed_load(from, t->in[v], i);
    return to == from ? x : typed_round(to, x);
}

/* The tree by a stack: after input v there is one partial sum for each set bit of v + 1, and
 * what is left at the end is added from the right. */
TYPED_INLINE vf tree_of(const tree_args *t, shd_dtype to, shd_dtype from, int64_t i)
{
    vf stack[64];
    int depth = 0;
    for (int64_t v = 0; v < t->V; v++) {
        vf x = leaf(t, to, from, v, i);
        for (int64_t done = v + 1; (done & 1) == 0; done >>= 1) {
            x = sum_of(to, stack[--depth], x);
        }
        stack[depth++] = x;
    }
    vf sum = stack[--depth];
    while (depth > 0) {
        sum = sum_of(to, stack[--depth], sum);
    }
    return sum;
}

TYPED_INLINE void put(const tree_args *t, shd_dtype to, int64_t i, vf sum)
{
    if (t->acc) {
        sum = sum_of(to, typed_load(to, t->out, i), sum);
    }
    if (t->stream) {
        v_stream((float *)t->out + i, sum);
    } else {
        typed_store(to, t->out, i, sum);
    }
}

TYPED_INLINE vf leaf_pair(const tree_args *t, shd_dtype to, shd_dtype from, int64_t v, int64_t i)
{
    return sum_of(to, leaf(t, to, from, v, i), leaf(t, to, from, v + 1, i));
}

/* The usual few inputs need no stack. */
TYPED_INLINE void tree_loop(const tree_args *t, shd_dtype to, shd_dtype from, int64_t begin,
                            int64_t end)
{
    switch (t->V) {
    case 1:
        for (int64_t i = begin; i < end; i += VL) {
            put(t, to, i, leaf(t, to, from, 0, i));
        }
        break;
    case 2:
        for (int64_t i = begin; i < end; i += VL) {
            put(t, to, i, leaf_pair(t, to, from, 0, i));
        }
        break;
    case 4:
        for (int64_t i = begin; i < end; i += VL) {
            put(t, to, i, sum_of(to, leaf_pair(t, to, from, 0, i), leaf_pair(t, to, from, 2, i)));
        }
        break;
    default:
        for (int64_t i = begin; i < end; i += VL) {
            put(t, to, i, tree_of(t, to, from, i));
        }
    }
}

static void tree_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const tree_args *t = arg;
    (void)worker;
#define TREE(to, from) tree_loop(t, to, from, begin, end)
    SHD_BY_DTYPES(t->out_dtype, t->in_dtype, TREE)
    if (t->stream) {
        _mm_sfence();
    }
}

void SHD_FN(tree_sum)(const shd_opctx *ctx, void *out, shd_dtype out_dtype, const void *const *in,
                      shd_dtype in_dtype, int64_t V, int64_t n, int acc)
{
    tree_args t = {out, in, out_dtype, in_dtype, V, acc, 0};
    t.stream =
        !acc && out_dtype == SHD_F32 && n >= STREAM_ELEMENTS && (uintptr_t)out % sizeof(vf) == 0;
    shd_cpu_parallel(ctx, n, GRAIN, tree_range, &t);
}

typedef struct sumsq_args {
    double *out;
    const void *x;
    shd_dtype dtype;
} sumsq_args;

/* Sixteen running sums in every instruction set, then halves: the same bits everywhere, for the
 * square of a float is exact in double. */
static double sumsq_of_block(const float *x)
{
    double lanes[16];
    vd sum[32 / VL];
    for (int j = 0; j < 32 / VL; j++) {
        sum[j] = (vd){0.0};
    }
    for (int i = 0; i < BLOCK; i += 16) {
        for (int j = 0; j < 16 / VL; j++) {
            const vf v = v_load(x + i + j * VL);
            const vd low = v_low_f64(v), high = v_high_f64(v);
            sum[2 * j] += low * low;
            sum[2 * j + 1] += high * high;
        }
    }
    memcpy(lanes, sum, sizeof(lanes));
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            lanes[i] += lanes[i + half];
        }
    }
    return lanes[0];
}

TYPED_INLINE double sumsq_of_half_block(shd_dtype dtype, const void *x, int64_t at)
{
    float wide[BLOCK];
    for (int64_t i = 0; i < BLOCK; i += VL) {
        v_store(wide + i, typed_load(dtype, x, at + i));
    }
    return sumsq_of_block(wide);
}

static void sumsq_blocks(void *arg, int64_t begin, int64_t end, int worker)
{
    const sumsq_args *t = arg;
    (void)worker;
    for (int64_t j = begin; j < end; j++) {
        const int64_t at = j * BLOCK;
        t->out[j] = t->dtype == SHD_F32    ? sumsq_of_block((const float *)t->x + at)
                    : t->dtype == SHD_BF16 ? sumsq_of_half_block(SHD_BF16, t->x, at)
                                           : sumsq_of_half_block(SHD_F16, t->x, at);
    }
}

void SHD_FN(block_sumsq)(const shd_opctx *ctx, double *out, const void *x, shd_dtype dtype,
                         int64_t n)
{
    sumsq_args t = {out, x, dtype};
    shd_cpu_parallel(ctx, n / BLOCK, GRAIN / BLOCK, sumsq_blocks, &t);
}

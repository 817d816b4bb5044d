/* Reductions over flat buffers. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

#define GRAIN 32768
#define BLOCK 256

/* From this size on a sum does not stay in cache, and storing past the cache saves reading what is
 * overwritten. */
#define STREAM_ELEMENTS ((int64_t)4 << 20)

typedef struct tree_args {
    float *out;
    const float *const *in;
    int64_t V;
    int acc;
    int stream; /* out is aligned and large */
} tree_args;

/* The tree by a stack: after input v there is one partial sum for each set bit of v + 1, and
 * what is left at the end is added from the right. */
static inline vf tree_of(const float *const *in, int64_t V, int64_t i)
{
    vf stack[64];
    int depth = 0;
    for (int64_t v = 0; v < V; v++) {
        vf x = v_load(in[v] + i);
        for (int64_t done = v + 1; (done & 1) == 0; done >>= 1) {
            x = stack[--depth] + x;
        }
        stack[depth++] = x;
    }
    vf sum = stack[--depth];
    while (depth > 0) {
        sum = stack[--depth] + sum;
    }
    return sum;
}

static inline void put(const tree_args *t, int64_t i, vf sum)
{
    if (t->acc) {
        sum = v_load(t->out + i) + sum;
    }
    if (t->stream) {
        v_stream(t->out + i, sum);
    } else {
        v_store(t->out + i, sum);
    }
}

static inline void tree_loop(const tree_args *t, int64_t V, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i += VL) {
        put(t, i, tree_of(t->in, V, i));
    }
}

/* The usual few inputs need no stack. */
#define TREE_OF_TWO(in, i) (v_load((in)[0] + (i)) + v_load((in)[1] + (i)))

static void tree_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const tree_args *t = arg;
    const float *const *in = t->in;
    (void)worker;
    switch (t->V) {
    case 1:
        for (int64_t i = begin; i < end; i += VL) {
            put(t, i, v_load(in[0] + i));
        }
        break;
    case 2:
        for (int64_t i = begin; i < end; i += VL) {
            put(t, i, TREE_OF_TWO(in, i));
        }
        break;
    case 4:
        for (int64_t i = begin; i < end; i += VL) {
            put(t, i, TREE_OF_TWO(in, i) + TREE_OF_TWO(in + 2, i));
        }
        break;
    default:
        tree_loop(t, t->V, begin, end);
    }
    if (t->stream) {
        _mm_sfence();
    }
}

void SHD_FN(tree_sum)(const shd_opctx *ctx, float *out, const float *const *in, int64_t V,
                      int64_t n, int acc)
{
    tree_args t = {out, in, V, acc, 0};
    t.stream = !acc && n >= STREAM_ELEMENTS && (uintptr_t)out % sizeof(vf) == 0;
    shd_cpu_parallel(ctx, n, GRAIN, tree_range, &t);
}

typedef struct sumsq_args {
    double *out;
    const float *x;
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

static void sumsq_blocks(void *arg, int64_t begin, int64_t end, int worker)
{
    const sumsq_args *t = arg;
    (void)worker;
    for (int64_t j = begin; j < end; j++) {
        t->out[j] = sumsq_of_block(t->x + j * BLOCK);
    }
}

void SHD_FN(block_sumsq)(const shd_opctx *ctx, double *out, const float *x, int64_t n)
{
    sumsq_args t = {out, x};
    shd_cpu_parallel(ctx, n / BLOCK, GRAIN / BLOCK, sumsq_blocks, &t);
}

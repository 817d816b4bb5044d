/* Token cross-entropy, one row of logits at a time; a row of any usual vocabulary stays in cache
 * from the search for its largest value to the gradient. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

#include <math.h>

#define GRAIN_ELEMENTS 65536

typedef struct loss_args {
    float *losses, *logits;
    const int32_t *targets;
    float grad_scale;
    int64_t V, ld;
    int backward;
} loss_args;

static float row_largest(const float *x, int64_t n)
{
    vf top[4];
    int64_t i = 0;
    for (int j = 0; j < 4; j++) {
        top[j] = v_set1(-INFINITY);
    }
    for (; i + 4 * VL <= n; i += 4 * VL) {
        for (int j = 0; j < 4; j++) {
            top[j] = v_max(top[j], v_load(x + i + j * VL));
        }
    }
    float m = v_largest(v_max(v_max(top[0], top[1]), v_max(top[2], top[3])));
    for (; i < n; i++) {
        m = x[i] > m ? x[i] : m;
    }
    return m;
}

/* Σ e^(x - largest); writes the terms over x when `keep`. */
static inline float row_exp_sum(float *x, int64_t n, float largest, int keep)
{
    const vf m = v_set1(largest);
    vf sum[4];
    int64_t i = 0;
    for (int j = 0; j < 4; j++) {
        sum[j] = v_set1(0.0f);
    }
    for (; i + 4 * VL <= n; i += 4 * VL) {
        for (int j = 0; j < 4; j++) {
            const vf e = v_exp(v_load(x + i + j * VL) - m);
            sum[j] += e;
            if (keep) {
                v_store(x + i + j * VL, e);
            }
        }
    }
    float tail_sum = 0.0f;
    while (i < n) {
        const int64_t count = n - i < VL ? n - i : VL;
        float e[VL];
        v_store(e, v_exp(v_load_n(x + i, count < VL ? count : VL) - m));
        for (int64_t j = 0; j < count; j++) {
            tail_sum += e[j];
        }
        if (keep) {
            memcpy(x + i, e, (size_t)count * sizeof(float));
        }
        i += count;
    }
    return v_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) + tail_sum;
}

static void loss_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const loss_args *t = arg;
    const int64_t V = t->V;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        float *x = t->logits + r * t->ld;
        const int32_t target = t->targets[r];
        if (target < 0) {
            t->losses[r] = 0.0f;
            if (t->backward) {
                memset(x, 0, (size_t)V * sizeof(float));
            }
            continue;
        }
        const float largest = row_largest(x, V), wanted = x[target];
        const float sum =
            t->backward ? row_exp_sum(x, V, largest, 1) : row_exp_sum(x, V, largest, 0);
        t->losses[r] = (float)(log((double)sum) + ((double)largest - (double)wanted));
        if (t->backward) {
            const float scale = t->grad_scale / sum;
            for (int64_t i = 0; i < V; i++) {
                x[i] *= scale;
            }
            x[target] -= t->grad_scale;
        }
    }
}

void SHD_FN(cross_entropy)(const shd_opctx *ctx, float *losses, float *logits,
                           const int32_t *targets, float grad_scale, int64_t R, int64_t V,
                           int64_t ld, int backward)
{
    loss_args t = {losses, logits, targets, grad_scale, V, ld, backward};
    shd_cpu_parallel(ctx, R, V < GRAIN_ELEMENTS ? GRAIN_ELEMENTS / V : 1, loss_rows, &t);
}

void SHD_FN(sum_losses)(const shd_opctx *ctx, double *sum, const float *losses, int64_t R)
{
    (void)ctx;
    double s = 0.0;
    for (int64_t r = 0; r < R; r++) {
        s += (double)losses[r];
    }
    *sum = s;
}

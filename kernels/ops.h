/* The op table of flat device memory: what does not belong to a model's activations. The ops on
 * activations are in kernels/compute_ops.h. One table per (backend, instruction set); chosen at run
 * time by daemon/device. Floor F1; called from the thread of the rank that owns the memory.
 *
 * Rules for every implementation, of both tables
 *  - All matrices are row-major. A row stride (ld*) is in elements.
 *  - Results do not depend on the number of threads, on alignment, or on where a piece of an
 *    elementwise range begins: work is cut on a grid that depends on shapes alone, and elementwise
 *    code gives an element the same bits whether it falls into a vector body or a remainder.
 *  - `acc` nonzero adds to the output, zero overwrites it (then the old contents are not read).
 *  - Nothing allocates. Scratch comes in as `ws`, whose size in bytes the *_ws function of the same
 *    table gives; the null backend gives the same sizes as the backend it stands for. A size never
 *    shrinks when rows or tokens grow, so that what suffices for a batch suffices for a smaller
 *    one.
 *  - Nothing fails: shapes are checked by the tape when a graph is made. */
#ifndef SHD_KERNELS_OPS_H
#define SHD_KERNELS_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shd_pool;

/* What ops would do and how long it would take on a machine of these rates: counted by the null
 * backend. An op takes the longer of its products and its memory traffic (the roofline model:
 * Williams, Waterman & Patterson 2009). */
typedef struct shd_op_work {
    double flops_rate;  /* per second; 0: no limit */
    double memory_rate; /* bytes per second; 0: no limit */
    uint64_t calls;
    double flops; /* of matrix products, attention's included: two per multiply-add; pairs that the
                     causal mask or the window leaves out are not counted */
    double repeated; /* of these, what forward had computed already and did not keep */
    double bytes;    /* operands read and results written, once each */
    double seconds;  /* summed over ops */
} shd_op_work;

/* What an op call needs besides its operands. */
typedef struct shd_opctx {
    struct shd_pool *pool;    /* borrowed; threads of the rank */
    struct shd_op_work *work; /* borrowed; the null backend adds to it; NULL: nothing is counted */
} shd_opctx;

/* Of an optimizer's step; the gradient is multiplied by grad_scale first (clipping). In double,
 * since 1 - beta must not carry the rounding of beta. */
typedef struct shd_adam_args {
    double lr, beta1, beta2, eps, weight_decay;
    double bias_correction1; /* 1 - beta1^t */
    double bias_correction2; /* 1 - beta2^t */
    double grad_scale;
} shd_adam_args;

typedef struct shd_sgd_args {
    double lr, momentum, weight_decay, grad_scale;
    int nesterov;
} shd_sgd_args;

typedef struct shd_lion_args {
    double lr, beta1, beta2, weight_decay, grad_scale;
} shd_lion_args;

typedef struct shd_ops {
    const char *name; /* e.g. "cpu-x86-64-v4", "null" */

    /* ---- memory ---- */
    void (*copy)(const shd_opctx *, void *dst, const void *src, size_t bytes);
    void (*zero)(const shd_opctx *, void *dst, size_t bytes);
    /* out[i] = in[i], each fp32, bf16 or fp16; rounded to nearest even, beyond the range to
     * infinity, NaN stays NaN. Any n; out is not in. */
    void (*cast)(const shd_opctx *, void *out, shd_dtype out_dtype, const void *in,
                 shd_dtype in_dtype, int64_t n);

    /* ---- token cross-entropy ---- */
    /* losses[r] = logsumexp(logits[r,:]) - logits[r,targets[r]], 0 where targets[r] < 0. When
     * backward, logits[r,:] becomes (softmax - onehot) * grad_scale, all 0 where targets[r] < 0;
     * otherwise logits are left as they are. */
    void (*cross_entropy)(const shd_opctx *, float *losses, float *logits, const int32_t *targets,
                          float grad_scale, int64_t R, int64_t V, int64_t ld, int backward);
    /* *sum = losses added in row order, in double. `sum` is device memory. */
    void (*sum_losses)(const shd_opctx *, double *sum, const float *losses, int64_t R);

    /* ---- flat buffers; n is a multiple of 256 except where said ---- */
    /* out[i] (+)= balanced binary tree over in[0..V)[i]: a range of m > 1 splits after the largest
     * power of two below m. out may be one of the inputs when the dtypes are equal. Every leaf and
     * every sum is rounded to out's dtype. */
    void (*tree_sum)(const shd_opctx *, void *out, shd_dtype out_dtype, const void *const *in,
                     shd_dtype in_dtype, int64_t V, int64_t n, int acc);
    /* out[j] = Σ x[256j .. 256j+255]² in double, in a fixed order. out has n/256 elements. */
    void (*block_sumsq)(const shd_opctx *, double *out, const void *x, shd_dtype dtype, int64_t n);

    /* ---- optimizers; any n. p, g and the states are [n]; see daemon/optim/optim.h ---- */
    /* AdamW (Loshchilov & Hutter 2019, alg. 2) as torch.optim.AdamW: p *= 1 - lr*wd, then
     * p -= lr/bc1 * m / (sqrt(v)/sqrt(bc2) + eps). */
    void (*adamw)(const shd_opctx *, float *p, const float *g, float *m, float *v, int64_t n,
                  const shd_adam_args *);
    /* Adam (Kingma & Ba 2015) as torch.optim.Adam: g += wd*p, then as above without decay. */
    void (*adam)(const shd_opctx *, float *p, const float *g, float *m, float *v, int64_t n,
                 const shd_adam_args *);
    /* As torch.optim.SGD without dampening: g += wd*p; buf = momentum*buf + g; p -= lr * (nesterov
     * ? g + momentum*buf : buf). buf NULL: p -= lr*g. */
    void (*sgd)(const shd_opctx *, float *p, const float *g, float *buf, int64_t n,
                const shd_sgd_args *);
    /* Lion (Chen et al. 2023, alg. 2): p -= lr * (sign(beta1*m + (1-beta1)*g) + wd*p), then
     * m = beta2*m + (1-beta2)*g. */
    void (*lion)(const shd_opctx *, float *p, const float *g, float *m, int64_t n,
                 const shd_lion_args *);

    /* ---- initialisation; any n. Element i gets the value numbered index0 + i of the stream
     *      (seed, stream), so that any rank can make any part ---- */
    void (*fill_normal)(const shd_opctx *, float *out, int64_t n, uint64_t seed, uint64_t stream,
                        int64_t index0, float mean, float std);
    void (*fill_constant)(const shd_opctx *, float *out, int64_t n, float value);
} shd_ops;

/* The CPU table for the best instruction set that this processor has. Static storage. */
const shd_ops *shd_ops_cpu(void);

/* The CPU table of a named instruction set: "x86-64", "x86-64-v3", "x86-64-v4", "x86-64-v4-bf16",
 * "x86-64-v4-amx"; NULL when the name is unknown or the processor lacks it. The last two differ
 * from the third in the bits of products of bf16, and exclude each other. */
const shd_ops *shd_ops_cpu_named(const char *name);

/* Computes nothing; counts into ctx->work. */
const shd_ops *shd_ops_null(void);

#ifdef __cplusplus
}
#endif
#endif

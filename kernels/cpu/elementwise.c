/* Copies and the plain elementwise ops. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

/* 128 KiB of floats: some 10 µs of work, well above the cost of handing it to a thread. */
#define GRAIN 32768
#define COPY_GRAIN ((int64_t)1 << 18) /* bytes */

typedef struct copy_args {
    char *dst;
    const char *src;
} copy_args;

static void copy_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const copy_args *c = arg;
    (void)worker;
    memcpy(c->dst + begin, c->src + begin, (size_t)(end - begin));
}

void SHD_FN(copy)(const shd_opctx *ctx, void *dst, const void *src, size_t bytes)
{
    copy_args c = {dst, src};
    shd_cpu_parallel(ctx, (int64_t)bytes, COPY_GRAIN, copy_range, &c);
}

static void zero_range(void *arg, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    memset((char *)arg + begin, 0, (size_t)(end - begin));
}

void SHD_FN(zero)(const shd_opctx *ctx, void *dst, size_t bytes)
{
    shd_cpu_parallel(ctx, (int64_t)bytes, COPY_GRAIN, zero_range, dst);
}

typedef struct add_args {
    float *out;
    const float *a, *b;
} add_args;

static void add_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const add_args *t = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        t->out[i] = t->a[i] + t->b[i];
    }
}

void SHD_FN(add)(const shd_opctx *ctx, float *out, const float *a, const float *b, int64_t n)
{
    add_args t = {out, a, b};
    shd_cpu_parallel(ctx, n, GRAIN, add_range, &t);
}

typedef struct scalar_args {
    float *x;
    float s;
} scalar_args;

static void scale_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const scalar_args *t = arg;
    const float s = t->s;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        t->x[i] *= s;
    }
}

void SHD_FN(scale)(const shd_opctx *ctx, float *x, float s, int64_t n)
{
    scalar_args t = {x, s};
    shd_cpu_parallel(ctx, n, GRAIN, scale_range, &t);
}

static void fill_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const scalar_args *t = arg;
    const float s = t->s;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        t->x[i] = s;
    }
}

void SHD_FN(fill_constant)(const shd_opctx *ctx, float *out, int64_t n, float value)
{
    scalar_args t = {out, value};
    shd_cpu_parallel(ctx, n, GRAIN, fill_range, &t);
}

/* Copies and what fills flat memory. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

/* 128 KiB of floats: some 10 µs of work, well above the cost of handing it to a thread. */
#define GRAIN 32768
#define COPY_GRAIN ((int64_t)1 << 18) /* bytes */

/* From this size on a result does not stay in cache, and storing past the cache saves reading what
 * is overwritten. */
#define STREAM_BYTES ((size_t)16 << 20)

typedef struct copy_args {
    char *dst;
    const char *src;
    int stream;
} copy_args;

/* Bytes before the first whole vector of `p`. */
static size_t unaligned_head(const char *p, size_t n)
{
    const size_t head = (size_t)(-(uintptr_t)p & (sizeof(vf) - 1));
    return head < n ? head : n;
}

static void copy_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const copy_args *c = arg;
    char *dst = c->dst + begin;
    const char *src = c->src + begin;
    size_t n = (size_t)(end - begin), done = 0;
    (void)worker;
    if (c->stream) {
        done = unaligned_head(dst, n);
        memcpy(dst, src, done);
        for (; done + sizeof(vf) <= n; done += sizeof(vf)) {
            vf x;
            memcpy(&x, src + done, sizeof(x));
            v_stream((float *)(void *)(dst + done), x);
        }
        _mm_sfence();
    }
    memcpy(dst + done, src + done, n - done);
}

void SHD_FN(copy)(const shd_opctx *ctx, void *dst, const void *src, size_t bytes)
{
    copy_args c = {dst, src, bytes >= STREAM_BYTES};
    shd_cpu_parallel(ctx, (int64_t)bytes, COPY_GRAIN, copy_range, &c);
}

static void zero_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const copy_args *c = arg;
    char *dst = c->dst + begin;
    size_t n = (size_t)(end - begin), done = 0;
    (void)worker;
    if (c->stream) {
        done = unaligned_head(dst, n);
        memset(dst, 0, done);
        for (; done + sizeof(vf) <= n; done += sizeof(vf)) {
            v_stream((float *)(void *)(dst + done), v_set1(0.0f));
        }
        _mm_sfence();
    }
    memset(dst + done, 0, n - done);
}

void SHD_FN(zero)(const shd_opctx *ctx, void *dst, size_t bytes)
{
    copy_args c = {dst, NULL, bytes >= STREAM_BYTES};
    shd_cpu_parallel(ctx, (int64_t)bytes, COPY_GRAIN, zero_range, &c);
}

typedef struct scalar_args {
    float *x;
    float s;
} scalar_args;

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

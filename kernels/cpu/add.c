/* The sum of two activations. */
#include "kernels/cpu/elt.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"

/* Some 10 µs of work, well above the cost of handing it to a thread. */
#define GRAIN 32768

typedef struct add_args {
    elt *out;
    const elt *a, *b;
} add_args;

static void add_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const add_args *t = arg;
    int64_t i = begin;
    (void)worker;
    for (; i + VL <= end; i += VL) {
        e_store(t->out + i, e_load(t->a + i) + e_load(t->b + i));
    }
    if (i < end) {
        const int64_t n = end - i;
        e_store_n(t->out + i, e_load_n(t->a + i, n) + e_load_n(t->b + i, n), n);
    }
}

void SHD_FN(add)(const shd_opctx *ctx, void *out, const void *a, const void *b, int64_t n)
{
    add_args t = {out, a, b};
    shd_cpu_parallel(ctx, n, GRAIN, add_range, &t);
}

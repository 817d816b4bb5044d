/* Between dtypes. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/typed.h"

#define GRAIN 32768

typedef struct cast_args {
    void *out;
    const void *in;
    shd_dtype out_dtype, in_dtype;
} cast_args;

TYPED_INLINE void cast_loop(const cast_args *t, shd_dtype out_dtype, shd_dtype in_dtype,
                            int64_t begin, int64_t end)
{
    int64_t i = begin;
    for (; i + VL <= end; i += VL) {
        typed_store(out_dtype, t->out, i, typed_load(in_dtype, t->in, i));
    }
    if (i < end) {
        typed_store_n(out_dtype, t->out, i, typed_load_n(in_dtype, t->in, i, end - i), end - i);
    }
}

static void cast_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const cast_args *t = arg;
    (void)worker;
#define CAST(to, from) cast_loop(t, to, from, begin, end)
    SHD_BY_DTYPES(t->out_dtype, t->in_dtype, CAST)
}

void SHD_FN(cast)(const shd_opctx *ctx, void *out, shd_dtype out_dtype, const void *in,
                  shd_dtype in_dtype, int64_t n)
{
    if (out_dtype == in_dtype) {
        SHD_FN(copy)(ctx, out, in, (size_t)n * shd_dtype_size(in_dtype));
        return;
    }
    cast_args t = {out, in, out_dtype, in_dtype};
    shd_cpu_parallel(ctx, n, GRAIN, cast_range, &t);
}

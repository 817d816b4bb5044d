/* Dropout (Srivastava et al. 2014) with masks by position (mask.h). */
#include "kernels/cpu/elt.h"
#include "kernels/cpu/mask.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"

#define GRAIN 16384

typedef struct dropout_args {
    elt *out;
    const elt *x, *add; /* add may be NULL */
    int64_t sample;     /* elements of one */
    uint64_t first_sample;
    mask mask;
} dropout_args;

static void dropout_range(void *arg, int64_t begin, int64_t end, int worker)
{
    const dropout_args *t = arg;
    int64_t i = begin;
    (void)worker;
    while (i < end) {
        const int64_t s = i / t->sample, e = i - s * t->sample, skip = e % MASK_GROUP;
        int64_t n = MASK_GROUP - skip;
        n = n < end - i ? n : end - i;
        n = n < t->sample - e ? n : t->sample - e;
        uint32_t words[MASK_GROUP + VL];
        mask_words(&t->mask, t->first_sample + (uint64_t)s, 0, (uint64_t)(e / MASK_GROUP), words);
        for (int64_t j = 0; j < n; j += VL) {
            const int64_t k = n - j < VL ? n - j : VL;
            vf y = e_load_n(t->x + i + j, k) * mask_factors(&t->mask, words + skip + j);
            if (t->add != NULL) {
                y += e_load_n(t->add + i + j, k);
            }
            e_store_n(t->out + i + j, y, k);
        }
        i += n;
    }
}

static void run(const shd_opctx *ctx, void *out, const void *x, const void *add, int64_t R,
                int64_t T, int64_t C, const shd_dropout *d)
{
    dropout_args t = {out, x, add, T * C, d->first_sample, mask_of(d)};
    shd_cpu_parallel(ctx, R * C, GRAIN, dropout_range, &t);
}

void SHD_FN(dropout_forward)(const shd_opctx *ctx, void *out, const void *x, const void *residual,
                             int64_t R, int64_t T, int64_t C, const shd_dropout *dropout)
{
    run(ctx, out, x, residual, R, T, C, dropout);
}

void SHD_FN(dropout_backward)(const shd_opctx *ctx, void *dx, const void *dout, int64_t R,
                              int64_t T, int64_t C, const shd_dropout *dropout, int acc)
{
    run(ctx, dx, dout, acc ? dx : NULL, R, T, C, dropout);
}

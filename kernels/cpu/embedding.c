/* Token and position embeddings. */
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"

#include <string.h>

/* Columns that one piece of the backward owns, for all rows: no two pieces write the same element
 * and rows stay in order. */
#define COLUMNS 64

typedef struct forward_args {
    float *out;
    const float *wte, *wpe;
    const int32_t *ids;
    int64_t T, C, pos0;
} forward_args;

static void forward_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const forward_args *t = arg;
    const int64_t C = t->C;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        float *out = t->out + r * C;
        const float *token = t->wte + t->ids[r] * C;
        if (t->wpe == NULL) {
            memcpy(out, token, (size_t)C * sizeof(float));
            continue;
        }
        const float *pos = t->wpe + (t->pos0 + r % t->T) * C;
        for (int64_t i = 0; i < C; i++) {
            out[i] = token[i] + pos[i];
        }
    }
}

void SHD_FN(embedding_forward)(const shd_opctx *ctx, float *out, const float *wte, const float *wpe,
                               const int32_t *ids, int64_t R, int64_t T, int64_t C, int64_t pos0)
{
    forward_args t = {out, wte, wpe, ids, T, C, pos0};
    shd_cpu_parallel(ctx, R, 32, forward_rows, &t);
}

typedef struct backward_args {
    float *dwte, *dwpe;
    const float *dout;
    const int32_t *ids;
    int64_t R, T, C;
} backward_args;

static void backward_columns(void *arg, int64_t begin, int64_t end, int worker)
{
    const backward_args *t = arg;
    (void)worker;
    for (int64_t r = 0; r < t->R; r++) {
        const float *dout = t->dout + r * t->C;
        float *token = t->dwte + t->ids[r] * t->C;
        for (int64_t i = begin; i < end; i++) {
            token[i] += dout[i];
        }
        if (t->dwpe != NULL) {
            float *pos = t->dwpe + r % t->T * t->C;
            for (int64_t i = begin; i < end; i++) {
                pos[i] += dout[i];
            }
        }
    }
}

void SHD_FN(embedding_backward)(const shd_opctx *ctx, float *dwte, float *dwpe, const float *dout,
                                const int32_t *ids, int64_t R, int64_t T, int64_t C, int64_t V,
                                int64_t P, int acc_wte, int acc_wpe)
{
    if (!acc_wte) {
        SHD_FN(zero)(ctx, dwte, (size_t)(V * C) * sizeof(float));
    }
    if (dwpe != NULL && !acc_wpe) {
        SHD_FN(zero)(ctx, dwpe, (size_t)(P * C) * sizeof(float));
    }
    backward_args t = {dwte, dwpe, dout, ids, R, T, C};
    shd_cpu_parallel(ctx, C, COLUMNS, backward_columns, &t);
}

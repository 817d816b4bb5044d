/* Token and position embeddings. */
#include "kernels/cpu/elt.h"
#include "kernels/cpu/ops_decl.h"
#include "kernels/cpu/parallel.h"

#include <string.h>

/* Rows of one piece. */
#define GRAIN 32

typedef struct forward_args {
    elt *out;
    const elt *wte, *wpe;
    const int32_t *ids;
    int64_t T, C, pos0;
} forward_args;

static void add_rows(elt *out, const elt *a, const elt *b, int64_t C)
{
    int64_t i = 0;
    for (; i + VL <= C; i += VL) {
        e_store(out + i, e_load(a + i) + e_load(b + i));
    }
    if (i < C) {
        e_store_n(out + i, e_load_n(a + i, C - i) + e_load_n(b + i, C - i), C - i);
    }
}

static void forward_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const forward_args *t = arg;
    const int64_t C = t->C;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        const elt *token = t->wte + t->ids[r] * C;
        if (t->wpe == NULL) {
            memcpy(t->out + r * C, token, (size_t)C * sizeof(elt));
        } else {
            add_rows(t->out + r * C, token, t->wpe + (t->pos0 + r % t->T) * C, C);
        }
    }
}

void SHD_FN(embedding_forward)(const shd_opctx *ctx, void *out, const void *wte, const void *wpe,
                               const int32_t *ids, int64_t R, int64_t T, int64_t C, int64_t pos0)
{
    forward_args t = {out, wte, wpe, ids, T, C, pos0};
    shd_cpu_parallel(ctx, R, GRAIN, forward_rows, &t);
}

/* Rows of the gradient that hit the same row of a table form a list in row order, so that one
 * thread adds them up in registers and the sum is rounded once. */
typedef struct backward_args {
    elt *table;
    const elt *dout;
    const int32_t *ids;
    const int32_t *next; /* [R] the next row of the same token, or -1 */
    const int32_t *head; /* [V] the first row of a token */
    int64_t R, T, C;
    int acc;
} backward_args;

/* table[row] (+)= Σ dout over a list: r, then next[r] (or r + T when next is NULL) ... */
static void sum_list(const backward_args *t, int64_t row, int64_t first)
{
    const int64_t C = t->C;
    elt *out = t->table + row * C;
    for (int64_t i = 0; i < C; i += VL) {
        const int64_t n = C - i < VL ? C - i : VL;
        vf sum = v_set1(0.0f);
        if (t->acc) {
            sum = n == VL ? e_load(out + i) : e_load_n(out + i, n);
        }
        for (int64_t r = first; r >= 0 && r < t->R; r = t->next != NULL ? t->next[r] : r + t->T) {
            const elt *dout = t->dout + r * C + i;
            sum += n == VL ? e_load(dout) : e_load_n(dout, n);
        }
        if (n == VL) {
            e_store(out + i, sum);
        } else {
            e_store_n(out + i, sum, n);
        }
    }
}

static void token_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const backward_args *t = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        if (t->head[t->ids[r]] == r) {
            sum_list(t, t->ids[r], r);
        }
    }
}

static void position_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    const backward_args *t = arg;
    (void)worker;
    for (int64_t p = begin; p < end; p++) {
        sum_list(t, p, p);
    }
}

size_t SHD_FN(embedding_backward_ws)(const shd_opctx *ctx, int64_t R, int64_t V)
{
    (void)ctx;
    return (size_t)(R + V) * sizeof(int32_t);
}

void SHD_FN(embedding_backward)(const shd_opctx *ctx, void *dwte, void *dwpe, const void *dout,
                                const int32_t *ids, int64_t R, int64_t T, int64_t C, int64_t V,
                                int64_t P, int64_t pad, int acc_wte, int acc_wpe, void *ws)
{
    backward_args t = {.dout = dout, .ids = ids, .R = R, .T = T, .C = C};
    if (dwte != NULL) {
        int32_t *head = ws, *next = head + V;
        memset(head, -1, (size_t)V * sizeof(*head));
        for (int64_t r = R - 1; r >= 0; r--) {
            if (ids[r] == pad) {
                continue;
            }
            next[r] = head[ids[r]];
            head[ids[r]] = (int32_t)r;
        }
        if (!acc_wte) {
            SHD_FLAT_FN(zero)(ctx, dwte, (size_t)(V * C) * sizeof(elt));
        }
        t.table = dwte;
        t.head = head;
        t.next = next;
        t.acc = acc_wte;
        shd_cpu_parallel(ctx, R, GRAIN, token_rows, &t);
    }
    if (dwpe != NULL) {
        const int64_t used = T < R ? T : R;
        if (!acc_wpe) {
            SHD_FLAT_FN(zero)(ctx, (elt *)dwpe + used * C, (size_t)((P - used) * C) * sizeof(elt));
        }
        t.table = dwpe;
        t.next = NULL;
        t.acc = acc_wpe;
        shd_cpu_parallel(ctx, used, GRAIN, position_rows, &t);
    }
}

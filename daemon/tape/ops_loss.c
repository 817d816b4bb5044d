/* Tape op: head and token cross-entropy in chunks of rows. Floor F3; the rank's thread. */
#include "daemon/tape/tape_internal.h"

/* Logits that exist at once: enough rows for a fast product, few enough bytes to stay small. */
enum { LOGITS_BYTES = 32 << 20, LOGITS_ROWS = 1024 };

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Rows of one chunk, from the shape alone: two chunks when they are small enough, else as many of
 * the largest size as it takes. Never more for fewer rows, so that a batch smaller than the planned
 * one fits into the planned memory. */
static int64_t chunk_rows(int64_t R, int64_t V)
{
    const int64_t fit = LOGITS_BYTES / (V * (int64_t)sizeof(float)) / 32 * 32;
    const int64_t most = fit < 32 ? 32 : fit < LOGITS_ROWS ? fit : LOGITS_ROWS;
    const int64_t half = round_up((R + 1) / 2, 16);
    const int64_t rows = half < 32 ? round_up(R < 32 ? R : 32, 16) : half;
    return rows < most ? rows : most;
}

/* dh and dw may be NULL; `train`: the losses' gradients are made. */
static void run_chunks(shd_tape *tape, shd_tensor *h, shd_tensor *w, const int32_t *targets,
                       float *losses, void *dh, float *dw, int acc_w, int train)
{
    const int64_t R = h->shape[0], C = h->shape[1], V = w->shape[0];
    const int64_t rows = chunk_rows(R, V);
    const int64_t held = chunk_rows(shd_tape_rows_held(tape, R), V);
    float *logits = shd_tape_take_floats(tape, SHD_TAG_WORKSPACE, held * V);
    void *ws = shd_tape_workspace(tape, tape->ops->linear_ws(tape->ctx, held, V, C));
    for (int64_t at = 0; at < R && tape->rc == 0; at += rows) {
        const int64_t n = R - at < rows ? R - at : rows;
        const void *x = shd_tape_at(tape, h->data, at * C);
        tape->ops->head_forward(tape->ctx, logits, x, w->data, n, V, C, ws);
        tape->flat->cross_entropy(tape->ctx, losses + at, logits, targets + at, tape->loss_scale, n,
                                  V, V, train);
        if (train) {
            tape->ops->head_backward(tape->ctx, dh != NULL ? shd_tape_at(tape, dh, at * C) : NULL,
                                     dw, logits, x, w->data, n, V, C, acc_w || at > 0, ws);
        }
    }
    shd_arena_release(tape->arena, ws);
    shd_arena_release(tape->arena, logits);
}

/* The head's gradient grows chunk by chunk: in half precision beside its place, in fp32, so that
 * it is rounded once and not with every chunk. */
static void train_chunks(shd_tape *tape, shd_node *node, void *dh, void *dw, int acc_w)
{
    shd_tensor *h = node->in[0], *w = node->in[1];
    const int64_t n = shd_tensor_numel(w);
    if (dw == NULL || tape->dtype == SHD_F32) {
        run_chunks(tape, h, w, node->ids, node->losses, dh, dw, acc_w, 1);
        return;
    }
    float *sum = shd_tape_take_floats(tape, SHD_TAG_WORKSPACE, n);
    if (tape->rc == 0 && acc_w) {
        tape->flat->cast(tape->ctx, sum, SHD_F32, dw, tape->dtype, n);
    }
    run_chunks(tape, h, w, node->ids, node->losses, dh, sum, acc_w, 1);
    if (tape->rc == 0) {
        tape->flat->cast(tape->ctx, dw, tape->dtype, sum, SHD_F32, n);
    }
    shd_arena_release(tape->arena, sum);
}

static int backward_cross_entropy(shd_tape *tape, shd_node *node)
{
    shd_tensor *h = node->in[0], *w = node->in[1];
    if (h->grad_defined) {
        shd_tape_fail(tape, SHD_EINTERNAL, "cross-entropy: its input is used twice");
        return tape->rc;
    }
    int acc_h = 0, acc_w = 0;
    void *dh = shd_tape_grad(tape, h, &acc_h);
    void *dw = shd_tape_grad(tape, w, &acc_w);
    if (tape->rc == 0) {
        train_chunks(tape, node, dh, dw, acc_w);
    }
    return tape->rc;
}

void shd_tape_cross_entropy(shd_tape *tape, shd_tensor *h, shd_tensor *w, const int32_t *targets,
                            float *losses)
{
    if (tape->rc < 0) {
        return;
    }
    if (h->shape[1] != w->shape[1]) {
        shd_tape_fail(tape, SHD_EINTERNAL, "cross-entropy: width %lld against a head of %lld",
                      (long long)h->shape[1], (long long)w->shape[1]);
        return;
    }
    const shd_node node = {.backward = backward_cross_entropy,
                           .in = {h, w},
                           .keep = 1,
                           .ids = targets,
                           .losses = losses};
    if (shd_tape_keeps(tape, &node)) {
        shd_tape_push(tape, &node);
    } else {
        run_chunks(tape, h, w, targets, losses, NULL, NULL, 0, 0);
    }
}

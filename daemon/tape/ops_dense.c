/* Tape ops on rows: embedding, linear, rows, logits. Floor F3; the rank's thread. */
#include "daemon/tape/tape_internal.h"

static int backward_embedding(shd_tape *tape, shd_node *node)
{
    shd_tensor *wte = node->in[0], *wpe = node->in[1], *out = node->out;
    const int64_t R = out->shape[0];
    int acc_wte = 0, acc_wpe = 0;
    void *dwte = shd_tape_grad(tape, wte, &acc_wte);
    void *dwpe = wpe != NULL ? shd_tape_grad(tape, wpe, &acc_wpe) : NULL;
    void *ws = shd_tape_workspace(tape, tape->ops->embedding_backward_ws(
                                            tape->ctx, shd_tape_rows_held(tape, R), wte->shape[0]));
    if (tape->rc == 0) {
        tape->ops->embedding_backward(tape->ctx, dwte, dwpe, out->grad, node->ids, R, node->n0,
                                      out->shape[1], wte->shape[0], wpe != NULL ? wpe->shape[0] : 0,
                                      node->n1, acc_wte, acc_wpe, ws);
    }
    shd_arena_release(tape->arena, ws);
    return tape->rc;
}

shd_tensor *shd_tape_embedding(shd_tape *tape, shd_tensor *wte, shd_tensor *wpe, const int32_t *ids,
                               int64_t rows, int64_t tokens, int64_t pos0, int64_t pad)
{
    if (tape->rc < 0) {
        return NULL;
    }
    const int64_t C = wte->shape[1];
    if (rows % tokens != 0 ||
        (wpe != NULL && (wpe->shape[1] != C || pos0 < 0 || pos0 + tokens > wpe->shape[0]))) {
        return shd_tape_fail(tape, SHD_EINTERNAL,
                             "embedding: %lld rows of %lld tokens from %lld do not fit the tables",
                             (long long)rows, (long long)tokens, (long long)pos0);
    }
    if (wpe != NULL && pos0 != 0 && tape->recording) {
        return shd_tape_fail(tape, SHD_EINTERNAL, "embedding: from position %lld, forward only",
                             (long long)pos0);
    }
    shd_tensor *out = shd_tape_tensor(tape, rows, C);
    if (out != NULL) {
        tape->ops->embedding_forward(tape->ctx, out->data, wte->data,
                                     wpe != NULL ? wpe->data : NULL, ids, rows, tokens, C, pos0);
        shd_tape_push(tape, &(shd_node){.backward = backward_embedding,
                                        .in = {wte, wpe},
                                        .out = out,
                                        .ids = ids,
                                        .n0 = tokens,
                                        .n1 = pad});
    }
    return out;
}

/* Scratch of a linear layer for as many rows as there may be. */
static void *linear_workspace(shd_tape *tape, int64_t R, int64_t N, int64_t K)
{
    return shd_tape_workspace(tape,
                              tape->ops->linear_ws(tape->ctx, shd_tape_rows_held(tape, R), N, K));
}

static int backward_linear(shd_tape *tape, shd_node *node)
{
    shd_tensor *x = node->in[0], *w = node->in[1], *bias = node->in[2], *residual = node->in[3];
    shd_tensor *out = node->out;
    const int w_kn = (int)node->n0;
    const int64_t R = x->shape[0], K = x->shape[1], N = out->shape[1];
    int acc_x = 0, acc_w = 0;
    void *dw = NULL, *db = NULL;
    shd_tape_grad_pair(tape, w, bias, &dw, &db, &acc_w);
    void *ws = linear_workspace(tape, R, N, K);
    if (tape->rc == 0 && (dw != NULL || db != NULL)) {
        tape->ops->linear_backward_weight(tape->ctx, dw, db, out->grad, x->data, R, N, K, w_kn,
                                          acc_w, ws);
    }
    void *dx = shd_tape_grad(tape, x, &acc_x);
    if (tape->rc == 0 && dx != NULL) {
        tape->ops->linear_backward_input(tape->ctx, dx, out->grad, w->data, R, N, K, w_kn, acc_x,
                                         ws);
    }
    shd_arena_release(tape->arena, ws);
    if (residual != NULL && tape->rc == 0) {
        shd_tape_move_grad(tape, out, residual);
    }
    return tape->rc;
}

shd_tensor *shd_tape_linear(shd_tape *tape, shd_tensor *x, shd_tensor *w, shd_tensor *bias,
                            shd_tensor *residual, int w_kn)
{
    if (tape->rc < 0) {
        return NULL;
    }
    const int64_t R = x->shape[0], K = x->shape[1];
    const int64_t N = w->shape[w_kn ? 1 : 0];
    if (w->shape[w_kn ? 0 : 1] != K || (bias != NULL && bias->shape[0] != N) ||
        (residual != NULL && (residual->shape[0] != R || residual->shape[1] != N))) {
        return shd_tape_fail(tape, SHD_EINTERNAL,
                             "linear: x [%lld,%lld], w [%lld,%lld] and what is added do not fit",
                             (long long)R, (long long)K, (long long)w->shape[0],
                             (long long)w->shape[1]);
    }
    shd_tensor *out = shd_tape_tensor(tape, R, N);
    void *ws = linear_workspace(tape, R, N, K);
    if (tape->rc == 0) {
        tape->ops->linear_forward(tape->ctx, out->data, x->data, w->data,
                                  bias != NULL ? bias->data : NULL,
                                  residual != NULL ? residual->data : NULL, R, N, K, w_kn, ws);
    }
    shd_arena_release(tape->arena, ws);
    if (tape->rc == 0) {
        shd_tape_push(tape, &(shd_node){.backward = backward_linear,
                                        .in = {x, w, bias, residual},
                                        .keep = w->requires_grad ? 1 : 0, /* for dw */
                                        .out = out,
                                        .n0 = w_kn});
    }
    return tape->rc == 0 ? out : NULL;
}

shd_tensor *shd_tape_rows(shd_tape *tape, shd_tensor *x, int64_t first, int64_t n)
{
    if (tape->rc < 0) {
        return NULL;
    }
    if (tape->recording || first < 0 || first + n > x->shape[0]) {
        return shd_tape_fail(tape, SHD_EINTERNAL, "rows %lld..%lld of %lld, forward only",
                             (long long)first, (long long)(first + n), (long long)x->shape[0]);
    }
    const int64_t C = x->shape[1];
    tape->least_rows = 0;
    shd_tensor *out = shd_tape_tensor(tape, n, C);
    if (out != NULL) {
        tape->flat->copy(tape->ctx, out->data, shd_tape_at(tape, x->data, first * C),
                         (size_t)(n * C) * tape->elt_size);
    }
    return out;
}

shd_tensor *shd_tape_logits(shd_tape *tape, shd_tensor *x, shd_tensor *w)
{
    if (tape->rc < 0) {
        return NULL;
    }
    const int64_t R = x->shape[0], K = x->shape[1], V = w->shape[0];
    if (tape->recording || w->shape[1] != K) {
        return shd_tape_fail(tape, SHD_EINTERNAL,
                             "logits: width %lld against a head of %lld, forward only",
                             (long long)K, (long long)w->shape[1]);
    }
    float *logits =
        shd_tape_take_floats(tape, SHD_TAG_ACTIVATIONS, shd_tape_rows_held(tape, R) * V);
    shd_tensor *out = shd_tape_tensor_around(tape, R, V, SHD_F32, logits);
    void *ws = linear_workspace(tape, R, V, K);
    if (tape->rc == 0) {
        tape->ops->head_forward(tape->ctx, logits, x->data, w->data, R, V, K, ws);
    }
    shd_arena_release(tape->arena, ws);
    return tape->rc == 0 ? out : NULL;
}

/* Tape ops: layer norm and RMS norm. Floor F3; the rank's thread. */
#include "daemon/tape/tape_internal.h"

static int backward_layernorm(shd_tape *tape, shd_node *node)
{
    shd_tensor *x = node->in[0], *w = node->in[1], *b = node->in[2], *out = node->out;
    const int64_t R = x->shape[0], C = x->shape[1];
    int acc_x = 0, acc_w = 0;
    void *dw = NULL, *db = NULL;
    void *dx = shd_tape_grad(tape, x, &acc_x);
    shd_tape_grad_pair(tape, w, b, &dw, &db, &acc_w);
    void *ws = shd_tape_workspace(
        tape, tape->ops->layernorm_backward_ws(tape->ctx, shd_tape_rows_held(tape, R), C));
    if (tape->rc == 0) {
        tape->ops->layernorm_backward(tape->ctx, dx, dw, db, out->grad, x->data, w->data,
                                      node->saved[0], node->saved[1], R, C, acc_x, acc_w, ws);
    }
    shd_arena_release(tape->arena, ws);
    return tape->rc;
}

shd_tensor *shd_tape_layernorm(shd_tape *tape, shd_tensor *x, shd_tensor *w, shd_tensor *b,
                               float eps)
{
    if (tape->rc < 0) {
        return NULL;
    }
    const int64_t R = x->shape[0], C = x->shape[1];
    if (w->shape[0] != C || b->shape[0] != C) {
        return shd_tape_fail(tape, SHD_EINTERNAL, "layer norm: gain %lld and bias %lld of %lld",
                             (long long)w->shape[0], (long long)b->shape[0], (long long)C);
    }
    shd_tensor *out = shd_tape_tensor(tape, R, C);
    shd_node node = {.backward = backward_layernorm, .in = {x, w, b}, .keep = 1, .out = out};
    if (shd_tape_keeps(tape, &node)) {
        node.saved[0] =
            shd_tape_take_floats(tape, SHD_TAG_ACTIVATIONS, shd_tape_rows_held(tape, R));
        node.saved[1] =
            shd_tape_take_floats(tape, SHD_TAG_ACTIVATIONS, shd_tape_rows_held(tape, R));
    }
    if (tape->rc == 0) {
        tape->ops->layernorm_forward(tape->ctx, out->data, node.saved[0], node.saved[1], x->data,
                                     w->data, b->data, R, C, eps);
    }
    shd_tape_push(tape, &node);
    return tape->rc == 0 ? out : NULL;
}

static int backward_rmsnorm(shd_tape *tape, shd_node *node)
{
    shd_tensor *x = node->in[0], *w = node->in[1], *out = node->out;
    const int64_t C = w->shape[0], groups = x->shape[1] / C, R = x->shape[0];
    int acc_x = 0, acc_w = 0;
    void *dx = shd_tape_grad(tape, x, &acc_x);
    void *dw = shd_tape_grad(tape, w, &acc_w);
    void *ws = shd_tape_workspace(
        tape, tape->ops->rmsnorm_backward_ws(tape->ctx, shd_tape_rows_held(tape, R) * groups, C));
    if (tape->rc == 0) {
        tape->ops->rmsnorm_backward(tape->ctx, dx, dw, out->grad, x->data, w->data, node->saved[0],
                                    R * groups, C, acc_x, acc_w, ws);
    }
    shd_arena_release(tape->arena, ws);
    return tape->rc;
}

shd_tensor *shd_tape_rmsnorm(shd_tape *tape, shd_tensor *x, shd_tensor *w, float eps)
{
    if (tape->rc < 0) {
        return NULL;
    }
    const int64_t R = x->shape[0], C = w->shape[0];
    if (x->shape[1] % C != 0) {
        return shd_tape_fail(tape, SHD_EINTERNAL, "RMS norm: rows of %lld in groups of %lld",
                             (long long)x->shape[1], (long long)C);
    }
    const int64_t groups = x->shape[1] / C;
    shd_tensor *out = shd_tape_tensor(tape, R, x->shape[1]);
    shd_node node = {.backward = backward_rmsnorm, .in = {x, w}, .keep = 1, .out = out};
    if (shd_tape_keeps(tape, &node)) {
        node.saved[0] =
            shd_tape_take_floats(tape, SHD_TAG_ACTIVATIONS, shd_tape_rows_held(tape, R) * groups);
    }
    if (tape->rc == 0) {
        tape->ops->rmsnorm_forward(tape->ctx, out->data, node.saved[0], x->data, w->data,
                                   R * groups, C, eps);
    }
    shd_tape_push(tape, &node);
    return tape->rc == 0 ? out : NULL;
}

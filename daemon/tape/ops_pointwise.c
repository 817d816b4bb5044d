/* Tape ops element by element: GELU, SwiGLU, rotary positions, dropout. Floor F3; the rank's
 * thread. */
#include "daemon/tape/tape_internal.h"

/* Where dx goes when it may be made in the output's own gradient: x gets that buffer when it has
 * none yet. */
static void *grad_in_place(shd_tape *tape, shd_tensor *out, shd_tensor *x, int *acc)
{
    if (x->requires_grad && x->grad == NULL && !x->is_param) {
        shd_tape_move_grad(tape, out, x);
        *acc = 0;
        return x->grad;
    }
    return shd_tape_grad(tape, x, acc);
}

static int backward_gelu(shd_tape *tape, shd_node *node)
{
    shd_tensor *x = node->in[0];
    int acc = 0;
    const void *dout = node->out->grad;
    void *dx = grad_in_place(tape, node->out, x, &acc);
    if (tape->rc == 0) {
        tape->ops->gelu_backward(tape->ctx, dx, dout, x->data, shd_tensor_numel(x),
                                 (shd_gelu_form)node->n0, acc);
    }
    return tape->rc;
}

shd_tensor *shd_tape_gelu(shd_tape *tape, shd_tensor *x, shd_gelu_form form)
{
    if (tape->rc < 0) {
        return NULL;
    }
    shd_tensor *out = shd_tape_tensor(tape, x->shape[0], x->shape[1]);
    if (out != NULL) {
        tape->ops->gelu_forward(tape->ctx, out->data, x->data, shd_tensor_numel(x), form);
        shd_tape_push(
            tape,
            &(shd_node){.backward = backward_gelu, .in = {x}, .keep = 1, .out = out, .n0 = form});
    }
    return out;
}

static int backward_swiglu(shd_tape *tape, shd_node *node)
{
    shd_tensor *gate = node->in[0], *up = node->in[1];
    int acc_gate = 0, acc_up = 0;
    const void *dout = node->out->grad;
    void *dup = shd_tape_grad(tape, up, &acc_up);
    void *dgate = grad_in_place(tape, node->out, gate, &acc_gate);
    if (tape->rc == 0) {
        tape->ops->swiglu_backward(tape->ctx, dgate, dup, dout, gate->data, up->data,
                                   shd_tensor_numel(gate), acc_gate, acc_up);
    }
    return tape->rc;
}

shd_tensor *shd_tape_swiglu(shd_tape *tape, shd_tensor *gate, shd_tensor *up)
{
    if (tape->rc < 0) {
        return NULL;
    }
    if (gate == up || gate->shape[0] != up->shape[0] || gate->shape[1] != up->shape[1]) {
        return shd_tape_fail(tape, SHD_EINTERNAL, "swiglu: [%lld,%lld] and [%lld,%lld]",
                             (long long)gate->shape[0], (long long)gate->shape[1],
                             (long long)up->shape[0], (long long)up->shape[1]);
    }
    shd_tensor *out = shd_tape_tensor(tape, gate->shape[0], gate->shape[1]);
    if (out != NULL) {
        tape->ops->swiglu_forward(tape->ctx, out->data, gate->data, up->data,
                                  shd_tensor_numel(out));
        shd_tape_push(
            tape,
            &(shd_node){.backward = backward_swiglu, .in = {gate, up}, .keep = 3, .out = out});
    }
    return out;
}

static int backward_rope(shd_tape *tape, shd_node *node)
{
    shd_tensor *x = node->in[0];
    const int64_t D = node->attn.head_dim;
    int acc = 0;
    const void *dout = node->out->grad;
    void *dx = grad_in_place(tape, node->out, x, &acc);
    if (tape->rc == 0) {
        tape->ops->rope(tape->ctx, dx, dout, x->shape[0], node->n0, x->shape[1] / D, D, node->n1,
                        node->inv_freq, 1, acc);
    }
    return tape->rc;
}

shd_tensor *shd_tape_rope(shd_tape *tape, shd_tensor *x, const float *inv_freq, int64_t head_dim,
                          int64_t tokens, int64_t pos0)
{
    if (tape->rc < 0) {
        return NULL;
    }
    const int64_t R = x->shape[0], C = x->shape[1];
    if (head_dim % 2 != 0 || C % head_dim != 0 || R % tokens != 0 || x->is_param) {
        return shd_tape_fail(tape, SHD_EINTERNAL,
                             "rope: [%lld,%lld] is not heads of %lld over sequences of %lld",
                             (long long)R, (long long)C, (long long)head_dim, (long long)tokens);
    }
    const void *from = x->data;
    shd_tensor *out;
    if (x->refs == 1) {
        out = shd_tape_tensor_around(tape, R, C, tape->dtype, x->data);
        x->data = NULL;
    } else {
        out = shd_tape_tensor(tape, R, C);
    }
    if (out == NULL) {
        return NULL;
    }
    tape->ops->rope(tape->ctx, out->data, from, R, tokens, C / head_dim, head_dim, pos0, inv_freq,
                    0, 0);
    shd_tape_push(tape, &(shd_node){.backward = backward_rope,
                                    .in = {x},
                                    .out = out,
                                    .inv_freq = inv_freq,
                                    .n0 = tokens,
                                    .n1 = pos0,
                                    .attn = {.head_dim = head_dim}});
    shd_tape_drop(tape, x);
    return out;
}

static int backward_dropout(shd_tape *tape, shd_node *node)
{
    shd_tensor *x = node->in[0], *residual = node->in[1], *out = node->out;
    const int64_t R = out->shape[0], C = out->shape[1];
    const int shared = residual != NULL && residual->requires_grad;
    int acc = 0;
    const void *dout = out->grad;
    void *dx = shared ? shd_tape_grad(tape, x, &acc) : grad_in_place(tape, out, x, &acc);
    if (tape->rc == 0 && dx != NULL) {
        tape->ops->dropout_backward(tape->ctx, dx, dout, R, node->n0, C, &node->dropout, acc);
    }
    if (tape->rc == 0 && shared) {
        shd_tape_move_grad(tape, out, residual);
    }
    return tape->rc;
}

shd_tensor *shd_tape_dropout(shd_tape *tape, shd_tensor *x, shd_tensor *residual, int64_t tokens,
                             const shd_dropout *dropout)
{
    if (tape->rc < 0) {
        return NULL;
    }
    const int64_t R = x->shape[0], C = x->shape[1];
    if (R % tokens != 0 || x == residual || !(dropout->p > 0.0f && dropout->p < 1.0f) ||
        (residual != NULL && (residual->shape[0] != R || residual->shape[1] != C))) {
        return shd_tape_fail(tape, SHD_EINTERNAL,
                             "dropout: p %g of [%lld,%lld] in sequences of %lld does not fit",
                             (double)dropout->p, (long long)R, (long long)C, (long long)tokens);
    }
    shd_tensor *out = shd_tape_tensor(tape, R, C);
    if (out != NULL) {
        tape->ops->dropout_forward(tape->ctx, out->data, x->data,
                                   residual != NULL ? residual->data : NULL, R, tokens, C, dropout);
        shd_tape_push(tape, &(shd_node){.backward = backward_dropout,
                                        .in = {x, residual},
                                        .out = out,
                                        .n0 = tokens,
                                        .dropout = *dropout});
    }
    return out;
}

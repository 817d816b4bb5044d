/* Tape ops on rows: embedding, layer norm, linear, GELU, rows. Floor F3; the rank's thread. */
#include "daemon/tape/tape_internal.h"

static int backward_embedding(shd_tape *tape, shd_node *node)
{
    shd_tensor *wte = node->in[0], *wpe = node->in[1], *out = node->out;
    int acc_wte = 0, acc_wpe = 0;
    float *dwte = shd_tape_grad(tape, wte, &acc_wte);
    float *dwpe = wpe != NULL ? shd_tape_grad(tape, wpe, &acc_wpe) : NULL;
    if (tape->rc == 0) {
        tape->ops->embedding_backward(tape->ctx, dwte, dwpe, out->grad, node->ids, out->shape[0],
                                      node->n0, out->shape[1], wte->shape[0],
                                      wpe != NULL ? wpe->shape[0] : 0, acc_wte, acc_wpe);
    }
    return tape->rc;
}

shd_tensor *shd_tape_embedding(shd_tape *tape, shd_tensor *wte, shd_tensor *wpe, const int32_t *ids,
                               int64_t rows, int64_t tokens)
{
    if (tape->rc < 0) {
        return NULL;
    }
    const int64_t C = wte->shape[1];
    if (rows % tokens != 0 || (wpe != NULL && (wpe->shape[1] != C || tokens > wpe->shape[0]))) {
        return shd_tape_fail(tape, SHD_EINTERNAL,
                             "embedding: %lld rows of %lld tokens do not fit the tables",
                             (long long)rows, (long long)tokens);
    }
    shd_tensor *out = shd_tape_tensor(tape, rows, C);
    if (out != NULL) {
        tape->ops->embedding_forward(tape->ctx, out->data, wte->data,
                                     wpe != NULL ? wpe->data : NULL, ids, rows, tokens, C, 0);
        shd_tape_push(tape, &(shd_node){.backward = backward_embedding,
                                        .in = {wte, wpe},
                                        .out = out,
                                        .ids = ids,
                                        .n0 = tokens});
    }
    return out;
}

static int backward_layernorm(shd_tape *tape, shd_node *node)
{
    shd_tensor *x = node->in[0], *w = node->in[1], *b = node->in[2], *out = node->out;
    const int64_t R = x->shape[0], C = x->shape[1];
    int acc_x = 0, acc_w = 0;
    float *dw = NULL, *db = NULL;
    float *dx = shd_tape_grad(tape, x, &acc_x);
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
    shd_tensor *out = shd_tape_tensor(tape, R, C);
    float *mean = NULL, *rstd = NULL;
    if (tape->recording) {
        mean = shd_tape_take(tape, SHD_TAG_ACTIVATIONS, shd_tape_rows_held(tape, R));
        rstd = shd_tape_take(tape, SHD_TAG_ACTIVATIONS, shd_tape_rows_held(tape, R));
    }
    shd_node node = {.backward = backward_layernorm,
                     .in = {x, w, b},
                     .keep = 1,
                     .out = out,
                     .saved = {mean, rstd}};
    if (tape->rc == 0) {
        tape->ops->layernorm_forward(tape->ctx, out->data, mean, rstd, x->data, w->data, b->data, R,
                                     C, eps);
    }
    shd_tape_push(tape, &node);
    return tape->rc == 0 ? out : NULL;
}

static int backward_linear(shd_tape *tape, shd_node *node)
{
    shd_tensor *x = node->in[0], *w = node->in[1], *bias = node->in[2], *residual = node->in[3];
    shd_tensor *out = node->out;
    const int w_kn = (int)node->n0;
    const int64_t R = x->shape[0], K = x->shape[1], N = out->shape[1];
    int acc_x = 0, acc_w = 0;
    float *dw = NULL, *db = NULL;
    shd_tape_grad_pair(tape, w, bias, &dw, &db, &acc_w);
    void *ws = shd_tape_workspace(
        tape, tape->ops->linear_backward_weight_ws(tape->ctx, shd_tape_rows_held(tape, R), N, K));
    if (tape->rc == 0) {
        tape->ops->linear_backward_weight(tape->ctx, dw, db, out->grad, x->data, R, N, K, w_kn,
                                          acc_w, ws);
    }
    shd_arena_release(tape->arena, ws);
    float *dx = shd_tape_grad(tape, x, &acc_x);
    if (tape->rc == 0) {
        tape->ops->linear_backward_input(tape->ctx, dx, out->grad, w->data, R, N, K, w_kn, acc_x);
    }
    if (residual != NULL && tape->rc == 0) {
        shd_tape_grad_pass(tape, out, residual);
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
    if (out != NULL) {
        tape->ops->linear_forward(tape->ctx, out->data, x->data, w->data,
                                  bias != NULL ? bias->data : NULL,
                                  residual != NULL ? residual->data : NULL, R, N, K, w_kn);
        shd_tape_push(tape, &(shd_node){.backward = backward_linear,
                                        .in = {x, w, bias, residual},
                                        .keep = 1,
                                        .out = out,
                                        .n0 = w_kn});
    }
    return out;
}

static int backward_gelu(shd_tape *tape, shd_node *node)
{
    shd_tensor *x = node->in[0];
    int acc = 0;
    /* Elementwise: the gradient may be made in the output's own buffer. */
    if (x->grad == NULL && !x->is_param) {
        tape->ops->gelu_backward(tape->ctx, node->out->grad, node->out->grad, x->data,
                                 shd_tensor_numel(x), 0);
        shd_tape_grad_pass(tape, node->out, x);
        return tape->rc;
    }
    float *dx = shd_tape_grad(tape, x, &acc);
    if (tape->rc == 0) {
        tape->ops->gelu_backward(tape->ctx, dx, node->out->grad, x->data, shd_tensor_numel(x), acc);
    }
    return tape->rc;
}

shd_tensor *shd_tape_gelu(shd_tape *tape, shd_tensor *x)
{
    if (tape->rc < 0) {
        return NULL;
    }
    shd_tensor *out = shd_tape_tensor(tape, x->shape[0], x->shape[1]);
    if (out != NULL) {
        tape->ops->gelu_forward(tape->ctx, out->data, x->data, shd_tensor_numel(x));
        shd_tape_push(tape,
                      &(shd_node){.backward = backward_gelu, .in = {x}, .keep = 1, .out = out});
    }
    return out;
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
        tape->ops->copy(tape->ctx, out->data, x->data + first * C, (size_t)(n * C) * sizeof(float));
    }
    return out;
}

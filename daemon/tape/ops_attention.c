/* Tape op: causal self-attention over packed projections. Floor F3; the rank's thread. */
#include <math.h>

#include "daemon/tape/tape_internal.h"

static shd_attn_shape shape_of(int64_t rows, int64_t channels, int64_t heads, int64_t tokens)
{
    const int64_t D = channels / heads;
    return (shd_attn_shape){.B = rows / tokens,
                            .T = tokens,
                            .H = heads,
                            .KVH = heads,
                            .D = D,
                            .q_stride = 3 * channels,
                            .kv_stride = 3 * channels,
                            .out_stride = channels,
                            .scale = (float)(1.0 / sqrt((double)D))};
}

/* Scratch for the longest sequences that there may be. */
static void *workspace(shd_tape *tape, shd_attn_shape shape, int backward)
{
    shape.T = shd_tape_tokens_held(tape, shape.T);
    return shd_tape_workspace(tape, tape->ops->attention_ws(tape->ctx, &shape, backward));
}

static int backward_attention(shd_tape *tape, shd_node *node)
{
    shd_tensor *qkv = node->in[0], *out = node->out;
    const int64_t C = out->shape[1];
    const shd_attn_shape shape = shape_of(out->shape[0], C, node->n0, node->n1);
    if (qkv->grad_defined) {
        shd_tape_fail(tape, SHD_EINTERNAL, "attention: its projections are used twice");
        return tape->rc;
    }
    int acc = 0;
    float *d = shd_tape_grad(tape, qkv, &acc);
    void *ws = workspace(tape, shape, 1);
    if (tape->rc == 0) {
        tape->ops->attention_backward(tape->ctx, d, d + C, d + 2 * C, out->grad, out->data,
                                      node->saved[0], qkv->data, qkv->data + C, qkv->data + 2 * C,
                                      &shape, ws);
    }
    shd_arena_release(tape->arena, ws);
    return tape->rc;
}

shd_tensor *shd_tape_attention(shd_tape *tape, shd_tensor *qkv, int64_t heads, int64_t tokens)
{
    if (tape->rc < 0) {
        return NULL;
    }
    const int64_t R = qkv->shape[0], C = qkv->shape[1] / 3;
    if (qkv->shape[1] % 3 != 0 || C % heads != 0 || R % tokens != 0) {
        return shd_tape_fail(tape, SHD_EINTERNAL,
                             "attention: [%lld,%lld] is not 3 x %lld heads over sequences of %lld",
                             (long long)R, (long long)qkv->shape[1], (long long)heads,
                             (long long)tokens);
    }
    const shd_attn_shape shape = shape_of(R, C, heads, tokens);
    shd_tensor *out = shd_tape_tensor(tape, R, C);
    float *lse = NULL;
    if (tape->recording) {
        lse = shd_tape_take(tape, SHD_TAG_ACTIVATIONS, shd_tape_rows_held(tape, R) * heads);
    }
    void *ws = workspace(tape, shape, 0);
    if (tape->rc == 0) {
        tape->ops->attention_forward(tape->ctx, out->data, lse, qkv->data, qkv->data + C,
                                     qkv->data + 2 * C, &shape, ws);
    }
    shd_arena_release(tape->arena, ws);
    shd_tape_push(tape, &(shd_node){.backward = backward_attention,
                                    .in = {qkv},
                                    .keep = 1,
                                    .out = out,
                                    .keep_out = 1,
                                    .saved = {lse},
                                    .n0 = heads,
                                    .n1 = tokens});
    return tape->rc == 0 ? out : NULL;
}

/* Tape ops: causal self-attention over separate or packed projections, and over cached keys.
 * Floor F3; the rank's thread. */
#include "daemon/tape/tape_internal.h"

/* Queries, keys and values as the op sees them: in one tensor or in three. */
typedef struct operands {
    shd_tensor *q, *k, *v; /* k and v are NULL when packed */
    int64_t rows;
    int64_t q_width, kv_width;
    int64_t q_stride, kv_stride;
} operands;

static int operands_of(operands *o, shd_tape *tape, shd_tensor *q, shd_tensor *k, shd_tensor *v,
                       const shd_attn_spec *spec, int64_t tokens)
{
    const int64_t q_width = spec->heads * spec->head_dim;
    const int64_t kv_width = spec->kv_heads * spec->head_dim;
    *o = (operands){.q = q, .k = k, .v = v, .rows = q->shape[0]};
    o->q_width = q_width;
    o->kv_width = kv_width;
    o->q_stride = q->shape[1];
    o->kv_stride = k != NULL ? kv_width : q->shape[1];
    const int fits = k != NULL ? q->shape[1] == q_width && k->shape[1] == kv_width &&
                                     v->shape[1] == kv_width && k->shape[0] == o->rows &&
                                     v->shape[0] == o->rows && k != v && k != q && v != q
                               : q->shape[1] == q_width + 2 * kv_width;
    if (!fits || spec->heads % spec->kv_heads != 0 || o->rows % tokens != 0) {
        shd_tape_fail(tape, SHD_EINTERNAL,
                      "attention: q [%lld,%lld]%s does not fit %lld heads on %lld of %lld, in "
                      "sequences of %lld",
                      (long long)o->rows, (long long)q->shape[1], k != NULL ? ", k, v" : " packed",
                      (long long)spec->heads, (long long)spec->kv_heads, (long long)spec->head_dim,
                      (long long)tokens);
        return 0;
    }
    return 1;
}

static shd_attn_shape shape_of(const operands *o, const shd_attn_spec *spec, int64_t tokens,
                               const shd_dropout *dropout)
{
    return (shd_attn_shape){.B = o->rows / tokens,
                            .T = tokens,
                            .H = spec->heads,
                            .KVH = spec->kv_heads,
                            .D = spec->head_dim,
                            .q_stride = o->q_stride,
                            .kv_stride = o->kv_stride,
                            .out_stride = o->q_width,
                            .scale = spec->scale,
                            .window = spec->window,
                            .dropout = dropout};
}

/* Scratch for the longest sequences that there may be. */
static void *workspace(shd_tape *tape, shd_attn_shape shape, int backward)
{
    shape.T = shd_tape_tokens_held(tape, shape.T);
    return shd_tape_workspace(tape, tape->ops->attention_ws(tape->ctx, &shape, backward));
}

static const void *keys_of(const shd_tape *tape, const operands *o)
{
    return o->k != NULL ? o->k->data : shd_tape_at(tape, o->q->data, o->q_width);
}

static const void *values_of(const shd_tape *tape, const operands *o)
{
    return o->v != NULL ? o->v->data : shd_tape_at(tape, o->q->data, o->q_width + o->kv_width);
}

/* Memory for the gradient of an input, which the op always writes; *unwanted gets it when the
 * input requires none. */
static void *grad_of(shd_tape *tape, shd_tensor *t, void **unwanted)
{
    int acc = 0;
    if (t->grad_defined) {
        shd_tape_fail(tape, SHD_EINTERNAL, "attention: its projections are used twice");
        return NULL;
    }
    if (t->requires_grad) {
        return shd_tape_grad(tape, t, &acc);
    }
    *unwanted =
        shd_tape_take(tape, SHD_TAG_WORKSPACE, shd_tape_rows_held(tape, t->shape[0]) * t->shape[1]);
    return *unwanted;
}

static int backward_attention(shd_tape *tape, shd_node *node)
{
    shd_tensor *out = node->out;
    operands o;
    if (!operands_of(&o, tape, node->in[0], node->in[1], node->in[2], &node->attn, node->n0)) {
        return tape->rc;
    }
    const shd_attn_shape shape =
        shape_of(&o, &node->attn, node->n0, node->dropout.p > 0.0f ? &node->dropout : NULL);
    void *unwanted[3] = {NULL, NULL, NULL};
    void *dq = grad_of(tape, o.q, &unwanted[0]), *dk = NULL, *dv = NULL;
    if (o.k != NULL) {
        dk = grad_of(tape, o.k, &unwanted[1]);
        dv = grad_of(tape, o.v, &unwanted[2]);
    } else if (dq != NULL) {
        dk = shd_tape_at(tape, dq, o.q_width);
        dv = shd_tape_at(tape, dq, o.q_width + o.kv_width);
    }
    void *ws = workspace(tape, shape, 1);
    if (tape->rc == 0) {
        tape->ops->attention_backward(tape->ctx, dq, dk, dv, out->grad, out->data, node->saved[0],
                                      o.q->data, keys_of(tape, &o), values_of(tape, &o), &shape,
                                      ws);
    }
    shd_arena_release(tape->arena, ws);
    for (int i = 0; i < 3; i++) {
        shd_arena_release(tape->arena, unwanted[i]);
    }
    return tape->rc;
}

shd_tensor *shd_tape_attention(shd_tape *tape, shd_tensor *q, shd_tensor *k, shd_tensor *v,
                               const shd_attn_spec *spec, int64_t tokens,
                               const shd_dropout *dropout)
{
    operands o;
    if (tape->rc < 0 || !operands_of(&o, tape, q, k, v, spec, tokens)) {
        return NULL;
    }
    const shd_attn_shape shape = shape_of(&o, spec, tokens, dropout);
    shd_tensor *out = shd_tape_tensor(tape, o.rows, o.q_width);
    shd_node node = {.backward = backward_attention,
                     .in = {q, k, v},
                     .keep = 7,
                     .out = out,
                     .keep_out = 1,
                     .n0 = tokens,
                     .attn = *spec};
    if (dropout != NULL) {
        node.dropout = *dropout;
    }
    if (shd_tape_keeps(tape, &node)) {
        node.saved[0] = shd_tape_take_floats(tape, SHD_TAG_ACTIVATIONS,
                                             shd_tape_rows_held(tape, o.rows) * spec->heads);
    }
    void *ws = workspace(tape, shape, 0);
    if (tape->rc == 0) {
        tape->ops->attention_forward(tape->ctx, out->data, node.saved[0], q->data,
                                     keys_of(tape, &o), values_of(tape, &o), &shape, ws);
    }
    shd_arena_release(tape->arena, ws);
    shd_tape_push(tape, &node);
    return tape->rc == 0 ? out : NULL;
}

shd_tensor *shd_tape_attention_packed(shd_tape *tape, shd_tensor *qkv, const shd_attn_spec *spec,
                                      int64_t tokens, const shd_dropout *dropout)
{
    return shd_tape_attention(tape, qkv, NULL, NULL, spec, tokens, dropout);
}

/* Stores keys or values of the new rows behind those that a cache holds. */
static void append(shd_tape *tape, void *cache, const void *rows, const operands *o, int64_t length)
{
    const size_t bytes = (size_t)o->kv_width * tape->elt_size;
    if (o->kv_stride == o->kv_width) {
        tape->flat->copy(tape->ctx, shd_tape_at(tape, cache, length * o->kv_width), rows,
                         bytes * (size_t)o->rows);
        return;
    }
    for (int64_t r = 0; r < o->rows; r++) {
        tape->flat->copy(tape->ctx, shd_tape_at(tape, cache, (length + r) * o->kv_width),
                         shd_tape_at(tape, rows, r * o->kv_stride), bytes);
    }
}

shd_tensor *shd_tape_attention_cached(shd_tape *tape, shd_tensor *q, shd_tensor *k, shd_tensor *v,
                                      const shd_attn_spec *spec, const shd_kv_cache *cache)
{
    operands o;
    if (tape->rc < 0 || !operands_of(&o, tape, q, k, v, spec, q->shape[0])) {
        return NULL;
    }
    if (tape->recording || cache->length + o.rows > cache->capacity) {
        return shd_tape_fail(tape, SHD_EINTERNAL,
                             "attention: %lld tokens behind %lld in a cache of %lld, forward only",
                             (long long)o.rows, (long long)cache->length,
                             (long long)cache->capacity);
    }
    shd_tensor *out = shd_tape_tensor(tape, o.rows, o.q_width);
    shd_attn_shape shape = shape_of(&o, spec, o.rows, NULL);
    shape.kv_stride = o.kv_width;
    shape.S = cache->capacity;
    void *ws = workspace(tape, shape, 0);
    shape.S = cache->length + o.rows;
    if (tape->rc == 0) {
        append(tape, cache->k, keys_of(tape, &o), &o, cache->length);
        append(tape, cache->v, values_of(tape, &o), &o, cache->length);
        tape->ops->attention_forward(tape->ctx, out->data, NULL, q->data, cache->k, cache->v,
                                     &shape, ws);
    }
    shd_arena_release(tape->arena, ws);
    return tape->rc == 0 ? out : NULL;
}

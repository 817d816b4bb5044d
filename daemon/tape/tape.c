/* Tensors, nodes, reverse mode; see tape.h. Floor F3; the rank's thread. */
#include "daemon/tape/tape.h"

#include <stdlib.h>

#include "daemon/base/mem.h"
#include "daemon/tape/tape_internal.h"

shd_tape *shd_tape_create(shd_device *dev, shd_arena *arena, shd_dtype dtype)
{
    shd_tape *tape = shd_calloc(1, sizeof *tape);
    tape->dev = dev;
    tape->arena = arena;
    tape->dtype = dtype;
    tape->elt_size = shd_dtype_size(dtype);
    tape->loss_scale = 1.0f;
    tape->flat = shd_device_ops(dev);
    tape->ops = shd_device_compute_ops(dev, dtype);
    tape->ctx = shd_device_opctx(dev);
    return tape;
}

void shd_tape_free(shd_tape *tape)
{
    if (tape == NULL) {
        return;
    }
    shd_tape_reset(tape, 0);
    free(tape->nodes);
    free(tape->live);
    free(tape);
}

static void release_node(shd_tape *tape, shd_node *node)
{
    for (int i = 0; i < SHD_NODE_SAVED; i++) {
        shd_arena_release(tape->arena, node->saved[i]);
    }
}

void shd_tape_reset(shd_tape *tape, int record)
{
    for (int64_t i = 0; i < tape->n_nodes; i++) {
        release_node(tape, &tape->nodes[i]);
    }
    for (int64_t i = 0; i < tape->n_live; i++) {
        shd_arena_release(tape->arena, tape->live[i]->data);
        shd_arena_release(tape->arena, tape->live[i]->grad);
        free(tape->live[i]);
    }
    tape->n_nodes = 0;
    tape->n_live = 0;
    tape->least_rows = tape->reserve_rows;
    tape->recording = record;
    tape->rc = 0;
}

void shd_tape_record(shd_tape *tape, int record)
{
    tape->recording = record;
}

void shd_tape_set_loss_scale(shd_tape *tape, float scale)
{
    tape->loss_scale = scale;
}

void shd_tape_reserve(shd_tape *tape, int64_t rows, int64_t tokens)
{
    tape->reserve_rows = tape->least_rows = rows;
    tape->least_tokens = tokens;
}

int64_t shd_tape_rows_held(const shd_tape *tape, int64_t n)
{
    return n > tape->least_rows ? n : tape->least_rows;
}

int64_t shd_tape_tokens_held(const shd_tape *tape, int64_t n)
{
    return n > tape->least_tokens ? n : tape->least_tokens;
}

int shd_tape_error(const shd_tape *tape, shd_error *err)
{
    if (tape->rc < 0 && err != NULL) {
        *err = tape->err;
    }
    return tape->rc;
}

shd_tensor *shd_tape_fail(shd_tape *tape, int code, const char *fmt, ...)
{
    if (tape->rc == 0) {
        va_list args;
        va_start(args, fmt);
        tape->rc = shd_failv(&tape->err, code, fmt, args);
        va_end(args);
    }
    return NULL;
}

static void *take_bytes(shd_tape *tape, shd_tag tag, uint64_t bytes)
{
    void *data = NULL;
    if (tape->rc == 0) {
        tape->rc = shd_arena_alloc(tape->arena, tag, bytes, &data, &tape->err);
    }
    return tape->rc == 0 ? data : NULL;
}

void *shd_tape_take(shd_tape *tape, shd_tag tag, int64_t n)
{
    return take_bytes(tape, tag, (uint64_t)n * tape->elt_size);
}

float *shd_tape_take_floats(shd_tape *tape, shd_tag tag, int64_t n)
{
    return take_bytes(tape, tag, (uint64_t)n * sizeof(float));
}

void *shd_tape_workspace(shd_tape *tape, size_t bytes)
{
    void *data = NULL;
    if (bytes > 0 && tape->rc == 0) {
        tape->rc = shd_arena_alloc(tape->arena, SHD_TAG_WORKSPACE, bytes, &data, &tape->err);
    }
    return data;
}

shd_tensor *shd_tape_tensor_around(shd_tape *tape, int64_t rows, int64_t cols, shd_dtype dtype,
                                   void *data)
{
    if (data == NULL) {
        return NULL;
    }
    shd_tensor *t = shd_calloc(1, sizeof *t);
    t->ndim = 2;
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->dtype = dtype;
    t->data = data;
    t->refs = 1;
    if (tape->n_live == tape->cap_live) {
        tape->cap_live = tape->cap_live > 0 ? 2 * tape->cap_live : 64;
        tape->live = shd_reallocarray(tape->live, (size_t)tape->cap_live, sizeof(void *));
    }
    tape->live[tape->n_live++] = t;
    return t;
}

shd_tensor *shd_tape_tensor(shd_tape *tape, int64_t rows, int64_t cols)
{
    void *data = shd_tape_take(tape, SHD_TAG_ACTIVATIONS, shd_tape_rows_held(tape, rows) * cols);
    return shd_tape_tensor_around(tape, rows, cols, tape->dtype, data);
}

static void unref(shd_tape *tape, shd_tensor *t)
{
    if (t == NULL || t->is_param) {
        return;
    }
    if (--t->refs == 0) {
        shd_arena_release(tape->arena, t->data);
        t->data = NULL;
    }
}

void shd_tape_drop(shd_tape *tape, shd_tensor *t)
{
    unref(tape, t);
}

void shd_tape_hold(shd_tape *tape, shd_tensor *t)
{
    (void)tape;
    if (t != NULL && !t->is_param) {
        t->refs++;
    }
}

static int any_requires_grad(const shd_node *node)
{
    int any = 0;
    for (int i = 0; i < SHD_NODE_INPUTS; i++) {
        any |= node->in[i] != NULL && node->in[i]->requires_grad;
    }
    return any;
}

int shd_tape_keeps(const shd_tape *tape, const shd_node *node)
{
    return tape->recording && any_requires_grad(node);
}

void shd_tape_push(shd_tape *tape, const shd_node *node)
{
    if (node->out != NULL) {
        node->out->requires_grad = any_requires_grad(node);
    }
    if (!shd_tape_keeps(tape, node) || tape->rc < 0) {
        shd_node unused = *node;
        release_node(tape, &unused);
        return;
    }
    if (tape->n_nodes == tape->cap_nodes) {
        tape->cap_nodes = tape->cap_nodes > 0 ? 2 * tape->cap_nodes : 64;
        tape->nodes = shd_reallocarray(tape->nodes, (size_t)tape->cap_nodes, sizeof *tape->nodes);
    }
    tape->nodes[tape->n_nodes++] = *node;
    for (int i = 0; i < SHD_NODE_INPUTS; i++) {
        if (node->in[i] != NULL && (node->keep & (1u << i)) != 0) {
            node->in[i]->refs++;
        }
    }
    if (node->keep_out) {
        node->out->refs++;
    }
}

int64_t shd_tape_mark(const shd_tape *tape)
{
    return tape->n_nodes;
}

void *shd_tape_grad(shd_tape *tape, shd_tensor *t, int *acc)
{
    *acc = 0;
    if (!t->requires_grad) {
        return NULL;
    }
    if (t->grad == NULL) {
        if (t->is_param) {
            shd_tape_fail(tape, SHD_EINTERNAL, "a parameter has no gradient memory in backward");
            return NULL;
        }
        t->grad = shd_tape_take(tape, SHD_TAG_ACTIVATIONS,
                                shd_tape_rows_held(tape, t->shape[0]) * t->shape[1]);
    }
    *acc = t->grad_defined;
    t->grad_defined = 1;
    return t->grad;
}

void shd_tape_grad_pair(shd_tape *tape, shd_tensor *a, shd_tensor *b, void **da, void **db,
                        int *acc)
{
    int acc_a = 0, acc_b = 0;
    *da = shd_tape_grad(tape, a, &acc_a);
    *db = b != NULL ? shd_tape_grad(tape, b, &acc_b) : NULL;
    *acc = acc_a || acc_b;
    if (tape->rc < 0 || *da == NULL || *db == NULL || acc_a == acc_b) {
        return;
    }
    shd_tensor *fresh = acc_a ? b : a;
    tape->flat->zero(tape->ctx, fresh->grad, (size_t)shd_tensor_numel(fresh) * tape->elt_size);
}

void shd_tape_move_grad(shd_tape *tape, shd_tensor *from, shd_tensor *to)
{
    if (!to->requires_grad || !from->grad_defined) {
        return;
    }
    if (to->grad == NULL && !to->is_param) {
        to->grad = from->grad;
        to->grad_defined = 1;
        from->grad = NULL;
        from->grad_defined = 0;
        return;
    }
    int acc = 0;
    void *grad = shd_tape_grad(tape, to, &acc);
    if (grad == NULL) {
        return;
    }
    const int64_t n = shd_tensor_numel(to);
    if (acc) {
        tape->ops->add(tape->ctx, grad, grad, from->grad, n);
    } else {
        tape->flat->copy(tape->ctx, grad, from->grad, (size_t)n * tape->elt_size);
    }
    shd_arena_release(tape->arena, from->grad);
    from->grad = NULL;
    from->grad_defined = 0;
}

int shd_tape_backward(shd_tape *tape, int64_t mark, shd_error *err)
{
    while (tape->rc == 0 && tape->n_nodes > mark) {
        shd_node *node = &tape->nodes[--tape->n_nodes];
        if (node->out != NULL && !node->out->grad_defined) {
            shd_tape_fail(tape, SHD_EINTERNAL, "backward reached a tensor without a gradient");
        } else {
            node->backward(tape, node);
        }
        for (int i = 0; i < SHD_NODE_INPUTS; i++) {
            if (node->in[i] != NULL && (node->keep & (1u << i)) != 0) {
                unref(tape, node->in[i]);
            }
        }
        if (node->out != NULL) {
            shd_arena_release(tape->arena, node->out->grad);
            node->out->grad = NULL;
            node->out->grad_defined = 0;
            if (node->keep_out) {
                unref(tape, node->out);
            }
        }
        release_node(tape, node);
    }
    return shd_tape_error(tape, err);
}

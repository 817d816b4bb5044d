/* Gradients of several units reduced together; see unit.h. Floor F3; run: any thread. */
#include <stdlib.h>

#include "daemon/base/mem.h"
#include "daemon/shard/schedule.h"
#include "daemon/shard/unit_internal.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What travels, of unit u. */
static void *source(const shd_units *units, const shd_bucket *b, uint32_t u)
{
    return b->accumulated ? units->units[u].grads.data : units->units[u].local_grad;
}

static shd_dtype source_dtype(const shd_units *units, const shd_bucket *b)
{
    return b->accumulated ? units->config.reduce_dtype : units->config.dtype;
}

static shd_dtype wire_dtype(const shd_units *units, const shd_bucket *b)
{
    return shd_schedule_wire(source_dtype(units, b), units->config.reduce_dtype);
}

/* Elements that reductions of unit u land in on each rank. */
static int64_t atom_length(const shd_units *units, uint32_t u)
{
    return units->units[u].n / units->strategy.world;
}

/* Is the gradient sent as it lies, without a buffer? */
static int sent_in_place(const shd_units *units, const shd_bucket *b)
{
    return b->n == 1 && wire_dtype(units, b) == source_dtype(units, b);
}

static int take_buffers(shd_units *units, shd_bucket *b, shd_error *err)
{
    const int64_t world = units->strategy.world;
    const shd_dtype wire = wire_dtype(units, b);
    for (uint32_t k = 0; k < b->n; k++) {
        b->length += atom_length(units, b->units[k]);
    }
    b->chunk = shd_schedule_chunk(units->strategy.world, b->length);
    SHD_TRY(shd_unit_take(units, SHD_TAG_COMM, wire, b->chunk * world, &b->recv, err));
    if (!sent_in_place(units, b)) {
        SHD_TRY(shd_unit_take(units, SHD_TAG_COMM, wire, b->chunk * world, &b->send, err));
    }
    b->leaves = shd_calloc((size_t)world, sizeof *b->leaves);
    return 0;
}

int shd_units_reduce_begin(shd_units *units, const uint32_t *us, uint32_t n, shd_bucket *out,
                           shd_error *err)
{
    *out = (shd_bucket){.units = us, .n = n};
    return units->strategy.world > 1 && shd_unit_each_round(units) ? take_buffers(units, out, err)
                                                                   : 0;
}

void shd_units_reduce_end(shd_units *units, shd_bucket *b)
{
    shd_arena_release(units->arena, b->send);
    shd_arena_release(units->arena, b->recv);
    free(b->leaves);
    for (uint32_t k = 0; k < b->n; k++) {
        shd_unit *unit = &units->units[b->units[k]];
        if (unit->local_grad != unit->grads.data) {
            shd_arena_release(units->arena, unit->local_grad);
        }
        unit->local_grad = NULL;
    }
    *b = (shd_bucket){0};
}

/* ---- run ---- */

/* A piece of a unit's atom that lies in a chunk. */
typedef struct piece {
    uint32_t unit;
    int64_t at;  /* elements, in the atom */
    int64_t len; /* elements */
    int64_t to;  /* elements, in the chunk */
} piece;

/* The next piece of [at, at + len) of the bucket's atoms laid one after another; 0 when there is
 * none. *k and *before are the unit to look at and the elements of those before it. */
static int next_piece(const shd_units *units, const shd_bucket *b, int64_t at, int64_t len,
                      uint32_t *k, int64_t *before, piece *out)
{
    for (; *k < b->n; ++*k) {
        const int64_t n = atom_length(units, b->units[*k]);
        const int64_t first = at > *before ? at - *before : 0;
        const int64_t end = min64(n, at + len - *before);
        if (first < end) {
            *out = (piece){b->units[*k], first, end - first, *before + first - at};
            *before += n;
            ++*k;
            return 1;
        }
        *before += n;
    }
    return 0;
}

static void convert(shd_device *dev, void *to, shd_dtype wire, const void *from, shd_dtype dtype,
                    int64_t n)
{
    if (wire == dtype) {
        shd_device_to_device(dev, to, from, (size_t)n * shd_dtype_size(wire));
    } else {
        shd_device_ops(dev)->cast(shd_device_opctx(dev), to, wire, from, dtype, n);
    }
}

static void pack(const shd_units *units, const shd_bucket *b, shd_device *dev, const piece *p,
                 int64_t len)
{
    const shd_dtype dtype = source_dtype(units, b), wire = wire_dtype(units, b);
    const uint32_t world = units->strategy.world;
    const int64_t n = atom_length(units, p->unit);
    const shd_strategy *of_group = &units->units[b->units[0]].strategy;
    const shd_strategy *of_unit = &units->units[p->unit].strategy;
    void *grad = source(units, b, p->unit);
    if (shd_device_is_null(dev)) { /* the same work at once: worlds of plans are large */
        convert(dev, b->send, wire, grad, dtype, p->len * world);
        return;
    }
    for (uint32_t i = 0; i < world; i++) {
        const int64_t to = (int64_t)shd_strategy_atom(of_group, i) * len + p->to;
        const int64_t from = (int64_t)shd_strategy_atom(of_unit, i) * n + p->at;
        convert(dev, shd_unit_element(b->send, wire, to), wire, shd_unit_element(grad, dtype, from),
                dtype, p->len);
    }
}

static void add(shd_units *units, shd_bucket *b, shd_device *dev, const piece *p, int64_t len)
{
    const shd_strategy *s = &units->units[b->units[0]].strategy;
    const shd_dtype wire = wire_dtype(units, b);
    /* The group is ordered by atom; the tree goes over ranks, which are the leaves. */
    if (!shd_device_is_null(dev) && (b->leaves_len != len || b->leaves_at != p->to)) {
        for (uint32_t i = 0; i < s->world; i++) {
            b->leaves[i] =
                shd_unit_element(b->recv, wire, (int64_t)shd_strategy_atom(s, i) * len + p->to);
        }
        b->leaves_len = len;
        b->leaves_at = p->to;
    }
    if (b->accumulated) {
        const shd_range atom = shd_unit_atom(units, p->unit);
        const shd_dtype dtype = units->config.reduce_dtype;
        shd_device_ops(dev)->tree_sum(shd_device_opctx(dev),
                                      shd_unit_element(atom.data, dtype, p->at), dtype, b->leaves,
                                      wire, s->world, p->len, 0);
    } else {
        shd_unit_fold(units, dev, p->unit, b->leaves, wire, s->world, p->at, p->len);
    }
}

static int exchange(shd_units *units, shd_bucket *b, shd_device *dev, int64_t at, int64_t len,
                    shd_error *err)
{
    const shd_dtype wire = wire_dtype(units, b);
    const size_t size = shd_dtype_size(wire);
    const void *from = b->send;
    int64_t stride = len, before = 0;
    uint32_t k = 0;
    piece p;
    if (b->send == NULL) {
        from = shd_unit_element(source(units, b, b->units[0]), wire, at);
        stride = b->length;
    }
    while (b->send != NULL && next_piece(units, b, at, len, &k, &before, &p)) {
        pack(units, b, dev, &p, len);
    }
    /* All ranks, in the order of the atoms of the first unit. */
    SHD_TRY(shd_comm_all_to_all(units->units[b->units[0]].groups[SHD_GROUP_REDUCE],
                                SHD_COMM_REDUCE_SCATTER, dev, from, (size_t)stride * size, b->recv,
                                (size_t)len * size, err));
    before = 0;
    k = 0;
    while (next_piece(units, b, at, len, &k, &before, &p)) {
        add(units, b, dev, &p, len);
    }
    return 0;
}

/* This rank's local gradient into its own sums. */
static void add_own(shd_units *units, shd_device *dev, uint32_t u)
{
    const shd_unit *unit = &units->units[u];
    const void *leaf = unit->local_grad;
    if (leaf == unit->grads.data) {
        return;
    }
    if (shd_unit_each_round(units)) { /* a single rank, which has no one to exchange with */
        shd_unit_fold(units, dev, u, &leaf, units->config.dtype, 1, 0, unit->n);
    } else {
        shd_device_ops(dev)->tree_sum(shd_device_opctx(dev), unit->grads.data,
                                      units->config.reduce_dtype, &leaf, units->config.dtype, 1,
                                      unit->n, units->folded > 0);
    }
}

int shd_units_reduce_run(shd_units *units, shd_bucket *b, shd_device *dev, shd_error *err)
{
    for (uint32_t k = 0; k < b->n && b->recv == NULL; k++) {
        add_own(units, dev, b->units[k]);
    }
    for (int64_t at = 0; at < b->length; at += b->chunk) {
        SHD_TRY(exchange(units, b, dev, at, min64(b->chunk, b->length - at), err));
    }
    return 0;
}

int shd_unit_reduce_accumulated(shd_units *units, uint32_t u, shd_error *err)
{
    shd_bucket bucket = {.units = &u, .n = 1, .accumulated = 1};
    int rc = take_buffers(units, &bucket, err);
    if (rc == 0) {
        rc = shd_units_reduce_run(units, &bucket, units->dev, err);
    }
    shd_units_reduce_end(units, &bucket);
    return rc;
}

int shd_unit_grad_reduce(shd_units *units, uint32_t u, shd_error *err)
{
    if (units->units[u].frozen) {
        return 0;
    }
    shd_bucket bucket;
    int rc = shd_units_reduce_begin(units, &u, 1, &bucket, err);
    if (rc == 0) {
        rc = shd_units_reduce_run(units, &bucket, units->dev, err);
    }
    shd_units_reduce_end(units, &bucket);
    return rc;
}

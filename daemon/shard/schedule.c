/* Instructions from segments, units, degrees and settings; see schedule.h. Floor F3; pure. */
#include "daemon/shard/schedule.h"

#include <stdlib.h>

#include "daemon/base/mem.h"

enum { NONE = UINT32_MAX };

/* Elements that are exchanged at a time: for one rank, which keeps the inputs of sums in cache, and
 * for all, which bounds the receive buffer. Multiples of SHD_BLOCK. */
enum { REDUCE_CHUNK = 1 << 18, REDUCE_MOST = 1 << 22 };

_Static_assert(REDUCE_MOST / SHD_MAX_WORLD >= SHD_BLOCK, "a block for every rank fits");

typedef struct item {
    uint32_t segment;
    int backward;
} item;

/* What is known of a unit while the list is made. */
typedef struct unit_state {
    uint32_t parts;     /* its parameters are cut into as many; 1: the full copy is always there */
    uint32_t kept;      /* its full copy is gathered from as many at present */
    uint32_t last_need; /* the last item that needs its parameters; NONE */
    uint32_t last_grad; /* the last item that adds to its gradient; NONE: not trained */
    uint32_t gather;    /* the instruction that gathers what is there or on its way; NONE */
    int waited;         /* it is there */
    int has_grad;
    uint32_t seen; /* the walk that met it last */
} unit_state;

typedef struct builder {
    const shd_program_config *in;
    shd_program *out;
    uint32_t capacity;
    uint32_t n_items;
    unit_state *units; /* [n_units] */
    uint32_t gathered; /* units that are full or on their way */
    uint32_t walks;
    uint64_t bucket_bytes;   /* of gradients in the open bucket */
    int64_t bucket_elements; /* of them, reduced into each rank */
    uint32_t reducing;       /* the reduction that is not waited for yet; NONE */
} builder;

const char *shd_lane_name(shd_lane lane)
{
    static const char *const names[SHD_LANE_COUNT] = {"compute", "gather", "reduce"};
    return names[lane];
}

shd_strategy shd_schedule_strategy(const shd_strategy *strategy, const shd_unit_layout *unit)
{
    shd_strategy s = *strategy;
    if (unit->whole) {
        s.p = 1;
        s.regather = 1;
    }
    return s;
}

int64_t shd_schedule_chunk(uint32_t world, int64_t length)
{
    const int64_t most = REDUCE_MOST / world / SHD_BLOCK * SHD_BLOCK;
    const int64_t chunk = most < REDUCE_CHUNK ? most : REDUCE_CHUNK;
    return length < chunk ? length : chunk;
}

shd_dtype shd_schedule_wire(shd_dtype dtype, shd_dtype reduce_dtype)
{
    return reduce_dtype == SHD_F32 ? dtype : reduce_dtype;
}

/* ---- what items need ---- */

static item item_at(const builder *b, uint32_t i)
{
    const uint32_t n = b->in->n_segments;
    return i < n ? (item){i, 0} : (item){2 * n - 1 - i, 1};
}

static const shd_segment *segment_at(const builder *b, uint32_t i)
{
    return &b->in->segments[item_at(b, i).segment];
}

static int uses(const shd_segment *segment, uint32_t unit)
{
    for (uint32_t k = 0; k < segment->n_units; k++) {
        if (segment->units[k] == unit) {
            return 1;
        }
    }
    return 0;
}

/* Does item i read parameters? */
static int reads(const builder *b, uint32_t i)
{
    const shd_segment *segment = segment_at(b, i);
    return !item_at(b, i).backward || segment->backward_needs_params || segment->recompute;
}

/* Does item i need a full copy of the unit that has to be gathered? */
static int needs(const builder *b, uint32_t i, uint32_t unit)
{
    return b->units[unit].parts > 1 && reads(b, i) && uses(segment_at(b, i), unit);
}

static void find_uses(builder *b)
{
    for (uint32_t u = 0; u < b->in->layout->n_units; u++) {
        const shd_strategy s = shd_schedule_strategy(&b->in->strategy, &b->in->layout->units[u]);
        b->units[u] = (unit_state){
            .parts = s.p,
            .kept = s.p,
            .last_need = NONE,
            .last_grad = NONE,
            .gather = NONE,
        };
    }
    for (uint32_t i = 0; i < b->n_items; i++) {
        const shd_segment *segment = segment_at(b, i);
        for (uint32_t k = 0; k < segment->n_units; k++) {
            const uint32_t u = segment->units[k];
            if (needs(b, i, u)) {
                b->units[u].last_need = i;
            }
            if (item_at(b, i).backward && !b->in->layout->units[u].frozen) {
                b->units[u].last_grad = i;
            }
        }
    }
}

static int check_limit(const builder *b, shd_error *err)
{
    const uint32_t limit = b->in->settings.max_gathered;
    for (uint32_t i = 0; limit > 0 && i < b->n_items; i++) {
        const shd_segment *segment = segment_at(b, i);
        uint32_t n = 0;
        for (uint32_t k = 0; k < segment->n_units; k++) {
            n += (uint32_t)needs(b, i, segment->units[k]);
        }
        if (n > limit) {
            return shd_fail(err, SHD_EINVAL,
                            "--max-gathered %u: part %u of the model needs %u units gathered at "
                            "once; allow at least that",
                            limit, item_at(b, i).segment, n);
        }
    }
    return 0;
}

/* ---- instructions ---- */

static uint32_t emit(builder *b, shd_instr instr)
{
    if (b->out->n == b->capacity) {
        b->capacity = b->capacity > 0 ? 2 * b->capacity : 64;
        b->out->instrs = shd_reallocarray(b->out->instrs, b->capacity, sizeof *b->out->instrs);
    }
    b->out->instrs[b->out->n] = instr;
    return b->out->n++;
}

static void emit_on_unit(builder *b, shd_instr_kind kind, uint32_t unit, uint32_t parts)
{
    emit(b, (shd_instr){.kind = kind, .index = unit, .parts = parts});
}

static void emit_compute(builder *b, shd_instr_kind kind, uint32_t segment)
{
    emit(b, (shd_instr){.kind = kind, .index = segment});
}

static void emit_wait(builder *b, shd_instr_kind kind, uint32_t waits_for)
{
    emit(b, (shd_instr){
                .kind = kind, .index = b->out->instrs[waits_for].index, .waits_for = waits_for});
}

/* ---- gathers ---- */

static void gather(builder *b, uint32_t unit)
{
    unit_state *u = &b->units[unit];
    if (u->gather != NONE) {
        return;
    }
    const uint64_t part = (uint64_t)b->in->layout->units[unit].padded / u->kept;
    u->gather = emit(b, (shd_instr){.kind = SHD_INSTR_GATHER,
                                    .lane = SHD_LANE_GATHER,
                                    .index = unit,
                                    .parts = u->kept,
                                    .calls = 1,
                                    .bytes = part * shd_dtype_size(b->in->dtype) * (u->kept - 1)});
    u->waited = 0;
    b->gathered++;
}

/* Calls `each` for the units that items from `first` on need, in the order of their need and each
 * once, but for those that item `except` needs (NONE: no exception). Ends when it returns 0. */
static void walk(builder *b, uint32_t first, uint32_t except,
                 int (*each)(builder *b, uint32_t item, uint32_t unit, void *arg), void *arg)
{
    const uint32_t mark = ++b->walks;
    for (uint32_t i = first; i < b->n_items; i++) {
        const shd_segment *segment = segment_at(b, i);
        for (uint32_t k = 0; k < segment->n_units; k++) {
            const uint32_t u = segment->units[k];
            if (!needs(b, i, u) || b->units[u].seen == mark ||
                (except != NONE && needs(b, except, u))) {
                continue;
            }
            b->units[u].seen = mark;
            if (!each(b, i, u, arg)) {
                return;
            }
        }
    }
}

static int gather_ahead(builder *b, uint32_t at, uint32_t unit, void *arg)
{
    (void)at;
    uint32_t *ahead = arg;
    const uint32_t limit = b->in->settings.max_gathered;
    if (*ahead == 0) {
        return 0;
    }
    if (b->units[unit].gather == NONE) {
        if (limit > 0 && b->gathered >= limit) {
            return 0;
        }
        gather(b, unit);
    }
    --*ahead;
    return 1;
}

static void gather_for(builder *b, uint32_t i)
{
    const shd_segment *segment = segment_at(b, i);
    for (uint32_t k = 0; k < segment->n_units; k++) {
        if (needs(b, i, segment->units[k])) {
            gather(b, segment->units[k]);
        }
    }
    uint32_t ahead = b->in->settings.prefetch;
    walk(b, i + 1, i, gather_ahead, &ahead);
    for (uint32_t k = 0; k < segment->n_units; k++) {
        unit_state *u = &b->units[segment->units[k]];
        if (needs(b, i, segment->units[k]) && !u->waited) {
            emit_wait(b, SHD_INSTR_WAIT_GATHER, u->gather);
            u->waited = 1;
        }
    }
}

/* ---- what stays gathered ---- */

typedef struct window {
    uint32_t next;  /* item */
    uint32_t ahead; /* units beyond those that it needs */
    uint32_t room;  /* units in all */
    uint32_t unit;  /* looked for */
    int found;
} window;

static int look(builder *b, uint32_t at, uint32_t unit, void *arg)
{
    (void)b;
    window *w = arg;
    if (w->room-- == 0 || (at != w->next && w->ahead-- == 0)) {
        return 0;
    }
    w->found = unit == w->unit;
    return !w->found;
}

/* Would the next item have it gathered anyway? */
static int wanted_soon(builder *b, uint32_t i, uint32_t unit)
{
    const uint32_t limit = b->in->settings.max_gathered;
    window w = {.next = i + 1,
                .ahead = b->in->settings.prefetch,
                .room = limit > 0 ? limit : NONE,
                .unit = unit};
    walk(b, i + 1, NONE, look, &w);
    return w.found;
}

static void reshard_after(builder *b, uint32_t i)
{
    const shd_segment *segment = segment_at(b, i);
    for (uint32_t k = 0; k < segment->n_units; k++) {
        const uint32_t unit = segment->units[k];
        unit_state *u = &b->units[unit];
        if (!needs(b, i, unit)) {
            continue;
        }
        const int again = u->last_need > i;
        if (again && (b->in->strategy.regather == 1 || wanted_soon(b, i, unit))) {
            continue;
        }
        u->kept = again ? b->in->strategy.regather : u->parts;
        emit_on_unit(b, SHD_INSTR_RESHARD, unit, u->kept);
        u->gather = NONE;
        b->gathered--;
    }
}

/* ---- gradients ---- */

static void wait_reduce(builder *b)
{
    if (b->reducing != NONE) {
        emit_wait(b, SHD_INSTR_WAIT_REDUCE, b->reducing);
        b->reducing = NONE;
    }
}

static uint64_t wire_bytes(const builder *b, uint32_t unit)
{
    return (uint64_t)b->in->layout->units[unit].padded *
           shd_dtype_size(shd_schedule_wire(b->in->dtype, b->in->reduce_dtype));
}

/* Ranks that a reduction is over. */
static uint32_t reduce_parts(const builder *b)
{
    return shd_reduction_each_round(&b->in->reduction, &b->in->strategy) ? b->in->strategy.world
                                                                         : 1;
}

static uint32_t exchanges(const builder *b)
{
    const uint32_t parts = reduce_parts(b);
    const int64_t chunk = shd_schedule_chunk(parts, b->bucket_elements);
    return parts > 1 ? (uint32_t)((b->bucket_elements + chunk - 1) / chunk) : 0;
}

/* Reduces the units collected so far. */
static void close_bucket(builder *b)
{
    shd_program *out = b->out;
    const uint32_t parts = reduce_parts(b);
    const uint32_t first = out->bucket_first[out->n_buckets];
    const uint32_t n = out->bucket_first[out->n_buckets + 1] - first;
    if (n == 0) {
        return;
    }
    wait_reduce(b);
    const uint32_t at = emit(b, (shd_instr){.kind = SHD_INSTR_REDUCE,
                                            .lane = parts > 1 ? SHD_LANE_REDUCE : SHD_LANE_COMPUTE,
                                            .index = out->n_buckets,
                                            .parts = parts,
                                            .calls = exchanges(b),
                                            .bytes = b->bucket_bytes / parts * (parts - 1)});
    out->n_buckets++;
    out->bucket_first[out->n_buckets + 1] = first + n;
    b->bucket_bytes = 0;
    b->bucket_elements = 0;
    if (parts > 1) {
        b->reducing = at;
        if (!b->in->settings.overlap) {
            wait_reduce(b);
        }
    }
}

static void reduce_after(builder *b, uint32_t i)
{
    const shd_segment *segment = segment_at(b, i);
    shd_program *out = b->out;
    for (uint32_t k = 0; k < segment->n_units; k++) {
        const uint32_t u = segment->units[k];
        if (b->units[u].last_grad != i) {
            continue;
        }
        out->bucket_units[out->bucket_first[out->n_buckets + 1]++] = u;
        b->bucket_bytes += wire_bytes(b, u);
        b->bucket_elements += b->in->layout->units[u].padded / b->in->strategy.world;
        if (b->bucket_bytes >= b->in->settings.bucket_bytes || reduce_parts(b) == 1) {
            close_bucket(b);
        }
    }
}

/* ---- items ---- */

static void backward(builder *b, uint32_t segment)
{
    const shd_segment *seg = &b->in->segments[segment];
    if (seg->recompute) {
        emit_compute(b, SHD_INSTR_RECOMPUTE, segment);
    }
    for (uint32_t k = 0; k < seg->n_units; k++) {
        unit_state *u = &b->units[seg->units[k]];
        if (u->last_grad != NONE && !u->has_grad) {
            emit_on_unit(b, SHD_INSTR_GRAD_BEGIN, seg->units[k], 0);
            u->has_grad = 1;
        }
    }
    emit_compute(b, SHD_INSTR_BACKWARD, segment);
}

static void build(builder *b)
{
    for (uint32_t i = 0; i < b->n_items; i++) {
        const item it = item_at(b, i);
        gather_for(b, i);
        if (it.backward) {
            backward(b, it.segment);
        } else {
            emit_compute(b, SHD_INSTR_FORWARD, it.segment);
        }
        reshard_after(b, i);
        if (it.backward) {
            reduce_after(b, i);
        }
    }
    close_bucket(b);
    wait_reduce(b);
}

int shd_program_make(const shd_program_config *config, shd_program *out, shd_error *err)
{
    const uint32_t n_units = config->layout->n_units, n = config->n_segments;
    builder b = {.in = config,
                 .out = out,
                 .n_items = config->train ? 2 * n - config->first_backward : n,
                 .units = shd_calloc(n_units, sizeof *b.units),
                 .reducing = NONE};
    *out = (shd_program){
        .bucket_units = shd_calloc(n_units, sizeof *out->bucket_units),
        .bucket_first = shd_calloc(n_units + 2, sizeof *out->bucket_first),
    };
    find_uses(&b);
    const int rc = check_limit(&b, err);
    if (rc == 0) {
        build(&b);
    } else {
        shd_program_fini(out);
    }
    free(b.units);
    return rc;
}

void shd_program_fini(shd_program *program)
{
    free(program->instrs);
    free(program->bucket_units);
    free(program->bucket_first);
    *program = (shd_program){0};
}

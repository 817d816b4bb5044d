/* What follows from model and specification for all workers of a job: units, segments, what is
 * trained. Floor F4; pure. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/train/worker_internal.h"

/* Where parameters of a unit of the model go: to a unit of the layout, or NONE. */
typedef struct split {
    uint32_t trained, frozen;
} split;

enum { NONE = UINT32_MAX };

/* One split for each unit of the model, and one for all small parameters, which are kept whole. */
typedef struct cut {
    split *units; /* [shd_model_n_units] */
    split whole;
    uint8_t *small; /* [shd_model_n_units]: has trained, frozen (bits 0, 1) small parameters */
} cut;

static int is_frozen(const shd_worker_shared *shared, uint32_t param)
{
    return shd_spec_freezes(shared->spec, shd_model_param(shared->model, param)->name);
}

/* Where nothing is sharded there is nothing to keep whole. */
static int is_small(const shd_worker_shared *shared, uint32_t param)
{
    return shared->spec->strategy.p > 1 &&
           (uint64_t)shd_param_numel(shd_model_param(shared->model, param)) <
               shared->spec->pipeline.persist_below;
}

static void number(split *s, uint32_t *next)
{
    s->trained = s->trained == NONE ? NONE : (*next)++;
    s->frozen = s->frozen == NONE ? NONE : (*next)++;
}

/* Numbers the units; the number of them is returned. */
static uint32_t cut_units(const shd_worker_shared *shared, cut *out)
{
    const uint32_t n_units = shd_model_n_units(shared->model);
    uint32_t next = 0;
    out->units = shd_calloc(n_units, sizeof *out->units);
    out->small = shd_calloc(n_units, 1);
    out->whole = (split){NONE, NONE};
    for (uint32_t u = 0; u < n_units; u++) {
        out->units[u] = (split){NONE, NONE};
    }
    for (uint32_t i = 0; i < shd_model_n_params(shared->model); i++) {
        const uint32_t u = shd_model_param(shared->model, i)->unit;
        const int frozen = is_frozen(shared, i), small = is_small(shared, i);
        split *s = small ? &out->whole : &out->units[u];
        *(frozen ? &s->frozen : &s->trained) = 0;
        out->small[u] |= (uint8_t)(small ? 1 << frozen : 0);
    }
    for (uint32_t u = 0; u < n_units; u++) {
        number(&out->units[u], &next);
    }
    number(&out->whole, &next);
    return next;
}

static void cut_fini(cut *c)
{
    free(c->units);
    free(c->small);
}

static void make_layout(shd_worker_shared *shared, const cut *c, uint32_t n_units)
{
    const uint32_t n = shd_model_n_params(shared->model);
    int64_t *numel = shd_calloc(n, sizeof *numel);
    uint32_t *unit = shd_calloc(n, sizeof *unit);
    for (uint32_t i = 0; i < n; i++) {
        const shd_param_info *info = shd_model_param(shared->model, i);
        const split *s = is_small(shared, i) ? &c->whole : &c->units[info->unit];
        const int frozen = is_frozen(shared, i);
        numel[i] = shd_param_numel(info);
        unit[i] = frozen ? s->frozen : s->trained;
        shared->trainable += frozen ? 0 : numel[i];
    }
    shd_layout_init(&shared->layout, n, numel, unit, n_units, shared->spec->strategy.world);
    for (uint32_t i = 0; i < n; i++) {
        shared->layout.units[unit[i]].frozen = is_frozen(shared, i);
        shared->layout.units[unit[i]].whole = is_small(shared, i);
    }
    free(numel);
    free(unit);
}

/* Between the first segment (the embedding) and the last (the head) each one is a block. */
static int is_recomputed(const shd_worker_shared *shared, uint32_t segment, uint32_t n_segments)
{
    const int block = segment > 0 && segment + 1 < n_segments;
    switch (shared->spec->checkpointing) {
    case SHD_CHECKPOINT_FULL:
        return block;
    case SHD_CHECKPOINT_SELECTIVE:
        return block && segment % 2 == 1;
    default:
        return 0;
    }
}

static void use(shd_segment *segment, uint32_t unit)
{
    for (uint32_t k = 0; k < segment->n_units; k++) {
        if (segment->units[k] == unit) {
            return;
        }
    }
    if (unit != NONE) {
        segment->units[segment->n_units++] = unit;
    }
}

static void make_segments(shd_worker_shared *shared, const cut *c)
{
    const uint32_t n = shd_model_n_segments(shared->model);
    shared->segments = shd_calloc(n, sizeof *shared->segments);
    for (uint32_t s = 0; s < n; s++) {
        shd_segment *segment = &shared->segments[s];
        uint32_t units[2];
        const uint32_t n_units =
            shd_model_segment_units(shared->model, s, units, &segment->backward_needs_params);
        for (uint32_t k = 0; k < n_units; k++) {
            use(segment, c->units[units[k]].trained);
            use(segment, c->units[units[k]].frozen);
            use(segment, c->small[units[k]] & 1 ? c->whole.trained : NONE);
            use(segment, c->small[units[k]] & 2 ? c->whole.frozen : NONE);
        }
        segment->recompute = is_recomputed(shared, s, n);
    }
}

void shd_worker_make_params(const shd_worker_shared *shared, shd_tensor *params, shd_tensor **ptrs)
{
    for (uint32_t i = 0; i < shd_model_n_params(shared->model); i++) {
        const shd_param_info *info = shd_model_param(shared->model, i);
        params[i] = (shd_tensor){.ndim = info->ndim,
                                 .dtype = shared->spec->dtype,
                                 .is_param = 1,
                                 .requires_grad = !is_frozen(shared, i),
                                 .refs = 1};
        memcpy(params[i].shape, info->shape, sizeof info->shape);
        ptrs[i] = &params[i];
    }
}

/* The first segment whose output depends on a trained parameter, as the tape sees it: forward of
 * one token on the null device. */
static uint32_t find_first_backward(const shd_worker_shared *shared)
{
    const uint32_t n = shd_model_n_segments(shared->model);
    const uint32_t n_params = shd_model_n_params(shared->model);
    shd_device *dev = shd_device_create_null(1);
    shd_arena *arena = shd_arena_create_virtual();
    shd_tape *tape = shd_tape_create(dev, arena, shared->spec->dtype);
    shd_tensor *params = shd_calloc(n_params, sizeof *params);
    shd_tensor **ptrs = shd_calloc(n_params, sizeof *ptrs);
    shd_worker_make_params(shared, params, ptrs);
    const shd_model_input input = {.targets = (const int32_t *)params, /* any address: not read */
                                   .sequences = 1,
                                   .tokens = 1};
    shd_tensor *x = NULL;
    uint32_t first = 0;
    for (; first + 1 < n; first++) {
        shd_model_forward(shared->model, first, tape, ptrs, &input, &x);
        if (x == NULL || x->requires_grad) {
            break;
        }
    }
    shd_tape_free(tape);
    shd_arena_free(arena);
    shd_device_free(dev);
    free(params);
    free(ptrs);
    return first;
}

static int make_program(const shd_worker_shared *shared, int train, shd_program *out,
                        shd_error *err)
{
    const shd_spec *spec = shared->spec;
    const shd_program_config config = {
        .segments = shared->segments,
        .n_segments = shd_model_n_segments(shared->model),
        .first_backward = shared->first_backward,
        .layout = &shared->layout,
        .strategy = spec->strategy,
        .settings = spec->pipeline,
        .dtype = spec->dtype,
        .reduce_dtype = spec->reduce_dtype,
        .train = train,
        .reduction = {spec->determinism, spec->reduction_width},
    };
    return shd_program_make(&config, out, err);
}

int shd_worker_layout(shd_worker_shared *shared, shd_error *err)
{
    cut c;
    const uint32_t n_units = cut_units(shared, &c);
    make_layout(shared, &c, n_units);
    make_segments(shared, &c);
    cut_fini(&c);
    shared->first_backward = shared->spec->n_freeze > 0 ? find_first_backward(shared) : 0;
    SHD_TRY(make_program(shared, 1, &shared->train_program, err));
    return make_program(shared, 0, &shared->forward_program, err);
}

void shd_worker_layout_fini(shd_worker_shared *shared)
{
    shd_program_fini(&shared->train_program);
    shd_program_fini(&shared->forward_program);
    shd_layout_fini(&shared->layout);
    free(shared->segments);
    shared->segments = NULL;
}

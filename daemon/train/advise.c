/* Presets tried one after another; see advise.h. Floor F4; any thread. */
#include "daemon/train/advise.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/model/model.h"

enum { GROUP_SIZES = 3 }; /* that are tried of a preset with groups */

/* Elements of parameters, by what is kept of each. */
typedef struct elements {
    double trained, frozen;
} elements;

typedef struct search {
    const shd_spec *spec;
    const shd_machine *machine;
    int threads_per_rank;
    uint64_t memory;
    elements elements;
    shd_advice *tried;
    uint32_t n, capacity;
    shd_strategy *seen;
    uint32_t n_seen;
} search;

static int count_elements(const shd_spec *spec, elements *out, shd_error *err)
{
    shd_model *model = NULL;
    SHD_TRY(shd_model_create(&spec->model, &model, err));
    *out = (elements){0};
    for (uint32_t i = 0; i < shd_model_n_params(model); i++) {
        const shd_param_info *info = shd_model_param(model, i);
        double *to = shd_spec_freezes(spec, info->name) ? &out->frozen : &out->trained;
        *to += (double)shd_param_numel(info);
    }
    shd_model_free(model);
    return 0;
}

/* Bytes of a rank before it computes anything, padding left out. */
static double states(const search *s, const shd_strategy *d)
{
    const double wide = (double)shd_dtype_size(s->spec->dtype);
    const double master = s->spec->dtype == SHD_F32 ? 0 : sizeof(float);
    const double optimizer = master + sizeof(float) * shd_optim_states(&s->spec->optim);
    return (s->elements.trained + s->elements.frozen) * wide / d->p +
           s->elements.trained * (double)shd_dtype_size(s->spec->reduce_dtype) / d->g +
           s->elements.trained * optimizer / d->o;
}

static void note(search *s, const shd_advice *advice)
{
    if (s->n == s->capacity) {
        s->capacity = s->capacity > 0 ? 2 * s->capacity : 64;
        s->tried = shd_reallocarray(s->tried, s->capacity, sizeof *s->tried);
    }
    s->tried[s->n++] = *advice;
}

/* Plans the spec with these; *fits tells whether it goes into the memory. What the spec's own
 * settings forbid is no advice. */
static int try_one(search *s, const shd_strategy *strategy, shd_checkpointing checkpointing,
                   int *fits, shd_error *err)
{
    shd_spec spec = *s->spec; /* borrows its strings */
    spec.strategy = *strategy;
    spec.checkpointing = checkpointing;
    shd_plan plan;
    shd_estimate estimate;
    const int rc =
        shd_plan_for(&spec, s->threads_per_rank, s->machine, &plan, &estimate, NULL, err);
    if (rc < 0) {
        return rc == SHD_EINVAL ? 0 : rc;
    }
    shd_advice advice = {.strategy = *strategy,
                         .checkpointing = checkpointing,
                         .bytes = shd_plan_bytes(&plan),
                         .step_s = estimate.step_s};
    for (int k = 0; k < SHD_COMM_KIND_COUNT; k++) {
        advice.comm_bytes += plan.comm_step[k].bytes;
        advice.between += plan.comm_between[k];
    }
    *fits = advice.fits = advice.bytes <= s->memory;
    note(s, &advice);
    return 0;
}

/* Adds the strategy to those that were looked at; 0 when it had been or cannot fit. */
static int is_worth_a_try(search *s, const shd_strategy *strategy)
{
    for (uint32_t i = 0; i < s->n_seen; i++) {
        if (memcmp(&s->seen[i], strategy, sizeof *strategy) == 0) {
            return 0;
        }
    }
    s->seen = shd_reallocarray(s->seen, s->n_seen + 1, sizeof *s->seen);
    s->seen[s->n_seen++] = *strategy;
    if (s->spec->pipeline.max_gathered > 0 && strategy->p > 1 && strategy->regather == 1) {
        return 0; /* what stays gathered cannot be limited: a specification of it is refused */
    }
    return states(s, strategy) <= (double)s->memory;
}

/* With no checkpointing if that fits, else with the least that does. What does not fit with all of
 * it fits with none of the others. */
static int try_strategy(search *s, const shd_strategy *strategy, shd_error *err)
{
    int fits = 0;
    if (s->memory == SHD_ADVISE_ANY) {
        return try_one(s, strategy, s->spec->checkpointing, &fits, err);
    }
    SHD_TRY(try_one(s, strategy, SHD_CHECKPOINT_NONE, &fits, err));
    if (fits) {
        return 0;
    }
    const uint32_t before = s->n;
    SHD_TRY(try_one(s, strategy, SHD_CHECKPOINT_FULL, &fits, err));
    if (!fits) {
        return 0;
    }
    fits = 0;
    SHD_TRY(try_one(s, strategy, SHD_CHECKPOINT_SELECTIVE, &fits, err));
    if (fits) { /* in its place */
        s->tried[before] = s->tried[s->n - 1];
        s->n--;
    }
    return 0;
}

static int try_whole(search *s, shd_error *err)
{
    static const char *const names[] = {"ddp", "zero1", "zero2", "zero3", "shard_grad_op"};
    shd_strategy strategy;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        SHD_TRY(shd_strategy_make(names[i], NULL, 0, s->spec->strategy.world, &strategy, err));
        if (is_worth_a_try(s, &strategy)) {
            SHD_TRY(try_strategy(s, &strategy, err));
        }
    }
    return 0;
}

/* The smallest groups whose states fit: larger ones need less and communicate further. */
static int try_grouped(search *s, const char *name, shd_error *err)
{
    const uint32_t world = s->spec->strategy.world, node = s->machine->ranks_per_node;
    uint32_t tries = 0;
    shd_strategy strategy;
    for (uint32_t k = node > 1 ? node : 2; k < world && tries < GROUP_SIZES; k *= 2) {
        if (world % k != 0) {
            continue;
        }
        const shd_strategy_request request = {.world = world, .name = name, .group = k};
        SHD_TRY(shd_strategy_resolve(&request, &strategy, err));
        if (is_worth_a_try(s, &strategy)) {
            SHD_TRY(try_strategy(s, &strategy, err));
            tries++;
        }
    }
    return 0;
}

static int try_all(search *s, shd_error *err)
{
    static const char *const grouped[] = {"hybrid_shard", "hybrid_shard_zero2", "hpz", "megatron"};
    if (is_worth_a_try(s, &s->spec->strategy)) {
        SHD_TRY(try_strategy(s, &s->spec->strategy, err));
    }
    SHD_TRY(try_whole(s, err));
    for (size_t i = 0; i < sizeof grouped / sizeof grouped[0]; i++) {
        SHD_TRY(try_grouped(s, grouped[i], err));
    }
    return 0;
}

static int compare(double a, double b)
{
    return a < b ? -1 : a > b;
}

static int cheaper(const void *left, const void *right)
{
    const shd_advice *a = left, *b = right;
    if (a->fits != b->fits) {
        return b->fits - a->fits;
    }
    int order = a->fits ? compare(a->step_s, b->step_s) : 0;
    order = order == 0 && a->fits ? compare((double)a->between, (double)b->between) : order;
    order = order == 0 && a->fits ? compare((double)a->comm_bytes, (double)b->comm_bytes) : order;
    return order != 0 ? order : compare((double)a->bytes, (double)b->bytes);
}

int shd_advise(const shd_spec *spec, int threads_per_rank, const shd_machine *machine,
               uint64_t memory, uint32_t most, shd_advice **out, uint32_t *n, shd_error *err)
{
    search s = {
        .spec = spec, .machine = machine, .threads_per_rank = threads_per_rank, .memory = memory};
    int rc = count_elements(spec, &s.elements, err);
    if (rc == 0) {
        rc = try_all(&s, err);
    }
    if (rc == 0 && s.n == 0) { /* what has the smallest states */
        int fits = 0;
        shd_strategy zero3;
        rc = shd_strategy_make("zero3", NULL, 0, spec->strategy.world, &zero3, err);
        if (rc == 0) {
            rc = try_one(&s, &zero3, SHD_CHECKPOINT_FULL, &fits, err);
        }
    }
    free(s.seen);
    if (rc < 0) {
        free(s.tried);
        return rc;
    }
    if (s.n > 0) {
        qsort(s.tried, s.n, sizeof *s.tried, cheaper);
    }
    uint32_t fit = 0;
    while (fit < s.n && s.tried[fit].fits) {
        fit++;
    }
    fit = fit == 0 && s.n > 0 ? 1 : fit;
    *n = fit < most ? fit : most;
    *out = s.tried;
    return 0;
}

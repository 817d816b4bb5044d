/* Parameters of a rank: their first values, and access from outside. Floor F4; the rank's thread.
 *
 * Outside and in files a parameter is fp32; where the compute dtype is another, values pass through
 * a piece of fp32 scratch. */
#include "daemon/base/mem.h"
#include "daemon/train/worker_internal.h"
#include "kernels/philox.h"

enum {
    ACCESS_PIECE = 1 << 10, /* elements; less scratch than any step takes */
    ROUND = 1 << 22         /* elements of a parameter between two turns of its first values */
};

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void *element(const void *data, shd_dtype dtype, int64_t i)
{
    return (char *)data + i * (int64_t)shd_dtype_size(dtype);
}

/* The part of parameter `index` inside a range of its unit. */
static shd_param_part part_in(const shd_worker *w, uint32_t index, const shd_range *range,
                              shd_dtype dtype)
{
    shd_param_part part = {.dtype = dtype};
    int64_t at = 0;
    if (range->data != NULL) {
        part.n = shd_slot_intersect(&w->shared->layout.slots[index], range->begin, range->end,
                                    &part.first, &at);
    }
    part.data = part.n > 0 ? element(range->data, dtype, at) : NULL;
    return part;
}

static const shd_unit *unit_of(const shd_worker *w, uint32_t index)
{
    return &w->units.units[w->shared->layout.slots[index].unit];
}

shd_param_part shd_worker_param_part(const shd_worker *w, uint32_t index)
{
    const shd_unit *unit = unit_of(w, index);
    return unit->frozen ? part_in(w, index, &unit->params, w->units.config.dtype)
                        : part_in(w, index, &unit->master, SHD_F32);
}

uint32_t shd_worker_n_kept(const shd_worker *w, uint32_t index)
{
    return unit_of(w, index)->frozen ? 1 : 1 + w->units.config.n_states;
}

size_t shd_worker_kept_size(const shd_worker *w, uint32_t index)
{
    return shd_dtype_size(unit_of(w, index)->frozen ? w->units.config.dtype : SHD_F32);
}

void *shd_worker_kept(const shd_worker *w, uint32_t index, uint32_t which, int64_t at)
{
    const shd_unit *unit = unit_of(w, index);
    const shd_range *range = unit->frozen ? &unit->params : &unit->master;
    void *data = which == 0 ? range->data : unit->state[which - 1];
    return element(data, unit->frozen ? w->units.config.dtype : SHD_F32,
                   w->shared->layout.slots[index].offset + at - range->begin);
}

/* ---- first values ---- */

static int fill_fp32(shd_worker *w, uint32_t index, int64_t first, int64_t n, float *dst,
                     shd_error *err)
{
    const shd_ops *ops = shd_device_ops(w->dev);
    const shd_opctx *ctx = shd_device_opctx(w->dev);
    const shd_param_info *info = shd_model_param(w->shared->model, index);
    const shd_param_source *from = &w->shared->from;
    SHD_TRY(shd_comm_check(w->comm, err));
    if (from->load != NULL) {
        const int rc = from->load(from->arg, w->dev, index, first, n, dst, err);
        return rc == SHD_EINVAL ? SHD_EDATA : rc; /* EINVAL would leave the job as it was */
    }
    if (info->init_std > 0) {
        ops->fill_normal(ctx, dst, n, shd_worker_spec(w)->seed, SHD_STREAM(SHD_STREAM_INIT, index),
                         first, info->init_mean, info->init_std);
        const int64_t cols = info->shape[1], row = info->zero_row * cols;
        const int64_t begin = row > first ? row : first;
        const int64_t end = row + cols < first + n ? row + cols : first + n;
        if (info->zero_row >= 0 && begin < end) {
            ops->fill_constant(ctx, dst + (begin - first), end - begin, 0.0f);
        }
    } else {
        ops->fill_constant(ctx, dst, n, info->init_mean);
    }
    return 0;
}

/* What this rank has of elements [begin, end). `scratch` holds a piece of fp32; unused when the
 * part is fp32. */
static int fill_part(shd_worker *w, uint32_t index, int64_t begin, int64_t end, float *scratch,
                     shd_error *err)
{
    const shd_param_part part = shd_worker_param_part(w, index);
    const int64_t stop = min64(end - part.first, part.n);
    for (int64_t at = begin > part.first ? begin - part.first : 0, n; at < stop; at += n) {
        n = min64(SHD_LOAD_PIECE, stop - at);
        void *to = element(part.data, part.dtype, at);
        const int direct = part.dtype == SHD_F32;
        SHD_TRY(fill_fp32(w, index, part.first + at, n, direct ? to : scratch, err));
        if (!direct) {
            shd_device_ops(w->dev)->cast(shd_device_opctx(w->dev), to, part.dtype, scratch, SHD_F32,
                                         n);
        }
    }
    return 0;
}

static void zero_range(shd_worker *w, const shd_range *range, shd_dtype dtype)
{
    if (range->data != NULL) {
        shd_device_ops(w->dev)->zero(shd_device_opctx(w->dev), range->data,
                                     (size_t)(range->end - range->begin) * shd_dtype_size(dtype));
    }
}

/* Largest part of a frozen parameter that needs scratch, up to a piece. */
static int64_t scratch_size(const shd_worker *w)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < w->shared->layout.n_params; i++) {
        const int64_t n = w->shared->layout.slots[i].numel;
        if (unit_of(w, i)->frozen && w->units.config.dtype != SHD_F32 && n > most) {
            most = n;
        }
    }
    return min64(most, SHD_LOAD_PIECE);
}

void shd_worker_clear_params(shd_worker *w)
{
    for (uint32_t u = 0; u < w->shared->layout.n_units; u++) {
        zero_range(w, &w->units.units[u].params, w->units.config.dtype);
        zero_range(w, &w->units.units[u].master, SHD_F32);
    }
}

int shd_worker_finish_params(shd_worker *w, shd_error *err)
{
    for (uint32_t u = 0; u < w->shared->layout.n_units; u++) {
        SHD_TRY(shd_unit_update_finish(&w->units, u, err));
    }
    return 0;
}

static void begin_fill(shd_worker *w)
{
    shd_worker_clear_params(w);
    for (uint32_t i = 0; i < w->shared->layout.n_params; i++) {
        w->rounds += (uint64_t)((w->shared->layout.slots[i].numel + ROUND - 1) / ROUND);
    }
    w->round = 0;
    w->init_param = 0;
    w->init_at = 0;
}

static int fill_round(shd_worker *w, float *scratch, shd_error *err)
{
    const int64_t numel = w->shared->layout.slots[w->init_param].numel;
    const int64_t end = min64(numel, w->init_at + ROUND);
    SHD_TRY(fill_part(w, w->init_param, w->init_at, end, scratch, err));
    w->init_at = end == numel ? 0 : end;
    w->init_param += end == numel;
    w->round++;
    return 0;
}

static int fill_rounds(shd_worker *w, uint64_t turn, float *scratch, shd_error *err)
{
    for (; turn > 0 && w->round < w->rounds; turn--) {
        SHD_TRY(fill_round(w, scratch, err));
    }
    return 0;
}

int shd_worker_init_params(shd_worker *w, uint64_t turn, int *more, shd_error *err)
{
    shd_arena *arena = atomic_load(&w->arena);
    const int64_t size = scratch_size(w);
    void *scratch = NULL;
    if (w->rounds == 0) {
        begin_fill(w);
    }
    if (size > 0) {
        SHD_TRY(shd_arena_alloc(arena, SHD_TAG_WORKSPACE, (uint64_t)size * sizeof(float), &scratch,
                                err));
    }
    const int rc = fill_rounds(w, turn, scratch, err);
    shd_arena_release(arena, scratch);
    SHD_TRY(rc);
    *more = w->round < w->rounds;
    if (*more) {
        return 0;
    }
    w->rounds = 0;
    return shd_worker_finish_params(w, err);
}

/* ---- access from outside, when idle ---- */

/* Host fp32 to a part, or from it. */
static int copy_part(const shd_worker *w, const shd_param_part *part, float *host, int write,
                     shd_error *err)
{
    const shd_ops *ops = shd_device_ops(w->dev);
    const shd_opctx *ctx = shd_device_opctx(w->dev);
    shd_arena *arena = atomic_load(&((shd_worker *)w)->arena);
    void *scratch = NULL;
    if (part->n > 0 && part->dtype != SHD_F32) {
        SHD_TRY(
            shd_arena_alloc(arena, SHD_TAG_WORKSPACE, ACCESS_PIECE * sizeof(float), &scratch, err));
    }
    for (int64_t at = 0; at < part->n; at += ACCESS_PIECE) {
        const int64_t n = min64(ACCESS_PIECE, part->n - at);
        void *data = element(part->data, part->dtype, at);
        float *fp32 = scratch != NULL ? scratch : data;
        float *out = host + part->first + at;
        if (write) {
            shd_device_from_host(w->dev, fp32, out, (size_t)n * sizeof(float));
        }
        if (scratch != NULL) {
            ops->cast(ctx, write ? data : scratch, write ? part->dtype : SHD_F32,
                      write ? scratch : data, write ? SHD_F32 : part->dtype, n);
        }
        if (!write) {
            shd_device_to_host(w->dev, out, fp32, (size_t)n * sizeof(float));
        }
    }
    shd_arena_release(arena, scratch);
    return 0;
}

int shd_worker_read_param(const shd_worker *w, uint32_t index, float *out, shd_error *err)
{
    const shd_param_part part = shd_worker_param_part(w, index);
    return copy_part(w, &part, out, 0, err);
}

int shd_worker_write_param(shd_worker *w, uint32_t index, const float *in, shd_error *err)
{
    const shd_unit *unit = unit_of(w, index);
    const shd_param_part whole = part_in(w, index, &unit->params, w->units.config.dtype);
    SHD_TRY(copy_part(w, &whole, (float *)in, 1, err));
    if (w->units.config.dtype == SHD_F32) {
        return 0; /* the master lies inside */
    }
    const shd_param_part master = part_in(w, index, &unit->master, SHD_F32);
    return copy_part(w, &master, (float *)in, 1, err);
}

int shd_worker_read_grad(const shd_worker *w, uint32_t index, float *out, shd_error *err)
{
    const uint32_t u = w->shared->layout.slots[index].unit;
    if (w->units.units[u].frozen) {
        return 0;
    }
    const shd_range range = shd_reduction_each_round(&w->units.config.reduction, &w->units.strategy)
                                ? shd_unit_atom(&w->units, u)
                                : w->units.units[u].grads;
    const shd_param_part part = part_in(w, index, &range, w->units.config.reduce_dtype);
    return copy_part(w, &part, out, 0, err);
}

/* The optimizer step of a rank: norm, clipping, update of its own part. Floor F4; the rank's
 * thread.
 */
#include <math.h>

#include "daemon/optim/optim.h"
#include "daemon/train/worker_internal.h"

/* Elements of a gradient that are widened to fp32 at a time. */
enum { WIDEN_PIECE = 1 << 16 };

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements [at, at + n) of the o-part of a unit. `scratch` (NULL: gradients are fp32) holds a
 * piece.
 */
static void update_range(shd_worker *w, uint32_t u, int64_t at, int64_t n, int decay,
                         const shd_optim_step *step, float *scratch)
{
    const shd_unit *unit = &w->units.units[u];
    const shd_range grads = shd_unit_update_grads(&w->units, u);
    const shd_dtype dtype = w->units.config.reduce_dtype;
    const int64_t end = at + n, most = scratch != NULL ? WIDEN_PIECE : n;
    for (; at < end; at += most) {
        const int64_t len = min64(most, end - at);
        const float *g = scratch;
        if (scratch != NULL) {
            shd_device_ops(w->dev)->cast(
                shd_device_opctx(w->dev), scratch, SHD_F32,
                (const char *)grads.data + at * (int64_t)shd_dtype_size(dtype), dtype, len);
        } else {
            g = (const float *)grads.data + at;
        }
        float *states[SHD_OPTIM_STATES] = {NULL};
        for (uint32_t k = 0; k < w->units.config.n_states; k++) {
            states[k] = unit->state[k] + at;
        }
        shd_optim_apply(w->dev, &shd_worker_spec(w)->optim, step, (float *)unit->master.data + at,
                        g, states, len, decay);
    }
}

static void update_unit(shd_worker *w, uint32_t u, const shd_optim_step *step, float *scratch)
{
    const shd_range *master = &w->units.units[u].master;
    for (uint32_t i = 0; i < w->shared->layout.n_params; i++) {
        const shd_slot *slot = &w->shared->layout.slots[i];
        int64_t first = 0, at = 0;
        const int64_t n =
            slot->unit == u ? shd_slot_intersect(slot, master->begin, master->end, &first, &at) : 0;
        if (n > 0) {
            const int decay =
                shd_worker_spec(w)->decay_all || shd_model_param(w->shared->model, i)->decay;
            update_range(w, u, at, n, decay, step, scratch);
        }
    }
}

static int update_all(shd_worker *w, const shd_optim_step *step, shd_error *err)
{
    shd_arena *arena = atomic_load(&w->arena);
    void *scratch = NULL;
    if (w->units.config.reduce_dtype != SHD_F32) {
        SHD_TRY(
            shd_arena_alloc(arena, SHD_TAG_WORKSPACE, WIDEN_PIECE * sizeof(float), &scratch, err));
    }
    int rc = 0;
    for (uint32_t u = 0; u < w->shared->layout.n_units && rc == 0; u++) {
        if (!w->units.units[u].frozen) {
            shd_worker_span_begin(w);
            update_unit(w, u, step, scratch);
            shd_worker_span_end(w, SHD_SPAN_OPTIMIZER, u);
            shd_worker_span_begin(w);
            rc = shd_unit_update_finish(&w->units, u, err);
            shd_worker_span_end(w, SHD_SPAN_UPDATE, u);
        }
    }
    shd_arena_release(arena, scratch);
    return rc;
}

double shd_worker_grad_factor(const shd_worker *w)
{
    const shd_spec *spec = shd_worker_spec(w);
    if (!w->scaler.config.enabled) {
        return 1.0;
    }
    int exponent = 0;
    frexp((double)spec->global_batch * spec->seq_len, &exponent);
    return ldexp(w->scaler.scale, -exponent);
}

static double or_spec(double override, double spec)
{
    return isnan(override) ? spec : override;
}

int shd_worker_optim_step(shd_worker *w, const shd_work *work, shd_work *result, shd_error *err)
{
    const shd_spec *spec = shd_worker_spec(w);
    const uint32_t n_units = w->shared->layout.n_units;
    if (w->units.folded == 0) {
        return shd_fail(err, SHD_EINVAL,
                        "no gradients are accumulated; send ForwardBackward before OptimStep");
    }
    shd_worker_drop_generations(w); /* their keys and values are of the weights before */
    for (uint32_t u = 0; u < n_units; u++) {
        shd_worker_span_begin(w);
        SHD_TRY(shd_unit_grad_finish(&w->units, u, err));
        shd_worker_span_end(w, SHD_SPAN_COMPLETE_GRADS, u);
    }
    double sumsq = 0;
    shd_worker_span_begin(w);
    SHD_TRY(shd_units_sumsq(&w->units, &sumsq, err));
    shd_worker_span_end(w, SHD_SPAN_NORM, 0);
    /* Gradients are of the summed loss, times a factor; the mean over valid tokens comes in here.
     */
    const double unscale = 1.0 / shd_worker_grad_factor(w);
    const double per_token = w->pending_valid > 0 ? unscale / (double)w->pending_valid : 0.0;
    const double clip = or_spec(work->clip, spec->clip);
    result->grad_norm = sqrt(sumsq) * per_token;
    result->skipped = !isfinite(sumsq) || !isfinite(result->grad_norm);
    result->overflow = result->skipped && spec->scaler.enabled && spec->scaler.loss_scale == 0;
    result->loss_scale = w->scaler.scale;
    result->lr_used = or_spec(work->lr, shd_schedule_lr(&spec->schedule, w->applied + 1));
    w->step++;
    shd_units_step_done(&w->units);
    w->pending_valid = 0;
    /* The sum is the same on every rank, and so is what follows from it. */
    SHD_TRY(shd_scaler_update(&w->scaler, result->skipped, err));
    if (result->skipped) {
        return 0;
    }
    w->applied++;
    /* As torch.nn.utils.clip_grad_norm_. */
    const double coef = clip > 0 ? fmin(1.0, clip / (result->grad_norm + 1e-6)) : 1.0;
    const shd_optim_step step = {
        .lr = result->lr_used,
        .weight_decay = or_spec(work->weight_decay, spec->weight_decay),
        .grad_scale = per_token * coef,
        .t = w->applied,
    };
    return update_all(w, &step, err);
}

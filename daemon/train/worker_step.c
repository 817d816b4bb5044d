/* The optimizer step of a rank: norm, clipping, update of its own part. Floor F4; the rank's
 * thread.
 */
#include <math.h>

#include "daemon/optim/optim.h"
#include "daemon/train/worker_internal.h"

static void update_unit(shd_worker *w, uint32_t u, const shd_optim_step *step)
{
    const shd_spec *spec = shd_worker_spec(w);
    const shd_range grads = shd_unit_update_grads(&w->units, u);
    const shd_unit *unit = &w->units.units[u];
    const shd_range *params = &unit->master;
    for (uint32_t i = 0; i < w->shared->layout.n_params; i++) {
        const shd_slot *slot = &w->shared->layout.slots[i];
        int64_t first = 0, at = 0;
        const int64_t n =
            slot->unit == u ? shd_slot_intersect(slot, params->begin, params->end, &first, &at) : 0;
        if (n > 0) {
            float *states[SHD_OPTIM_STATES] = {NULL};
            for (uint32_t k = 0; k < w->units.n_states; k++) {
                states[k] = unit->state[k] + at;
            }
            shd_optim_apply(w->dev, &spec->optim, step, params->data + at, grads.data + at, states,
                            n, spec->decay_all || shd_model_param(w->shared->model, i)->decay);
        }
    }
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
    double sumsq = 0;
    for (uint32_t u = 0; u < n_units; u++) {
        SHD_TRY(shd_unit_grad_finish(&w->units, u, err));
        SHD_TRY(shd_unit_sumsq(&w->units, u, &sumsq, err));
    }
    /* Gradients are of the summed loss; the mean over valid tokens comes in here. */
    const double per_token = w->pending_valid > 0 ? 1.0 / (double)w->pending_valid : 0.0;
    const double clip = or_spec(work->clip, spec->clip);
    result->grad_norm = sqrt(sumsq) * per_token;
    result->skipped = !isfinite(result->grad_norm);
    result->lr_used = or_spec(work->lr, shd_schedule_lr(&spec->schedule, w->applied + 1));
    w->step++;
    if (!result->skipped) {
        w->applied++;
        /* As torch.nn.utils.clip_grad_norm_. */
        const double coef = clip > 0 ? fmin(1.0, clip / (result->grad_norm + 1e-6)) : 1.0;
        const shd_optim_step step = {
            .lr = result->lr_used,
            .weight_decay = or_spec(work->weight_decay, spec->weight_decay),
            .grad_scale = per_token * coef,
            .t = w->applied,
        };
        for (uint32_t u = 0; u < n_units; u++) {
            update_unit(w, u, &step);
            SHD_TRY(shd_unit_update_finish(&w->units, u, err));
        }
    }
    w->units.folded = 0;
    w->pending_valid = 0;
    return 0;
}

/* Optimizers; see optim.h. Floor F3; the rank's thread. */
#include "daemon/optim/optim.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {"adamw", "adam", "sgd", "lion"};

int shd_optim_parse(const char *word, shd_optim_kind *out, shd_error *err)
{
    if (word[0] == '\0') {
        *out = SHD_OPTIM_ADAMW;
        return 0;
    }
    for (int i = 0; i < 4; i++) {
        if (strcmp(word, names[i]) == 0) {
            *out = (shd_optim_kind)i;
            return 0;
        }
    }
    return shd_fail(err, SHD_EINVAL,
                    "--optimizer '%s' is not known; choose adamw, adam, sgd or lion", word);
}

const char *shd_optim_name(shd_optim_kind kind)
{
    return names[kind];
}

uint32_t shd_optim_states(const shd_optim *optim)
{
    switch (optim->kind) {
    case SHD_OPTIM_SGD:
        return optim->momentum > 0 ? 1 : 0;
    case SHD_OPTIM_LION:
        return 1;
    default:
        return 2;
    }
}

static shd_adam_args adam_args(const shd_optim *o, const shd_optim_step *s, double weight_decay)
{
    return (shd_adam_args){
        .lr = s->lr,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->eps,
        .weight_decay = weight_decay,
        .bias_correction1 = (1.0 - pow(o->beta1, (double)s->t)),
        .bias_correction2 = (1.0 - pow(o->beta2, (double)s->t)),
        .grad_scale = s->grad_scale,
    };
}

void shd_optim_apply(shd_device *dev, const shd_optim *o, const shd_optim_step *s, float *p,
                     const float *g, float *const states[SHD_OPTIM_STATES], int64_t n, int decay)
{
    const shd_ops *ops = shd_device_ops(dev);
    const shd_opctx *ctx = shd_device_opctx(dev);
    const double weight_decay = decay ? s->weight_decay : 0.0;
    switch (o->kind) {
    case SHD_OPTIM_ADAMW:
    case SHD_OPTIM_ADAM: {
        const shd_adam_args args = adam_args(o, s, weight_decay);
        (o->kind == SHD_OPTIM_ADAMW ? ops->adamw : ops->adam)(ctx, p, g, states[0], states[1], n,
                                                              &args);
        break;
    }
    case SHD_OPTIM_SGD: {
        const shd_sgd_args args = {
            .lr = s->lr,
            .momentum = o->momentum,
            .weight_decay = weight_decay,
            .grad_scale = s->grad_scale,
            .nesterov = o->nesterov,
        };
        ops->sgd(ctx, p, g, o->momentum > 0 ? states[0] : NULL, n, &args);
        break;
    }
    case SHD_OPTIM_LION: {
        const shd_lion_args args = {
            .lr = s->lr,
            .beta1 = o->beta1,
            .beta2 = o->beta2,
            .weight_decay = weight_decay,
            .grad_scale = s->grad_scale,
        };
        ops->lion(ctx, p, g, states[0], n, &args);
        break;
    }
    }
}

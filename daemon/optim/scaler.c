/* Loss scaling; see scaler.h. Floor F3; pure. */
#include "daemon/optim/scaler.h"

#include <math.h>

/* Beyond this a doubling would leave what a float can hold. */
#define MAX_SCALE 0x1p100

static int is_dynamic(const shd_scaler_config *c)
{
    return c->enabled && c->loss_scale <= 0;
}

void shd_scaler_init(shd_scaler *s, const shd_scaler_config *config)
{
    *s = (shd_scaler){.config = *config, .credit = config->hysteresis, .last_overflow = -1};
    if (config->enabled) {
        s->scale =
            is_dynamic(config) ? ldexp(1.0, (int)config->initial_scale_power) : config->loss_scale;
    }
}

static int on_overflow(shd_scaler *s, shd_error *err)
{
    s->last_overflow = (int64_t)s->iterations;
    if (s->credit > 1) {
        s->credit--;
        return 0;
    }
    if (s->scale <= s->config.min_loss_scale) {
        return shd_fail(err, SHD_ENONFINITE,
                        "the gradient overflows fp16 at the smallest loss scale (--min-loss-scale "
                        "%g); lower the learning rate, look at the data, or use --dtype bf16",
                        s->config.min_loss_scale);
    }
    s->scale = fmax(s->scale / 2, s->config.min_loss_scale);
    return 0;
}

int shd_scaler_update(shd_scaler *s, int overflow, shd_error *err)
{
    int rc = 0;
    if (!is_dynamic(&s->config)) {
        return 0;
    }
    if (overflow) {
        rc = on_overflow(s, err);
    } else if (((int64_t)s->iterations - s->last_overflow) % s->config.loss_scale_window == 0) {
        s->credit = s->config.hysteresis;
        s->scale = fmin(s->scale * 2, MAX_SCALE);
    }
    s->iterations++;
    return rc;
}

/* Loss scaling of fp16 training (Micikevicius et al. 2018): gradients are of the loss times a
 * scale, so that small ones do not vanish; a step whose gradient is not finite is skipped. Floor
 * F3; pure, one owner.
 *
 * Dynamic scaling follows DeepSpeed's rules (without "consecutive hysteresis"):
 *  - the first scale is 2^initial_scale_power;
 *  - overflow: a credit of `hysteresis` - 1 overflows is used up first, one at a time, the scale as
 *    it was; without credit the scale halves, not below min_loss_scale; an overflow without credit
 *    *at* min_loss_scale is an error;
 *  - no overflow: each time that the number of steps since the latest overflow (or, before any,
 * since the first step, that one counted) is a multiple of loss_scale_window, the scale doubles and
 * the credit is full again. */
#ifndef SHD_DAEMON_OPTIM_SCALER_H
#define SHD_DAEMON_OPTIM_SCALER_H

#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_scaler_config {
    int enabled;       /* 0: no scaling at all */
    double loss_scale; /* above 0: this one, for ever */
    uint32_t initial_scale_power, loss_scale_window, hysteresis;
    double min_loss_scale;
} shd_scaler_config;

typedef struct shd_scaler {
    shd_scaler_config config;
    double scale;        /* of the next step; 0 when not enabled */
    uint32_t credit;     /* overflows left before the scale goes down, this one counted */
    uint64_t iterations; /* steps so far, skipped ones too */
    int64_t last_overflow;
} shd_scaler;

void shd_scaler_init(shd_scaler *scaler, const shd_scaler_config *config);

/* After a step: was its gradient not finite? SHD_ENONFINITE when the scale can go no lower. A
 * static scale and a disabled scaler never change and never fail. */
int shd_scaler_update(shd_scaler *scaler, int overflow, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

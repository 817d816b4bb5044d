/* AdamW; see adamw.h. Floor F3; the rank's thread. */
#include "daemon/optim/adamw.h"

#include <math.h>

void shd_adamw_apply(shd_device *dev, float *p, const float *g, float *m, float *v, int64_t n,
                     const shd_adamw_hyper *hyper, int decay)
{
    const shd_adamw_args args = {
        .lr = (float)hyper->lr,
        .beta1 = (float)hyper->beta1,
        .beta2 = (float)hyper->beta2,
        .eps = (float)hyper->eps,
        .weight_decay = decay ? (float)hyper->weight_decay : 0.0f,
        .bias_correction1 = (float)(1.0 - pow(hyper->beta1, (double)hyper->t)),
        .bias_correction2 = (float)(1.0 - pow(hyper->beta2, (double)hyper->t)),
        .grad_scale = (float)hyper->grad_scale,
    };
    shd_device_ops(dev)->adamw(shd_device_opctx(dev), p, g, m, v, n, &args);
}

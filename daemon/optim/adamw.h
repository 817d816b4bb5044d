/* AdamW (Loshchilov & Hutter 2019, algorithm 2) over a range of flat memory. Floor F3; the rank's
 * thread. */
#ifndef SHD_DAEMON_OPTIM_ADAMW_H
#define SHD_DAEMON_OPTIM_ADAMW_H

#include <stdint.h>

#include "daemon/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_adamw_hyper {
    double lr, beta1, beta2, eps, weight_decay;
    double grad_scale; /* the gradient is multiplied by this first: 1/tokens and clipping */
    uint64_t t;        /* counts applied steps from 1 */
} shd_adamw_hyper;

/* Updates p, m, v [n] in place from g [n]; `decay` 0 leaves weight decay out. */
void shd_adamw_apply(shd_device *dev, float *p, const float *g, float *m, float *v, int64_t n,
                     const shd_adamw_hyper *hyper, int decay);

#ifdef __cplusplus
}
#endif
#endif

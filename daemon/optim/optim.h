/* Optimizers over a range of flat memory: which there are, the states they keep, one step. Floor
 * F3; the rank's thread.
 *
 * adamw  Loshchilov & Hutter 2019, algorithm 2; decoupled weight decay
 * adam   Kingma & Ba 2015; weight decay is added to the gradient (L2)
 * sgd    with momentum (Nesterov's form if asked), as torch.optim.SGD without dampening; L2
 * lion   Chen et al. 2023, algorithm 2; decoupled weight decay */
#ifndef SHD_DAEMON_OPTIM_OPTIM_H
#define SHD_DAEMON_OPTIM_OPTIM_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_OPTIM_STATES 2 /* the most that any keeps per element */

typedef enum shd_optim_kind {
    SHD_OPTIM_ADAMW = 0,
    SHD_OPTIM_ADAM,
    SHD_OPTIM_SGD,
    SHD_OPTIM_LION
} shd_optim_kind;

typedef struct shd_optim {
    shd_optim_kind kind;
    double beta1, beta2; /* adamw, adam, lion */
    double eps;          /* adamw, adam */
    double momentum;     /* sgd */
    int nesterov;        /* sgd */
} shd_optim;

typedef struct shd_optim_step {
    double lr, weight_decay;
    double grad_scale; /* the gradient is multiplied by this first: 1/tokens and clipping */
    uint64_t t;        /* counts applied steps from 1 */
} shd_optim_step;

/* "adamw" ("" is it) | "adam" | "sgd" | "lion". SHD_EINVAL names the word and the choices. */
int shd_optim_parse(const char *word, shd_optim_kind *out, shd_error *err);
const char *shd_optim_name(shd_optim_kind kind);

/* fp32 states per element, all zero before the first step: 2, 2, 1 (0 without momentum), 1. */
uint32_t shd_optim_states(const shd_optim *optim);

/* Updates p [n] and its states [n] in place from g [n]; `decay` 0 leaves weight decay out. */
void shd_optim_apply(shd_device *dev, const shd_optim *optim, const shd_optim_step *step, float *p,
                     const float *g, float *const states[SHD_OPTIM_STATES], int64_t n, int decay);

#ifdef __cplusplus
}
#endif
#endif

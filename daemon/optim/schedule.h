/* The learning rate as a function of the optimizer step alone. Floor F3; pure. */
#ifndef SHD_DAEMON_OPTIM_SCHEDULE_H
#define SHD_DAEMON_OPTIM_SCHEDULE_H

#include <stdint.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum shd_schedule_kind {
    SHD_SCHEDULE_COSINE = 0, /* Loshchilov & Hutter 2017, without restarts */
    SHD_SCHEDULE_LINEAR,
    SHD_SCHEDULE_CONSTANT,
    SHD_SCHEDULE_WSD,         /* warm-up, stable, decay (Hu et al. 2024) */
    SHD_SCHEDULE_INVERSE_SQRT /* Vaswani et al. 2017, section 5.3 */
} shd_schedule_kind;

typedef struct shd_schedule {
    shd_schedule_kind kind;
    double lr;            /* peak */
    double lr_min;        /* at the last step; not of constant and inverse_sqrt */
    uint64_t warmup;      /* steps of linear warm-up: step s <= warmup has lr * s / warmup */
    uint64_t steps;       /* total; 0: no end (constant and inverse_sqrt need none) */
    uint64_t decay_steps; /* wsd: length of the last phase; warmup + decay_steps <= steps */
} shd_schedule;

/* "cosine" ("" is it) | "linear" | "constant" | "wsd" | "inverse_sqrt". SHD_EINVAL names the word
 * and the choices. */
int shd_schedule_parse(const char *word, shd_schedule_kind *out, shd_error *err);
const char *shd_schedule_name(shd_schedule_kind kind);

/* Does it go down to lr_min at `steps`? */
int shd_schedule_ends(shd_schedule_kind kind);

/* Learning rate of optimizer step `step` (counts from 1). After warm-up, with x from 0 to 1 over
 * the remaining steps: cosine lr_min + (lr - lr_min)(1 + cos πx)/2, linear lr + (lr_min - lr)x; wsd
 * is lr up to the last decay_steps and then linear over these; inverse_sqrt is
 * lr * sqrt(max(warmup, 1) / step). */
double shd_schedule_lr(const shd_schedule *schedule, uint64_t step);

#ifdef __cplusplus
}
#endif
#endif

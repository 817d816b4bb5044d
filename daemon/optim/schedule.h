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
    SHD_SCHEDULE_CONSTANT
} shd_schedule_kind;

typedef struct shd_schedule {
    shd_schedule_kind kind;
    double lr;       /* peak */
    double lr_min;   /* at the last step */
    uint64_t warmup; /* steps of linear warm-up: step s <= warmup has lr * s / warmup */
    uint64_t steps;  /* total; 0: no end, then only constant makes sense */
} shd_schedule;

/* "cosine" | "linear" | "constant" ("" is cosine). SHD_EINVAL names the word and the choices. */
int shd_schedule_parse(const char *word, shd_schedule_kind *out, shd_error *err);
const char *shd_schedule_name(shd_schedule_kind kind);

/* Learning rate of optimizer step `step` (counts from 1). After warm-up, with x from 0 to 1 over
 * the remaining steps: cosine lr_min + (lr - lr_min)(1 + cos πx)/2, linear lr + (lr_min - lr)x. */
double shd_schedule_lr(const shd_schedule *schedule, uint64_t step);

#ifdef __cplusplus
}
#endif
#endif

/* Learning-rate schedules; see schedule.h. Floor F3; pure. */
#include "daemon/optim/schedule.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {"cosine", "linear", "constant", "wsd", "inverse_sqrt"};

int shd_schedule_parse(const char *word, shd_schedule_kind *out, shd_error *err)
{
    if (word[0] == '\0') {
        *out = SHD_SCHEDULE_COSINE;
        return 0;
    }
    for (int i = 0; i < 5; i++) {
        if (strcmp(word, names[i]) == 0) {
            *out = (shd_schedule_kind)i;
            return 0;
        }
    }
    return shd_fail(
        err, SHD_EINVAL,
        "--schedule '%s' is not known; choose cosine, linear, constant, wsd or inverse_sqrt", word);
}

const char *shd_schedule_name(shd_schedule_kind kind)
{
    return names[kind];
}

int shd_schedule_ends(shd_schedule_kind kind)
{
    return kind != SHD_SCHEDULE_CONSTANT && kind != SHD_SCHEDULE_INVERSE_SQRT;
}

double shd_schedule_lr(const shd_schedule *s, uint64_t step)
{
    if (s->warmup > 0 && step <= s->warmup) {
        return s->lr * (double)step / (double)s->warmup;
    }
    if (s->kind == SHD_SCHEDULE_CONSTANT) {
        return s->lr;
    }
    if (s->kind == SHD_SCHEDULE_INVERSE_SQRT) {
        return s->lr * sqrt((double)(s->warmup > 0 ? s->warmup : 1) / (double)step);
    }
    if (step >= s->steps) {
        return s->lr_min;
    }
    /* The step up to which the rate is at its peak. */
    const uint64_t from = s->kind == SHD_SCHEDULE_WSD ? s->steps - s->decay_steps : s->warmup;
    if (step <= from) {
        return s->lr;
    }
    const double x = (double)(step - from) / (double)(s->steps - from);
    return s->kind == SHD_SCHEDULE_COSINE
               ? s->lr_min + (s->lr - s->lr_min) * 0.5 * (1.0 + cos(M_PI * x))
               : s->lr + (s->lr_min - s->lr) * x;
}

/* When work on a text has to end although it is not done: looked at between steps that are short
 * each. Floor F3; an object belongs to the call in execution. */
#ifndef SHD_DAEMON_DATA_ENDS_H
#define SHD_DAEMON_DATA_ENDS_H

#include <stddef.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_ends {
    const int *cancel; /* borrowed; other than 0, which any thread may make it: end. NULL: none */
    double deadline;   /* of the monotonic clock, seconds; 0: none */
    unsigned looks;
} shd_ends;

/* Seconds of the monotonic clock. */
double shd_ends_now(void);

/* May the work go on? SHD_ECANCELLED when it is cancelled; SHD_EDATA when its time is over, where a
 * clock is read every `every` calls. */
int shd_ends_look(shd_ends *ends, unsigned every, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

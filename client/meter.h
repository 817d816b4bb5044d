/* How far work has come that says how much there is of it, on standard output: a bar that is drawn
 * over, lines where lines cannot be redrawn, objects with --json. Main thread. */
#ifndef SHD_CLIENT_METER_H
#define SHD_CLIENT_METER_H

#include "client/cmd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zero-initialised with env set. */
typedef struct shc_meter {
    const shc_env *env;
    int drawn;     /* a bar stands on the terminal */
    int tenth;     /* of the share shown last, plus 1; 0: nothing shown of this work */
    uint64_t done; /* shown last */
    char what[24];
} shc_meter;

/* Shows it where it is news. */
void shc_meter_show(shc_meter *meter, const Shard__V1__Progress *progress);
/* Takes the bar off the terminal: another line follows. */
void shc_meter_clear(shc_meter *meter);

#ifdef __cplusplus
}
#endif
#endif

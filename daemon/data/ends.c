/* Ends of work on a text; see ends.h. Floor F3. */
#include "daemon/data/ends.h"

#include <time.h>

double shd_ends_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int shd_ends_look(shd_ends *e, unsigned every, shd_error *err)
{
    if (e->cancel != NULL && __atomic_load_n(e->cancel, __ATOMIC_RELAXED)) {
        return shd_fail(err, SHD_ECANCELLED, "tokenizing was cancelled");
    }
    if (e->deadline == 0 || ++e->looks % every != 0 || shd_ends_now() < e->deadline) {
        return 0;
    }
    return shd_fail(err, SHD_EDATA,
                    "the tokenizer takes more than a second for 64 KiB of this text; a pattern in "
                    "its file is to blame");
}

#include "daemon/service/verdict.h"

#include <stdio.h>
#include <string.h>

const char *shd_verdict_bytes(uint64_t bytes, char out[SHD_VERDICT_BYTES])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024.0 && unit < 4) {
        value /= 1024.0;
        unit++;
    }
    snprintf(out, SHD_VERDICT_BYTES, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return out;
}

void shd_verdict_tags(const shd_plan *plan, char *out, size_t size)
{
    unsigned char taken[SHD_TAG_COUNT] = {0};
    out[0] = '\0';
    for (int i = 0; i < 3; i++) {
        int best = -1;
        for (int tag = 0; tag < SHD_TAG_COUNT; tag++) {
            if (!taken[tag] && plan->peak[tag] > 0 &&
                (best < 0 || plan->peak[tag] > plan->peak[best])) {
                best = tag;
            }
        }
        if (best < 0) {
            return;
        }
        taken[best] = 1;
        char bytes[SHD_VERDICT_BYTES];
        const size_t used = strlen(out);
        snprintf(out + used, size - used, "%s%s %s", i > 0 ? ", " : "", shd_tag_name((shd_tag)best),
                 shd_verdict_bytes(plan->peak[best], bytes));
    }
}

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

/* "optimizer 1.20 GiB, params 600.00 MiB, grads 600.00 MiB": the three largest. */
static void name_tags(const shd_plan *plan, char *out, size_t size)
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

void shd_verdict_fits(const shd_plan *plan, uint32_t world, const shd_room *room,
                      uint64_t available, char *out, size_t size)
{
    char needs[SHD_VERDICT_BYTES], has[SHD_VERDICT_BYTES];
    const uint64_t bytes = shd_plan_bytes(plan);
    snprintf(out, size, "fits: needs %llu bytes (%s) on each of %u ranks, %s %s",
             (unsigned long long)bytes, shd_verdict_bytes(bytes, needs), world,
             shd_verdict_bytes(available, has), room->planned != NULL ? "free" : "there");
}

void shd_verdict_refuses(const shd_plan *plan, uint32_t world, const shd_room *room,
                         uint64_t available, const char *hint, char *out, size_t size)
{
    char needs[SHD_VERDICT_BYTES], has[SHD_VERDICT_BYTES], budget[SHD_VERDICT_BYTES];
    char of[SHD_VERDICT_BYTES + 16] = "", tags[96];
    const uint64_t bytes = shd_plan_bytes(plan);
    if (room->planned != NULL) {
        snprintf(of, sizeof of, " of %s free", shd_verdict_bytes(room->budget, budget));
    }
    name_tags(plan, tags, sizeof tags);
    snprintf(out, size,
             "does not fit: needs %llu bytes (%s) on each of %u ranks, has %llu (%s)%s; largest: "
             "%s; %s",
             (unsigned long long)bytes, shd_verdict_bytes(bytes, needs), world,
             (unsigned long long)available, shd_verdict_bytes(available, has), of, tags, hint);
}

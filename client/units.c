#include "client/units.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client/utf8.h"

const char *shc_format_bytes(char out[SHC_UNIT_LEN], uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

    if (bytes < 1024) {
        snprintf(out, SHC_UNIT_LEN, "%u B  ", (unsigned)bytes);
        return out;
    }
    double value = (double)bytes / 1024;
    size_t unit = 0;
    /* 1023.95 would print as 1024.0. */
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(out, SHC_UNIT_LEN, "%.1f %s", value, units[unit]);
    return out;
}

const char *shc_format_count(char out[SHC_UNIT_LEN], double count)
{
    static const char units[] = {'\0', 'k', 'M', 'G', 'T'};
    size_t unit = 0;

    if (!isfinite(count)) {
        snprintf(out, SHC_UNIT_LEN, "-");
        return out;
    }
    while (fabs(count) >= 999.5 && unit + 1 < sizeof units) {
        count /= 1000;
        unit++;
    }
    const int decimals = !unit || fabs(count) >= 99.95 ? 0 : fabs(count) >= 9.995 ? 1 : 2;
    snprintf(out, SHC_UNIT_LEN, "%.*f%.1s", decimals, count, &units[unit]);
    return out;
}

const char *shc_format_hms(char out[SHC_UNIT_LEN], double seconds)
{
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e12) {
        snprintf(out, SHC_UNIT_LEN, "-");
        return out;
    }
    const uint64_t s = (uint64_t)(seconds + 0.5);
    snprintf(out, SHC_UNIT_LEN, "%llu:%02u:%02u", (unsigned long long)(s / 3600),
             (unsigned)(s / 60 % 60), (unsigned)(s % 60));
    return out;
}

const char *shc_format_age(char out[SHC_UNIT_LEN], double seconds)
{
    if (!(seconds >= 0))
        seconds = 0;
    if (seconds < 60)
        snprintf(out, SHC_UNIT_LEN, "%.0fs", floor(seconds));
    else if (seconds < 3600)
        snprintf(out, SHC_UNIT_LEN, "%.0fm", floor(seconds / 60));
    else if (seconds < 86400)
        snprintf(out, SHC_UNIT_LEN, "%.0fh", floor(seconds / 3600));
    else
        snprintf(out, SHC_UNIT_LEN, "%.0fd", floor(seconds / 86400));
    return out;
}

const char *shc_format_time(char out[SHC_UNIT_LEN], double unix_seconds)
{
    struct tm tm;
    const time_t t = (time_t)unix_seconds;

    if (!localtime_r(&t, &tm) || !strftime(out, SHC_UNIT_LEN, "%Y-%m-%d %H:%M:%S", &tm))
        snprintf(out, SHC_UNIT_LEN, "-");
    return out;
}

size_t shc_text_width(const char *s)
{
    size_t width = 0;

    for (; *s; s++)
        width += ((unsigned char)*s & 0xC0) != 0x80;
    return width;
}

void shc_text_clean(shc_buf *buf, const char *s)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t left = strlen(s);

    while (left) {
        int n = shc_utf8_next(p, left);
        /* C0, DEL and C1 (U+0080..U+009F) drive terminals. */
        if (n <= 0 || *p < 0x20 || *p == 0x7F || (p[0] == 0xC2 && p[1] < 0xA0)) {
            shc_buf_puts(buf, "?");
            n = n > 0 ? n : 1;
        } else {
            shc_buf_add(buf, (const char *)p, (size_t)n);
        }
        p += n;
        left -= (size_t)n;
    }
}

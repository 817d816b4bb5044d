/* Numbers as people read them, and text as a terminal may safely show it. Pure. */
#ifndef SHD_CLIENT_UNITS_H
#define SHD_CLIENT_UNITS_H

#include <stdint.h>

#include "client/buf.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHC_UNIT_LEN = 32 };

/* "812.5 KiB", "1.0 MiB", "3 B  ": powers of 1024, one decimal, the unit three wide, so that
 * right-aligned figures stand under each other. Returns out. */
const char *shc_format_bytes(char out[SHC_UNIT_LEN], uint64_t bytes);
/* "987", "12.3k", "1.24M", "124M", "1.56G": three digits, powers of 1000. */
const char *shc_format_count(char out[SHC_UNIT_LEN], double count);
/* "0:00:07", "1:02:03", "100:00:00": hours, minutes, seconds; "-" when not finite or negative. */
const char *shc_format_hms(char out[SHC_UNIT_LEN], double seconds);
/* "12s", "5m", "3h", "2d": one unit, rounded down. */
const char *shc_format_age(char out[SHC_UNIT_LEN], double seconds);
/* "2026-01-31 13:45:10" in local time. */
const char *shc_format_time(char out[SHC_UNIT_LEN], double unix_seconds);

/* Columns that the UTF-8 text takes on a terminal, one per code point. */
size_t shc_text_width(const char *s);
/* Appends the text with control characters and broken UTF-8 replaced by '?'. */
void shc_text_clean(shc_buf *buf, const char *s);

#ifdef __cplusplus
}
#endif
#endif

/* UTF-8: what is well-formed, and U+FFFD for what is not. Floor F3; pure, any thread. */
#ifndef SHD_DAEMON_DATA_UTF8_H
#define SHD_DAEMON_DATA_UTF8_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Looks at the front of s[n], n > 0 (Unicode 15, table 3-7). Returns how many bytes to take: a
 * whole character (*valid = 1), or the maximal subpart of an ill-formed sequence (*valid = 0). 0: a
 * character has begun, and s ends before it does. */
size_t shd_utf8_step(const char *s, size_t n, int *valid);

/* Length of the longest well-formed front of s[n]. */
size_t shd_utf8_valid(const char *s, size_t n);

/* Copies s[n] to out, U+FFFD for every ill-formed subpart; returns how many bytes that are. `out`
 * may be NULL. */
size_t shd_utf8_lossy(const char *s, size_t n, char *out);

/* The character that s begins with, which must be well-formed; *size gets its bytes. */
uint32_t shd_utf8_get(const char *s, size_t *size);
/* The last character of s[n]; n > 0, well-formed. */
uint32_t shd_utf8_last(const char *s, size_t n, size_t *size);

#ifdef __cplusplus
}
#endif
#endif

/* UTF-8, one sequence at a time. Pure. */
#ifndef SHD_CLIENT_UTF8_H
#define SHD_CLIENT_UTF8_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Looks at n >= 1 bytes: the length of the valid sequence that they begin with (1..4), 0 when more
 * bytes could complete it, -1 when the first byte begins none. */
int shc_utf8_next(const unsigned char *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif

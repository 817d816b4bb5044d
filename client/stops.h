/* Texts that end a generation: what comes in is held back as long as it could be the beginning of
 * one. Pure. */
#ifndef SHD_CLIENT_STOPS_H
#define SHD_CLIENT_STOPS_H

#include <stddef.h>

#include "client/buf.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shc_stops {
    char *const *texts; /* borrowed; none is empty */
    size_t n;
    shc_buf held;
} shc_stops;

/* Takes n more bytes and appends to `out` what is certain to stand before any of the texts. 1: one
 * of them has come, `out` ends before it and nothing may follow; else 0. */
int shc_stops_put(shc_stops *stops, const char *bytes, size_t n, shc_buf *out);
/* The text is over: appends what was held back. */
void shc_stops_end(shc_stops *stops, shc_buf *out);
void shc_stops_fini(shc_stops *stops);

#ifdef __cplusplus
}
#endif
#endif

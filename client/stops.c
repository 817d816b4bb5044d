#include "client/stops.h"

#include <string.h>

static void release(shc_stops *stops, size_t n, shc_buf *out)
{
    if (!n)
        return;
    shc_buf_add(out, stops->held.data, n);
    stops->held.len -= n;
    memmove(stops->held.data, stops->held.data + n, stops->held.len + 1);
}

/* The first place at which a whole text stands, or, if not `whole`, at which the held bytes end
 * with the beginning of one; held.len: nowhere. */
static size_t find(const shc_stops *stops, int whole)
{
    for (size_t at = 0; at < stops->held.len; at++) {
        const size_t left = stops->held.len - at;
        for (size_t i = 0; i < stops->n; i++) {
            const size_t len = strlen(stops->texts[i]);
            if ((len <= left) == whole &&
                !memcmp(stops->held.data + at, stops->texts[i], len < left ? len : left))
                return at;
        }
    }
    return stops->held.len;
}

int shc_stops_put(shc_stops *stops, const char *bytes, size_t n, shc_buf *out)
{
    shc_buf_add(&stops->held, bytes, n);
    const size_t at = find(stops, 1);
    if (at == stops->held.len) {
        release(stops, find(stops, 0), out);
        return 0;
    }
    release(stops, at, out);
    shc_buf_clear(&stops->held);
    return 1;
}

void shc_stops_end(shc_stops *stops, shc_buf *out)
{
    release(stops, stops->held.len, out);
}

void shc_stops_fini(shc_stops *stops)
{
    shc_buf_fini(&stops->held);
}

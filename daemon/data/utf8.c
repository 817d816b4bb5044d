/* UTF-8; see utf8.h. Floor F3; pure. */
#include "daemon/data/utf8.h"

#include <string.h>

size_t shd_utf8_step(const char *s, size_t n, int *valid)
{
    const unsigned char *p = (const unsigned char *)s;
    const unsigned char lead = p[0];
    size_t size;
    unsigned char low = 0x80, high = 0xbf; /* of the second byte */

    *valid = 0;
    if (lead < 0x80) {
        *valid = 1;
        return 1;
    }
    if (lead >= 0xc2 && lead <= 0xdf) {
        size = 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        size = 3;
        low = lead == 0xe0 ? 0xa0 : low;
        high = lead == 0xed ? 0x9f : high;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        size = 4;
        low = lead == 0xf0 ? 0x90 : low;
        high = lead == 0xf4 ? 0x8f : high;
    } else {
        return 1;
    }
    for (size_t i = 1; i < size; i++) {
        if (i == n) {
            return 0;
        }
        if (p[i] < low || p[i] > high) {
            return i;
        }
        low = 0x80;
        high = 0xbf;
    }
    *valid = 1;
    return size;
}

/* Bytes below 0x80 at the front of s[n]. */
static size_t ascii_run(const char *s, size_t n)
{
    size_t i = 0;
    for (uint64_t word; i + sizeof(word) <= n; i += sizeof(word)) {
        memcpy(&word, s + i, sizeof(word));
        if ((word & UINT64_C(0x8080808080808080)) != 0) {
            break;
        }
    }
    while (i < n && (unsigned char)s[i] < 0x80) {
        i++;
    }
    return i;
}

size_t shd_utf8_valid(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        at += ascii_run(s + at, n - at);
        int valid = 1;
        const size_t size = at < n ? shd_utf8_step(s + at, n - at, &valid) : 0;
        if (!valid || size == 0) {
            return at;
        }
        at += size;
    }
    return at;
}

size_t shd_utf8_lossy(const char *s, size_t n, char *out)
{
    size_t written = 0;
    for (size_t at = 0; at < n;) {
        const size_t good = shd_utf8_valid(s + at, n - at);
        if (out != NULL) {
            memcpy(out + written, s + at, good);
        }
        written += good;
        at += good;
        if (at < n) {
            int valid;
            const size_t size = shd_utf8_step(s + at, n - at, &valid);
            if (out != NULL) {
                memcpy(out + written, "\xef\xbf\xbd", 3);
            }
            written += 3;
            at += size > 0 ? size : n - at; /* begun at the end: one subpart */
        }
    }
    return written;
}

uint32_t shd_utf8_get(const char *s, size_t *size)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) {
        *size = 1;
        return p[0];
    }
    *size = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    uint32_t c = p[0] & (0x7fu >> *size);
    for (size_t i = 1; i < *size; i++) {
        c = c << 6 | (p[i] & 0x3fu);
    }
    return c;
}

uint32_t shd_utf8_last(const char *s, size_t n, size_t *size)
{
    size_t at = n - 1;
    while (at > 0 && ((unsigned char)s[at] & 0xc0) == 0x80) {
        at--;
    }
    return shd_utf8_get(s + at, size);
}

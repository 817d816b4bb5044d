#include "client/utf8.h"

int shc_utf8_next(const unsigned char *b, size_t n)
{
    /* Unicode 15, table 3-7: the second byte's range excludes overlong forms, surrogates and what
     * lies past U+10FFFF. */
    unsigned char low = 0x80, high = 0xBF;
    int len;

    if (b[0] < 0x80)
        return 1;
    if (b[0] >= 0xC2 && b[0] <= 0xDF) {
        len = 2;
    } else if (b[0] >= 0xE0 && b[0] <= 0xEF) {
        len = 3;
        if (b[0] == 0xE0)
            low = 0xA0;
        else if (b[0] == 0xED)
            high = 0x9F;
    } else if (b[0] >= 0xF0 && b[0] <= 0xF4) {
        len = 4;
        if (b[0] == 0xF0)
            low = 0x90;
        else if (b[0] == 0xF4)
            high = 0x8F;
    } else {
        return -1;
    }
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n)
            return 0;
        if (b[i] < low || b[i] > high)
            return -1;
        low = 0x80;
        high = 0xBF;
    }
    return len;
}

#include "client/textout.h"

#include <string.h>

#include "client/utf8.h"

void shc_textout(shc_buf *held, const shc_term *term, int end)
{
    shc_buf whole = {0};
    size_t done = 0;

    if (!term->tty) {
        shc_buf_flush(held, stdout);
        return;
    }
    while (done < held->len) {
        const unsigned char *at = (const unsigned char *)held->data + done;
        const int n = shc_utf8_next(at, held->len - done);
        if (n == 0 && !end)
            break;
        /* What would drive the terminal, or is no character, shows as U+FFFD. */
        const int control = n == 1 && (*at < 0x20 || *at == 0x7F) && *at != '\n' && *at != '\t';
        if (n <= 0 || control || (n == 2 && at[0] == 0xC2 && at[1] < 0xA0))
            shc_buf_puts(&whole, term->utf8 ? "\xEF\xBF\xBD" : "?");
        else
            shc_buf_add(&whole, (const char *)at, (size_t)n);
        done += n > 0 ? (size_t)n : 1;
    }
    if (done) {
        memmove(held->data, held->data + done, held->len - done);
        held->len -= done;
    }
    shc_buf_flush(&whole, stdout);
    shc_buf_fini(&whole);
}

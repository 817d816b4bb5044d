/* A growing string: everything shardctl shows is made here first and written at once. One thread.
 */
#ifndef SHD_CLIENT_BUF_H
#define SHD_CLIENT_BUF_H

#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zero-initialised is empty. data is NULL or ends with a NUL that len does not count. */
typedef struct shc_buf {
    char *data;
    size_t len;
    size_t cap;
} shc_buf;

void shc_buf_add(shc_buf *buf, const char *bytes, size_t n);
void shc_buf_puts(shc_buf *buf, const char *s);
/* The character `c`, n times. */
void shc_buf_fill(shc_buf *buf, char c, size_t n);
void shc_buf_printf(shc_buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The text so far; "" when empty. Lives until the next change. */
const char *shc_buf_str(const shc_buf *buf);
void shc_buf_clear(shc_buf *buf);
/* Writes the text to the file, flushes and clears. */
void shc_buf_flush(shc_buf *buf, FILE *file);
void shc_buf_fini(shc_buf *buf);

#ifdef __cplusplus
}
#endif
#endif

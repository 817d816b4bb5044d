/* What the output is: a terminal or not, how wide, whether it may be coloured. One thread. */
#ifndef SHD_CLIENT_TERM_H
#define SHD_CLIENT_TERM_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shc_term {
    int tty;    /* lines may be redrawn */
    int style;  /* bold and dim may be used: a terminal, and NO_COLOR is not set */
    int utf8;   /* the locale shows characters beyond ASCII */
    int width;  /* columns; 0: no limit (not a terminal) */
    int height; /* rows; 0: no limit */
} shc_term;

/* Asks the file and the environment (NO_COLOR, TERM, the locale set with setlocale). */
shc_term shc_term_of(FILE *file);

/* Escape sequences, or "" without style. */
const char *shc_bold(const shc_term *term);
const char *shc_dim(const shc_term *term);
const char *shc_plain(const shc_term *term);

#ifdef __cplusplus
}
#endif
#endif

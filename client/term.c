#include "client/term.h"

#include <langinfo.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

shc_term shc_term_of(FILE *file)
{
    shc_term term = {.utf8 = !strcmp(nl_langinfo(CODESET), "UTF-8")};
    const char *name = getenv("TERM"), *no_color = getenv("NO_COLOR");
    struct winsize size;

    if (!isatty(fileno(file)))
        return term;
    const int dumb = !name || !strcmp(name, "dumb");
    term.tty = !dumb;
    term.style = !dumb && !(no_color && *no_color);
    term.width = 80;
    term.height = 24;
    if (!ioctl(fileno(file), TIOCGWINSZ, &size) && size.ws_col && size.ws_row) {
        term.width = size.ws_col;
        term.height = size.ws_row;
    }
    return term;
}

const char *shc_bold(const shc_term *term)
{
    return term->style ? "\033[1m" : "";
}

const char *shc_dim(const shc_term *term)
{
    return term->style ? "\033[2m" : "";
}

const char *shc_plain(const shc_term *term)
{
    return term->style ? "\033[0m" : "";
}

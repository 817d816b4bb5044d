#include "daemon/base/err.h"

#include <stdio.h>
#include <string.h>

static void one_line(char *s)
{
    for (; *s != '\0'; s++) {
        if (*s == '\n' || *s == '\r') {
            *s = ' ';
        }
    }
}

int shd_failv(shd_error *err, int code, const char *fmt, va_list args)
{
    if (err != NULL) {
        err->code = code;
        vsnprintf(err->message, sizeof(err->message), fmt, args);
        one_line(err->message);
    }
    return code;
}

int shd_fail(shd_error *err, int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    shd_failv(err, code, fmt, args);
    va_end(args);
    return code;
}

int shd_error_prefix(shd_error *err, int code, const char *fmt, ...)
{
    if (err == NULL) {
        return code;
    }
    char message[SHD_ERROR_MESSAGE_MAX];
    va_list args;
    va_start(args, fmt);
    int used = vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    if (used >= 0 && (size_t)used + 2 < sizeof(message)) {
        /* A message that no longer fits loses its end, never the context in front. */
        char *rest = message + used;
        const size_t room = sizeof(message) - (size_t)used - 2;
        const size_t length = strnlen(err->message, room - 1);
        memcpy(rest, ": ", 2);
        memcpy(rest + 2, err->message, length);
        rest[2 + length] = '\0';
    }
    one_line(message);
    memcpy(err->message, message, sizeof(message));
    return code;
}

const char *shd_err_name(int code)
{
    static const char *const names[] = {
        "OK",         "EINVAL",   "ENOTFOUND",    "EEXIST",    "EPERM",        "ESTATE",
        "EFULL",      "ENOMEM",   "EUNSUPPORTED", "EIO",       "EDATA",        "ECOMM",
        "ECANCELLED", "ETIMEOUT", "ENONFINITE",   "ESEQUENCE", "EUNAVAILABLE", "EINTERNAL",
    };
    const int count = (int)(sizeof(names) / sizeof(names[0]));
    return code <= 0 && code > -count ? names[-code] : "E?";
}

/* Errors: a number from proto/shd_errno.h and a sentence that says what failed, with which value,
 * and what to do about it. Floor F0; any thread (an shd_error belongs to one caller). */
#ifndef SHD_DAEMON_BASE_ERR_H
#define SHD_DAEMON_BASE_ERR_H

#include <stdarg.h>

#include "proto/shd_errno.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_ERROR_MESSAGE_MAX 512

typedef struct shd_error {
    int code;                            /* enum shd_err */
    char message[SHD_ERROR_MESSAGE_MAX]; /* NUL-terminated, one line, no final period or newline */
} shd_error;

/* Fills `err` (may be NULL) and returns `code`, so that a failing function can end with
 * `return shd_fail(err, SHD_EINVAL, "...")`. An embedded newline becomes a space. */
int shd_fail(shd_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int shd_failv(shd_error *err, int code, const char *fmt, va_list args);

/* Puts "context: " before the message already in `err` (may be NULL); returns `code` unchanged. */
int shd_error_prefix(shd_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The pinned name of a number, e.g. "EINVAL"; "E?" for an unknown one. Static storage. */
const char *shd_err_name(int code);

/* Returns from the calling function with the number when `expr` fails. */
#define SHD_TRY(expr)                                                                              \
    do {                                                                                           \
        int shd_try_rc_ = (expr);                                                                  \
        if (shd_try_rc_ < 0) {                                                                     \
            return shd_try_rc_;                                                                    \
        }                                                                                          \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif

/* Log lines to stderr, one per call. Under journald (JOURNAL_STREAM set) a line carries its
 * syslog priority as "<N>" so that `journalctl -p` works; on a terminal it carries time and level.
 * Floor F0; any thread. */
#ifndef SHD_DAEMON_BASE_LOG_H
#define SHD_DAEMON_BASE_LOG_H

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum shd_log_level {
    SHD_LOG_ERROR = 3, /* the numbers are syslog's */
    SHD_LOG_WARNING = 4,
    SHD_LOG_NOTICE = 5,
    SHD_LOG_INFO = 6,
    SHD_LOG_DEBUG = 7
} shd_log_level;

/* Lines above `level` are dropped. Default SHD_LOG_INFO. */
void shd_log_set_level(shd_log_level level);

/* "error" | "warning" | "notice" | "info" | "debug"; SHD_EINVAL names the word and the choices. */
int shd_log_level_parse(const char *word, shd_log_level *out, shd_error *err);

/* Writes one line with one write(2). Control characters in the text become '?'. */
void shd_log(shd_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif

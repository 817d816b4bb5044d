#include "daemon/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/mem.h"

static const char *const level_names[] = {"error", "warning", "notice", "info", "debug"};

static _Atomic int max_level = SHD_LOG_INFO;

void shd_log_set_level(shd_log_level level)
{
    atomic_store_explicit(&max_level, (int)level, memory_order_relaxed);
}

int shd_log_level_parse(const char *word, shd_log_level *out, shd_error *err)
{
    for (int i = 0; i <= SHD_LOG_DEBUG - SHD_LOG_ERROR; i++) {
        if (strcmp(word, level_names[i]) == 0) {
            *out = (shd_log_level)(SHD_LOG_ERROR + i);
            return SHD_OK;
        }
    }
    return shd_fail(err, SHD_EINVAL,
                    "unknown log level '%s'; use error, warning, notice, info or debug", word);
}

/* JOURNAL_STREAM is inherited by children whose stderr goes elsewhere, so it counts only when it
 * names this very stream (systemd.exec(5)). */
static int stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    uintmax_t device, inode;
    struct stat st;
    return stream != NULL && sscanf(stream, "%" SCNuMAX ":%" SCNuMAX, &device, &inode) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && (uintmax_t)st.st_dev == device &&
           (uintmax_t)st.st_ino == inode;
}

static int journal;
static pthread_once_t journal_once = PTHREAD_ONCE_INIT;

static void detect_journal(void)
{
    journal = stderr_is_journal();
}

static size_t line_prefix(char *buf, size_t size, shd_log_level level)
{
    if (journal) {
        return (size_t)snprintf(buf, size, "<%d>", (int)level);
    }
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    return (size_t)snprintf(buf, size, "%02d:%02d:%02d.%03d %-7s ", tm.tm_hour, tm.tm_min,
                            tm.tm_sec, (int)(now.tv_nsec / 1000000),
                            level_names[(int)level - SHD_LOG_ERROR]);
}

static void write_line(const char *line, size_t length)
{
    ssize_t rc;
    do {
        rc = write(STDERR_FILENO, line, length);
    } while (rc < 0 && errno == EINTR);
}

void shd_log(shd_log_level level, const char *fmt, ...)
{
    if ((int)level > atomic_load_explicit(&max_level, memory_order_relaxed)) {
        return;
    }
    const int saved_errno = errno;
    pthread_once(&journal_once, detect_journal);

    char small[1024];
    char *line = small;
    const size_t prefix = line_prefix(small, sizeof(small), level);
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int text = vsnprintf(small + prefix, sizeof(small) - prefix, fmt, args);
    va_end(args);
    if (text >= 0) {
        const size_t length = prefix + (size_t)text;
        if (length + 1 > sizeof(small)) {
            line = shd_malloc(length + 1);
            memcpy(line, small, prefix);
            vsnprintf(line + prefix, (size_t)text + 1, fmt, again);
        }
        for (size_t i = prefix; i < length; i++) {
            if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) {
                line[i] = '?';
            }
        }
        line[length] = '\n'; /* in place of the NUL */
        write_line(line, length + 1);
    }
    va_end(again);
    if (line != small) {
        free(line);
    }
    errno = saved_errno;
}

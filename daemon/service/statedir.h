/* The state directory: one daemon has it at a time. Floor F5; any thread. */
#ifndef SHD_DAEMON_SERVICE_STATEDIR_H
#define SHD_DAEMON_SERVICE_STATEDIR_H

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_statedir shd_statedir;

/* Makes `path` with mode 0700 where it is missing (its parent must exist) and locks the file
 * "lock" in it, which then holds the process id. The lock goes with the process. SHD_EEXIST names
 * the process that has it; SHD_EPERM when others may write to the directory; SHD_EIO when it
 * cannot be written. */
int shd_statedir_open(const char *path, shd_statedir **out, shd_error *err);

/* The directory, for openat; borrowed. */
int shd_statedir_fd(const shd_statedir *dir);

/* Unlocks. NULL is fine. */
void shd_statedir_free(shd_statedir *dir);

#ifdef __cplusplus
}
#endif
#endif

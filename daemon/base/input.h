/* A file that must stay what it was when it was opened, read with pread: a mapping would raise
 * SIGBUS when somebody cuts it. Floor F0; after opening, reads are safe from any thread. */
#ifndef SHD_DAEMON_STORE_INPUT_H
#define SHD_DAEMON_STORE_INPUT_H

#include <stdint.h>
#include <time.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_input {
    int fd;     /* owned; -1: closed */
    char *path; /* owned; for messages */
    uint64_t size;
    struct timespec mtime;
} shd_input;

/* Takes over `fd`, on failure too. SHD_EDATA when it is no regular file. */
int shd_input_open(shd_input *input, int fd, const char *path, shd_error *err);
/* Closes the file; size and path stay. Reads fail from then on. */
void shd_input_close(shd_input *input);
void shd_input_fini(shd_input *input); /* a zeroed one is fine once fd is -1 */

/* Reads exactly `bytes` from `offset`. SHD_EDATA when the file's size or modification time is no
 * longer what it was (told after reading, so that what was read is what the file held), SHD_EINVAL
 * past its end, SHD_EIO what the system said. */
int shd_input_read(const shd_input *input, void *out, uint64_t bytes, uint64_t offset,
                   shd_error *err);

/* SHD_EDATA when the file is no longer what it was; SHD_EIO. */
int shd_input_check(const shd_input *input, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

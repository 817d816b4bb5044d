/* A directory that appears whole or not at all: its files are written into a hidden directory
 * beside it, which takes its name when everything is on disk. Floor F3; one thread at a time,
 * except where said. */
#ifndef SHD_DAEMON_STORE_OUT_DIR_H
#define SHD_DAEMON_STORE_OUT_DIR_H

#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_out_dir shd_out_dir;

/* Begins the directory `name` of the open directory `parent` (taken over, on failure too); `path`
 * is its path for messages. It will belong to uid:gid: by ownership where this process may give it
 * away, else by an access list; where it can do neither, SHD_EPERM at once. SHD_EEXIST when
 * something has that name, a link included; SHD_EIO names what the system said.
 *
 * Left-overs in `parent` of processes of this uid that died while they wrote there are removed:
 * directories with such a hidden name and the mark that this module puts into them, of this uid and
 * closed to all others, which no living process has locked. What died while it was given to the
 * caller, at the very end, is left.
 *
 * Until the end the files can be reached by this process alone. Then uid may read and write them,
 * and others may read them as they may read `parent`. */
int shd_out_dir_create(int parent, const char *path, const char *name, uid_t uid, gid_t gid,
                       shd_out_dir **out, shd_error *err);

/* Makes a file of `bytes` bytes (reserved on disk where the file system can), open for writing;
 * *fd_out is the caller's. */
int shd_out_dir_file(shd_out_dir *dir, const char *name, uint64_t bytes, int *fd_out,
                     shd_error *err);

/* Opens a file that was made, for writing. Any thread. */
int shd_out_dir_reopen(const shd_out_dir *dir, const char *name, int *fd_out, shd_error *err);

/* Makes a file with these contents. */
int shd_out_dir_write(shd_out_dir *dir, const char *name, const void *data, uint64_t bytes,
                      shd_error *err);

const char *shd_out_dir_path(const shd_out_dir *dir);
uint32_t shd_out_dir_n(const shd_out_dir *dir); /* files */
const char *shd_out_dir_name(const shd_out_dir *dir, uint32_t i);

/* Brings everything to disk and gives the directory its name; frees `dir`. On failure nothing of
 * it is left. SHD_EEXIST when the name has been taken meanwhile. */
int shd_out_dir_finish(shd_out_dir *dir, shd_error *err);

/* Removes everything; frees `dir`. NULL is fine. */
void shd_out_dir_discard(shd_out_dir *dir);

#ifdef __cplusplus
}
#endif
#endif

/* The weights of a model directory as Hugging Face lays it out: model.safetensors alone, or
 * model.safetensors.index.json and the shards it names, seen as one table of tensors. Floor F3;
 * after opening, reads are safe from any thread. */
#ifndef SHD_DAEMON_STORE_HF_FILES_H
#define SHD_DAEMON_STORE_HF_FILES_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/store/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_HF_WEIGHTS "model.safetensors"
#define SHD_HF_INDEX "model.safetensors.index.json"
#define SHD_HF_MAX_SHARDS 1000

/* Opens the file `name` of the directory read-only. SHD_ENOTFOUND: there is none. So who may read
 * what is decided elsewhere. */
typedef int (*shd_hf_open_fn)(void *arg, const char *name, int *fd_out, shd_error *err);

typedef struct shd_hf_tensor {
    const shd_st_tensor *tensor;
    uint32_t file;
} shd_hf_tensor;

typedef struct shd_hf_files shd_hf_files;

/* Reads every header. `dir` is for messages. Errors name the file: SHD_ENOTFOUND for a directory
 * without weights; SHD_EDATA for files that are not what they must be, an index that does not
 * parse or names a shard that is absent or outside the directory, a tensor that its shard does not
 * hold, and a shard's tensor that the index does not name. */
int shd_hf_files_open(const char *dir, shd_hf_open_fn open, void *arg, shd_hf_files **out,
                      shd_error *err);
void shd_hf_files_free(shd_hf_files *files); /* NULL is fine */

/* Closes the files; the table stays. No read may be under way or follow. */
void shd_hf_files_close(shd_hf_files *files);

uint32_t shd_hf_files_n(const shd_hf_files *files); /* tensors */
/* In the order of their names. */
const shd_hf_tensor *shd_hf_files_at(const shd_hf_files *files, uint32_t i);
/* NULL: no such tensor. */
const shd_hf_tensor *shd_hf_files_find(const shd_hf_files *files, const char *name);
/* Path of model.safetensors or of the index; for messages. */
const char *shd_hf_files_source(const shd_hf_files *files);
/* Of the file that holds the tensor; for messages. */
const char *shd_hf_files_path(const shd_hf_files *files, const shd_hf_tensor *tensor);

/* As shd_safetensors_read. */
int shd_hf_files_read(const shd_hf_files *files, const shd_hf_tensor *tensor, uint64_t first,
                      uint64_t n, void *out, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

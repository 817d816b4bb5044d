/* A job's parameters as safetensors files. Floor F4.
 *
 * Made and finished by the caller on any one thread (files are made with their headers); between,
 * every rank writes the part of every parameter that is its own to where it belongs, in pieces of
 * SHD_EXPORT_PIECE elements through host memory (8 bytes an element, given back after each round),
 * so that nothing of the size of the model is ever held. */
#ifndef SHD_DAEMON_TRAIN_EXPORT_H
#define SHD_DAEMON_TRAIN_EXPORT_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/model/model.h"
#include "daemon/store/out_dir.h"
#include "daemon/store/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_EXPORT_PIECE 65536
#define SHD_EXPORT_ROUND (INT64_C(4) << 20) /* elements of a parameter between two turns */
#define SHD_EXPORT_SHARD_BYTES UINT64_C(5000000000)
#define SHD_EXPORT_MAX_SHARDS 1000u

/* One parameter in the files. */
typedef struct shd_export_tensor {
    const char *name; /* NULL: as in the model's table */
    shd_st_dtype dtype;
} shd_export_tensor;

typedef struct shd_export shd_export;

/* Makes the files of all parameters of `model` in `dir` (borrowed, outlives it): model.safetensors,
 * or shards of at most max_shard_bytes of tensors (0: SHD_EXPORT_SHARD_BYTES; a tensor that is
 * larger has one of its own) and their index. tensors[n_params] says how each is written. The model
 * is not kept. SHD_EINVAL: more than SHD_EXPORT_MAX_SHARDS shards; else errors as of
 * shd_out_dir_file. */
int shd_export_create(const shd_model *model, const shd_export_tensor *tensors, uint32_t world,
                      uint64_t max_shard_bytes, shd_out_dir *dir, shd_export **out, shd_error *err);
void shd_export_free(shd_export *exp); /* NULL is fine */

uint64_t shd_export_bytes(const shd_export *exp); /* of all tensors */
uint32_t shd_export_tensors(const shd_export *exp);

/* 0, or what kept a rank from writing its part: SHD_EIO with what the system said, SHD_EINVAL for a
 * value beyond the range of the asked type. After the work item has ended. */
int shd_export_result(const shd_export *exp, shd_error *err);

struct shd_worker;

/* A rank's turn: at most `turn` rounds; *more when there are others left. Failures to write are
 * kept in `exp` and end it early: the job goes on. SHD_ECANCELLED when the job is aborted. */
int shd_export_run(shd_export *exp, struct shd_worker *worker, uint64_t turn, int *more,
                   shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

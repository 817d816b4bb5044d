/* The first values of a model's parameters from the files of a Hugging Face checkpoint: which
 * tensor is which parameter, and how a rank gets the part that is its own. Floor F4.
 *
 * A rank reads the bytes of its own shards alone, in pieces of SHD_IMPORT_PIECE elements through
 * host memory (8 bytes an element at most, given back after each call), so that nothing of the
 * size of the model is ever held. */
#ifndef SHD_DAEMON_TRAIN_IMPORT_H
#define SHD_DAEMON_TRAIN_IMPORT_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/device/device.h"
#include "daemon/model/model.h"
#include "daemon/store/hf_files.h"
#include "kernels/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHD_IMPORT_PIECE 65536

typedef struct shd_import shd_import;

/* Matches every parameter to a tensor and every tensor to a parameter. Names are those of the
 * model's table; all may lack the prefix of the base model ("transformer.", "model."). Buffers that
 * old checkpoints hold (causal masks, rotary frequencies) are passed over, and so is the head of a
 * model whose head is tied, if it is the same as the token table (that is found out by reading).
 * SHD_EDATA names what is missing, unexpected, of another shape, or of a type that is not read.
 * Takes over `files` on success; the model is not kept. */
int shd_import_create(const shd_model *model, shd_hf_files *files, shd_import **out,
                      shd_error *err);
void shd_import_free(shd_import *import); /* NULL is fine */

/* From here on values that would be infinite in `dtype`, the type of the job's computations, are
 * refused. */
void shd_import_limit(shd_import *import, shd_dtype dtype);

/* Fills dst[n] (memory of `dev`) with elements [first, first + n) of parameter `index` as fp32.
 * SHD_EDATA when a file has changed since it was opened, when a tied head differs, or for a value
 * beyond the limit (names tensor, element and value). Any thread; `import` is a shd_import. */
int shd_import_load(void *import, shd_device *dev, uint32_t index, int64_t first, int64_t n,
                    float *dst, shd_error *err);

/* Closes the files: nothing is loaded any more. What is known of parameters stays. */
void shd_import_close(shd_import *import);

/* Bytes that have been read for parameters so far; any thread. */
uint64_t shd_import_done(const shd_import *import);
/* Bytes of parameter `index` in its file. */
uint64_t shd_import_param_bytes(const shd_import *import, uint32_t index);
/* The type of parameter `index` in its file. */
shd_st_dtype shd_import_dtype(const shd_import *import, uint32_t index);
/* Its name there. */
const char *shd_import_name(const shd_import *import, uint32_t index);

#ifdef __cplusplus
}
#endif
#endif

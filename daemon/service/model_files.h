/* What a job keeps of the directories its model comes from: the configuration, which tensor is
 * which parameter, and the files that go along with an export. All of it is read with the rights of
 * the caller when the job is made. Floor F5; made on any thread, then shared: references are taken
 * and dropped on the loop alone. */
#ifndef SHD_DAEMON_SERVICE_MODEL_FILES_H
#define SHD_DAEMON_SERVICE_MODEL_FILES_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/base/input.h"
#include "daemon/model/hf_config.h"
#include "daemon/service/auth.h"
#include "daemon/train/export.h"
#include "daemon/train/import.h"
#include "daemon/train/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A file that is carried along, as it was when the job was made. */
typedef struct shd_carried {
    char *name;
    int fd; /* without a name of its own */
    uint64_t bytes;
} shd_carried;

typedef struct shd_model_files {
    uint32_t refs;
    char *config_json; /* NULL: a preset */
    size_t config_bytes;
    shd_model_config config;
    shd_hf_info info;
    shd_import *import;   /* NULL: random values */
    uint64_t total;       /* bytes that all ranks together read of it */
    shd_carried *carried; /* tokenizer and the like */
    uint32_t n_carried;
    shd_export_tensor *tensors; /* [n_params] as imported; NULL without import */
} shd_model_files;

/* Reads and checks the configuration in a model's directory, or the one that the path itself names
 * (shd_model_files_alone). One reference is the caller's. */
int shd_model_files_open(const shd_auth_dir *dir, shd_model_files **out, shd_error *err);

/* Is it the path of a configuration alone (*.json), which a plan can be made of and no job? */
int shd_model_files_alone(const char *path);

/* For a preset: no configuration file. */
shd_model_files *shd_model_files_none(void);

/* Opens the weights in `dir` and matches them to the parameters of spec->model. */
int shd_model_files_weights(shd_model_files *files, const shd_auth_dir *dir, const shd_spec *spec,
                            shd_error *err);

/* Takes copies of what an export carries along, into files without a name of `state_dir` (NULL: of
 * memory): of the tokenizer in the directory `at`, or when `at` is a `file` of that and of what
 * lies beside it. What is not there is left out. SHD_EDATA when there are more than
 * SHD_CARRIED_MAX_BYTES in all; SHD_EIO where the directory can hold no such file. */
#define SHD_CARRIED_MAX_BYTES (UINT64_C(256) << 20)
int shd_model_files_tokenizer(shd_model_files *files, const shd_auth_dir *at, int file,
                              const char *state_dir, shd_error *err);

/* The same of the generation_config.json in `dir`. The tokens that end a text by it, of `vocab`,
 * are added to files->info; errors also as shd_hf_generation_parse. */
int shd_model_files_generation(shd_model_files *files, const shd_auth_dir *dir, int64_t vocab,
                               const char *state_dir, shd_error *err);

/* Reads n bytes of a copy; SHD_EIO. */
int shd_carried_read(const shd_carried *carried, void *out, uint64_t n, uint64_t offset,
                     shd_error *err);

shd_model_files *shd_model_files_ref(shd_model_files *files); /* NULL is fine */
void shd_model_files_unref(shd_model_files *files);           /* likewise */

#ifdef __cplusplus
}
#endif
#endif

/* A job's data and tokenizer: what the caller named, opened with the caller's rights and checked
 * against each other. Floor F5; any thread. */
#ifndef SHD_DAEMON_SERVICE_JOB_DATA_H
#define SHD_DAEMON_SERVICE_JOB_DATA_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/data/source.h"
#include "daemon/data/tokenizer.h"
#include "daemon/service/auth.h"
#include "daemon/train/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A file of data: a source, or text that has to be tokenized first. */
typedef struct shd_job_file {
    shd_source *source; /* NULL: none, or to come */
    int fd;             /* of the text; -1: nothing to tokenize */
    shd_data_format format;
} shd_job_file;

#define SHD_JOB_FILE_NONE                                                                          \
    {                                                                                              \
        NULL, -1, SHD_DATA_AUTO                                                                    \
    }
void shd_job_file_fini(shd_job_file *file);

typedef struct shd_job_data {
    shd_tokenizer *tokenizer; /* NULL: none */
    shd_job_file data, eval;
} shd_job_data;

#define SHD_JOB_DATA_INIT                                                                          \
    {                                                                                              \
        NULL, SHD_JOB_FILE_NONE, SHD_JOB_FILE_NONE                                                 \
    }
void shd_job_data_fini(shd_job_data *data);

/* Opens a file as the caller may, into `out` (SHD_JOB_FILE_NONE before), and finds out what AUTO
 * means for it. */
int shd_job_file_open(const shd_opener *opener, const char *path, shd_data_format format,
                      shd_job_file *out, shd_error *err);
/* Does a tokenizer have to read it? */
int shd_job_file_is_text(const shd_job_file *file);
/* Makes a source of an open file where nothing has to be tokenized first: of token files, and of
 * text whose tokens are its bytes. `tok` may be NULL where it is no text. SHD_EINVAL for token
 * files without packing; errors of shd_source_open. */
int shd_job_file_finish(shd_job_file *file, const char *path, const shd_tokenizer *tok, int packing,
                        shd_error *err);

/* Opens what `spec` names. `model_dir`: the directory that --model is, NULL for a preset; its own
 * tokenizer is the default. spec->tokenizer becomes what is in use: "bytes", a path, or "" (none).
 * SHD_EINVAL: text without a tokenizer, a tokenizer with more ids than the model, windows of
 * documents over a file that has none. */
int shd_job_data_open(const shd_opener *opener, const char *model_dir, shd_spec *spec,
                      shd_job_data *out, shd_error *err);

#ifdef __cplusplus
}
#endif
#endif

#include "daemon/service/job_data.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/mem.h"
#include "daemon/service/tokenizer_files.h"

enum { BYTES = 256 };

void shd_job_file_fini(shd_job_file *file)
{
    shd_source_free(file->source);
    if (file->fd >= 0) {
        close(file->fd);
    }
    *file = (shd_job_file)SHD_JOB_FILE_NONE;
}

void shd_job_data_fini(shd_job_data *data)
{
    shd_tokenizer_free(data->tokenizer);
    data->tokenizer = NULL;
    shd_job_file_fini(&data->data);
    shd_job_file_fini(&data->eval);
}

int shd_job_file_open(const shd_opener *o, const char *path, shd_data_format format,
                      shd_job_file *out, shd_error *err)
{
    SHD_TRY(shd_auth_open(o->who, o->roots, o->n_roots, path, &out->fd, err));
    out->format = format;
    return format == SHD_DATA_AUTO ? shd_data_format_of(out->fd, path, &out->format, err) : SHD_OK;
}

int shd_job_file_is_text(const shd_job_file *file)
{
    return file->fd >= 0 && (file->format == SHD_DATA_TEXT || file->format == SHD_DATA_JSONL);
}

static int open_file(const shd_opener *o, const char *path, shd_data_format format,
                     shd_job_file *out, shd_error *err)
{
    return path == NULL ? SHD_OK : shd_job_file_open(o, path, format, out, err);
}

/* Puts the tokenizer that is in use into the spec. */
static int open_tokenizer(const shd_opener *o, const char *model_dir, shd_spec *spec, int needed,
                          shd_tokenizer **out, shd_error *err)
{
    const int given = spec->tokenizer != NULL && spec->tokenizer[0] != '\0';
    const char *name = given                        ? spec->tokenizer
                       : model_dir != NULL          ? model_dir
                       : spec->model.vocab == BYTES ? "bytes"
                                                    : "";
    if (name[0] == '\0' || (!given && spec->data_path != NULL && !needed)) {
        name = "";
    } else {
        const int rc = name == model_dir ? shd_tokenizer_open_dir(o, name, out, err)
                                         : shd_tokenizer_open(o, name, out, err);
        if (rc == SHD_ENOTFOUND && !given) {
            name = "";
        } else if (rc < 0) {
            return shd_error_prefix(err, rc, "--tokenizer");
        }
    }
    char *in_use = shd_strdup(name);
    free(spec->tokenizer);
    spec->tokenizer = in_use;
    return SHD_OK;
}

static int check_tokenizer(const shd_spec *spec, const shd_tokenizer *tok, int needed,
                           shd_error *err)
{
    if (needed && tok == NULL) {
        return shd_fail(err, SHD_EINVAL,
                        "--data '%s' is text, and model '%s' comes without a tokenizer: give "
                        "--tokenizer (bytes, or a file or directory), or token files (.bin)",
                        spec->data_path, spec->model_name);
    }
    if (tok != NULL && (int64_t)shd_tokenizer_vocab(tok) > spec->model.vocab) {
        return shd_fail(err, SHD_EINVAL,
                        "--tokenizer '%s' has %u ids, the model's vocabulary is %lld; take the "
                        "tokenizer that belongs to the model",
                        spec->tokenizer, shd_tokenizer_vocab(tok), (long long)spec->model.vocab);
    }
    return SHD_OK;
}

int shd_job_file_finish(shd_job_file *file, const char *path, const shd_tokenizer *tok, int packing,
                        shd_error *err)
{
    const int tokens = !shd_job_file_is_text(file);
    if (file->fd < 0) {
        return SHD_OK;
    }
    if (tokens && !packing) {
        return shd_fail(err, SHD_EINVAL,
                        "--packing off: '%s' is a file of tokens, which has no documents", path);
    }
    if (!tokens &&
        (file->format == SHD_DATA_JSONL || strcmp(shd_tokenizer_name(tok), "bytes") != 0)) {
        return SHD_OK;
    }
    SHD_TRY(shd_source_open(file->fd, path, file->format, &file->source, err));
    close(file->fd);
    file->fd = -1;
    return SHD_OK;
}

static int open_all(const shd_opener *o, const char *model_dir, shd_spec *spec, shd_job_data *out,
                    shd_error *err)
{
    SHD_TRY(open_file(o, spec->data_path, spec->data_format, &out->data, err));
    SHD_TRY(open_file(o, spec->eval_path, spec->data_format, &out->eval, err));
    const int needed = shd_job_file_is_text(&out->data) || shd_job_file_is_text(&out->eval);
    SHD_TRY(open_tokenizer(o, model_dir, spec, needed, &out->tokenizer, err));
    SHD_TRY(check_tokenizer(spec, out->tokenizer, needed, err));
    SHD_TRY(shd_job_file_finish(&out->data, spec->data_path, out->tokenizer, spec->packing, err));
    return shd_job_file_finish(&out->eval, spec->eval_path, out->tokenizer, spec->packing, err);
}

int shd_job_data_open(const shd_opener *opener, const char *model_dir, shd_spec *spec,
                      shd_job_data *out, shd_error *err)
{
    *out = (shd_job_data)SHD_JOB_DATA_INIT;
    const int rc = open_all(opener, model_dir, spec, out, err);
    if (rc < 0) {
        shd_job_data_fini(out);
    }
    return rc;
}

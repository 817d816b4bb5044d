#include "daemon/service/model_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/mem.h"
#include "daemon/base/text.h"
#include "daemon/store/safetensors.h"

#define COPY_BYTES (1u << 20)
#define GENERATION "generation_config.json"

static char *path_in(const shd_auth_dir *dir, const char *name)
{
    return shd_asprintf("%s/%s", dir->path, name);
}

/* Opens `name` of the directory to be read; input->fd is -1 afterwards on failure. */
static int open_input(const shd_auth_dir *dir, const char *name, shd_input *input, shd_error *err)
{
    int fd;
    *input = (shd_input){.fd = -1};
    SHD_TRY(shd_auth_dir_open((void *)dir, name, &fd, err));
    char *path = path_in(dir, name);
    const int rc = shd_input_open(input, fd, path, err);
    free(path);
    return rc;
}

/* ---- the configuration ---- */

/* The contents of a small file; *out is to be freed. */
static int read_json(const shd_input *input, char **out, shd_error *err)
{
    if (input->size > SHD_HF_CONFIG_MAX_BYTES) {
        return shd_fail(err, SHD_EDATA, "'%s' has %llu bytes; at most %d are read", input->path,
                        (unsigned long long)input->size, SHD_HF_CONFIG_MAX_BYTES);
    }
    char *json = shd_malloc(input->size + 1);
    const int rc = shd_input_read(input, json, input->size, 0, err);
    if (rc < 0) {
        free(json);
        return rc;
    }
    *out = json;
    return 0;
}

static int read_config(shd_model_files *f, const shd_input *input, shd_error *err)
{
    SHD_TRY(read_json(input, &f->config_json, err));
    f->config_bytes = input->size;
    const int rc = shd_hf_config_parse(f->config_json, f->config_bytes, &f->config, &f->info, err);
    return rc < 0 ? shd_error_prefix(err, rc, "'%s'", input->path) : 0;
}

shd_model_files *shd_model_files_none(void)
{
    shd_model_files *f = shd_calloc(1, sizeof(*f));
    f->refs = 1;
    return f;
}

int shd_model_files_alone(const char *path)
{
    return shd_ends_with(path, ".json");
}

/* Opens the configuration that `at` names. */
static int open_config(const shd_auth_dir *at, shd_input *input, shd_error *err)
{
    if (!shd_model_files_alone(at->path)) {
        return open_input(at, "config.json", input, err);
    }
    *input = (shd_input){.fd = -1};
    char *path = shd_strdup(at->path), *slash = strrchr(path, '/');
    if (slash == NULL) {
        free(path);
        return shd_fail(err, SHD_EINVAL, "'%s' is not an absolute path", at->path);
    }
    slash[slash == path] = '\0'; /* "/x.json" lies in "/" */
    shd_auth_dir dir = *at;
    dir.path = path;
    const int rc = open_input(&dir, strrchr(at->path, '/') + 1, input, err);
    free(path);
    return rc;
}

int shd_model_files_open(const shd_auth_dir *dir, shd_model_files **out, shd_error *err)
{
    shd_input input;
    SHD_TRY(open_config(dir, &input, err));
    shd_model_files *f = shd_model_files_none();
    const int rc = read_config(f, &input, err);
    shd_input_fini(&input);
    if (rc < 0) {
        shd_model_files_unref(f);
        return rc;
    }
    *out = f;
    return 0;
}

/* ---- the weights ---- */

/* How each parameter stands in the files, and what the ranks will read: every element once in each
 * group of ranks that divide it among them. */
static void note_tensors(shd_model_files *f, const shd_model *model, const shd_spec *spec)
{
    const uint32_t n = shd_model_n_params(model);
    const shd_strategy *s = &spec->strategy;
    f->tensors = shd_calloc(n, sizeof(*f->tensors));
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t degree =
            shd_spec_freezes(spec, shd_model_param(model, i)->name) ? s->p : s->o;
        f->tensors[i] = (shd_export_tensor){.name = shd_import_name(f->import, i),
                                            .dtype = shd_import_dtype(f->import, i)};
        f->total += shd_import_param_bytes(f->import, i) * (s->world / degree);
    }
}

/* Without weights in it: is there a directory at all? */
static int explain_absence(const shd_auth_dir *dir, shd_error *err)
{
    shd_error why;
    int fd;
    const int rc = shd_auth_open(dir->who, dir->roots, dir->n_roots, dir->path, &fd, &why);
    if (rc == 0) {
        close(fd);
        return shd_fail(err, SHD_EINVAL, "'%s' is a file; give the directory it is in", dir->path);
    }
    if (rc == SHD_ENOTFOUND) {
        return shd_fail(err, rc, "there is no directory '%s'", dir->path);
    }
    return SHD_ENOTFOUND;
}

static int open_weights(const shd_auth_dir *dir, shd_hf_files **out, shd_error *err)
{
    const int rc = shd_hf_files_open(dir->path, shd_auth_dir_open, (void *)dir, out, err);
    return rc == SHD_ENOTFOUND ? explain_absence(dir, err) : rc;
}

int shd_model_files_weights(shd_model_files *f, const shd_auth_dir *dir, const shd_spec *spec,
                            shd_error *err)
{
    shd_hf_files *weights = NULL;
    shd_model *model = NULL;
    SHD_TRY(open_weights(dir, &weights, err));
    int rc = shd_model_create(&spec->model, &model, err);
    if (rc == 0) {
        rc = shd_import_create(model, weights, &f->import, err);
    }
    if (rc == 0) {
        shd_import_limit(f->import, spec->dtype);
    }
    if (rc == 0) {
        note_tensors(f, model, spec);
    } else {
        shd_hf_files_free(weights);
    }
    shd_model_free(model);
    return rc;
}

/* ---- what is carried along ---- */

static int copy_file(const shd_input *input, int fd, shd_error *err)
{
    char *buffer = shd_malloc(COPY_BYTES);
    int rc = 0;
    for (uint64_t at = 0; rc == 0 && at < input->size;) {
        const uint64_t left = input->size - at, n = left < COPY_BYTES ? left : COPY_BYTES;
        rc = shd_input_read(input, buffer, n, at, err);
        if (rc == 0) {
            rc = shd_safetensors_write(fd, "a copy in the state directory", buffer, n, at, err);
        }
        at += n;
    }
    free(buffer);
    return rc;
}

static int open_nameless(const char *state_dir)
{
    return state_dir != NULL ? open(state_dir, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600)
                             : memfd_create("carried", MFD_CLOEXEC);
}

static int carry(shd_model_files *f, const shd_input *input, const char *name,
                 const char *state_dir, shd_error *err)
{
    const int fd = open_nameless(state_dir);
    if (fd < 0) {
        return shd_fail(err, SHD_EIO,
                        "cannot make a file without a name in %s for a copy of '%s': %s",
                        state_dir != NULL ? state_dir : "memory", input->path, strerror(errno));
    }
    f->carried = shd_reallocarray(f->carried, f->n_carried + 1, sizeof(*f->carried));
    f->carried[f->n_carried++] =
        (shd_carried){.name = shd_strdup(name), .fd = fd, .bytes = input->size};
    return copy_file(input, fd, err);
}

/* Carries `name` of `dir` along, as `as`, if it is there; then *input is open, and the caller's. */
static int carry_if_there(shd_model_files *f, const shd_auth_dir *dir, const char *name,
                          const char *as, const char *state_dir, shd_input *input, shd_error *err)
{
    int rc = open_input(dir, name, input, err);
    if (rc < 0) {
        return rc == SHD_ENOTFOUND ? 0 : rc;
    }
    uint64_t total = input->size;
    for (uint32_t i = 0; i < f->n_carried; i++) {
        total += f->carried[i].bytes;
    }
    rc = total > SHD_CARRIED_MAX_BYTES
             ? shd_fail(err, SHD_EDATA, "the tokenizer's files in '%s' have more than %llu bytes",
                        dir->path, (unsigned long long)SHD_CARRIED_MAX_BYTES)
             : carry(f, input, as, state_dir, err);
    if (rc < 0) {
        shd_input_fini(input);
    }
    return rc;
}

int shd_model_files_generation(shd_model_files *f, const shd_auth_dir *dir, int64_t vocab,
                               const char *state_dir, shd_error *err)
{
    shd_input input;
    char *json = NULL;
    SHD_TRY(carry_if_there(f, dir, GENERATION, GENERATION, state_dir, &input, err));
    if (input.fd < 0) {
        return 0;
    }
    int rc = read_json(&input, &json, err);
    if (rc == 0) {
        rc = shd_hf_generation_parse(json, input.size, vocab, &f->info, err);
        rc = rc < 0 ? shd_error_prefix(err, rc, "'%s'", dir->path) : 0;
    }
    free(json);
    shd_input_fini(&input);
    return rc;
}

int shd_model_files_tokenizer(shd_model_files *f, const shd_auth_dir *at, int file,
                              const char *state_dir, shd_error *err)
{
    static const char *const names[] = {
        "tokenizer.json",    "tokenizer.model",       "vocab.json",
        "merges.txt",        "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "chat_template.jinja",   "chat_template.json",
    };
    enum { OF_ITSELF = 4 }; /* the first ones; the others lie beside it */
    const size_t n = sizeof(names) / sizeof(names[0]);
    char *path = shd_strdup(at->path), *slash = strrchr(path, '/');
    shd_auth_dir dir = *at;
    shd_input input;
    int rc = 0;
    if (file) {
        slash[slash == path] = '\0'; /* "/x.json" lies in "/" */
        dir.path = path;
        rc =
            carry_if_there(f, &dir, strrchr(at->path, '/') + 1,
                           names[shd_ends_with(at->path, ".json") ? 0 : 1], state_dir, &input, err);
        if (rc == 0) {
            shd_input_fini(&input);
        }
    }
    for (size_t i = file ? OF_ITSELF : 0; rc == 0 && i < n; i++) {
        rc = carry_if_there(f, &dir, names[i], names[i], state_dir, &input, err);
        if (rc == 0) {
            shd_input_fini(&input);
        }
    }
    free(path);
    return rc;
}

int shd_carried_read(const shd_carried *carried, void *out, uint64_t n, uint64_t offset,
                     shd_error *err)
{
    for (char *p = out; n > 0;) {
        const ssize_t got = pread(carried->fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return shd_fail(err, SHD_EIO, "cannot read the copy of '%s': %s", carried->name,
                            got < 0 ? strerror(errno) : "it ends early");
        }
        p += got;
        offset += (uint64_t)got;
        n -= (uint64_t)got;
    }
    return 0;
}

/* ---- references ---- */

shd_model_files *shd_model_files_ref(shd_model_files *f)
{
    if (f != NULL) {
        f->refs++;
    }
    return f;
}

void shd_model_files_unref(shd_model_files *f)
{
    if (f == NULL || --f->refs > 0) {
        return;
    }
    for (uint32_t i = 0; i < f->n_carried; i++) {
        close(f->carried[i].fd);
        free(f->carried[i].name);
    }
    shd_import_free(f->import);
    free(f->carried);
    free(f->tensors);
    free(f->config_json);
    free(f);
}

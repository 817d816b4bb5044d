/* Parameters to files; see export.h. Floor F4. */
#include "daemon/train/export.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/mem.h"
#include "daemon/store/convert.h"
#include "daemon/store/hf_files.h"
#include "daemon/train/worker_internal.h"

typedef struct placed {
    shd_st_tensor tensor; /* offset: in its file */
    uint32_t file;
    uint64_t rounds; /* of all parameters before it */
} placed;

struct shd_export {
    shd_out_dir *dir; /* borrowed */
    uint32_t n;
    placed *params; /* [n] in the order of the model's table */
    char **files;   /* [n_files] names */
    char **paths;   /* [n_files] for messages */
    uint32_t n_files;
    uint64_t bytes, rounds;
    uint64_t *done; /* [world] rounds that each rank has had */
    atomic_int failed;
    pthread_mutex_t lock;
    shd_error err; /* of the rank that failed first */
};

/* ---- laying out ---- */

static int64_t numel_of(const shd_st_tensor *t)
{
    return t->ndim == 2 ? t->shape[0] * t->shape[1] : t->shape[0];
}

static uint64_t rounds_of(const placed *p)
{
    return ((uint64_t)numel_of(&p->tensor) + SHD_EXPORT_ROUND - 1) / SHD_EXPORT_ROUND;
}

/* In order, as much into each file as fits. */
static int assign_files(shd_export *exp, uint64_t most, shd_error *err)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < exp->n; i++) {
        placed *p = &exp->params[i];
        const uint64_t bytes = (uint64_t)numel_of(&p->tensor) * shd_st_dtype_size(p->tensor.dtype);
        if (exp->n_files == 0 || (held > 0 && bytes > most - held)) {
            exp->n_files++;
            held = 0;
        }
        p->file = exp->n_files - 1;
        p->rounds = exp->rounds;
        held = bytes < most - held ? held + bytes : most;
        exp->rounds += rounds_of(p);
        exp->bytes += bytes;
    }
    if (exp->n_files > SHD_EXPORT_MAX_SHARDS) {
        return shd_fail(err, SHD_EINVAL,
                        "max_shard_bytes %llu makes %u files of %llu bytes of tensors; at most %u "
                        "are written",
                        (unsigned long long)most, exp->n_files, (unsigned long long)exp->bytes,
                        SHD_EXPORT_MAX_SHARDS);
    }
    exp->files = shd_calloc(exp->n_files, sizeof(*exp->files));
    exp->paths = shd_calloc(exp->n_files, sizeof(*exp->paths));
    for (uint32_t f = 0; f < exp->n_files; f++) {
        exp->files[f] = exp->n_files == 1
                            ? shd_strdup(SHD_HF_WEIGHTS)
                            : shd_asprintf("model-%05u-of-%05u.safetensors", f + 1, exp->n_files);
        exp->paths[f] = shd_asprintf("%s/%s", shd_out_dir_path(exp->dir), exp->files[f]);
    }
    return 0;
}

static int write_head(shd_export *exp, uint32_t f, const void *head, uint64_t head_bytes,
                      uint64_t size, shd_error *err)
{
    int fd;
    SHD_TRY(shd_out_dir_file(exp->dir, exp->files[f], size, &fd, err));
    const int rc = shd_safetensors_write(fd, exp->paths[f], head, head_bytes, 0, err);
    close(fd);
    return rc;
}

/* The parameters of a file stand together in the table. */
static int make_file(shd_export *exp, uint32_t f, uint32_t first, uint32_t n, shd_error *err)
{
    shd_st_tensor *tensors = shd_calloc(n, sizeof(*tensors));
    void *head;
    uint64_t head_bytes;
    for (uint32_t i = 0; i < n; i++) {
        tensors[i] = exp->params[first + i].tensor;
    }
    const uint64_t size = shd_safetensors_layout(tensors, n, &head, &head_bytes);
    for (uint32_t i = 0; i < n; i++) {
        exp->params[first + i].tensor = tensors[i];
    }
    free(tensors);
    const int rc = write_head(exp, f, head, head_bytes, size, err);
    free(head);
    return rc;
}

static int make_files(shd_export *exp, shd_error *err)
{
    for (uint32_t first = 0, n; first < exp->n; first += n) {
        const uint32_t f = exp->params[first].file;
        for (n = 1; first + n < exp->n && exp->params[first + n].file == f; n++) {
        }
        SHD_TRY(make_file(exp, f, first, n, err));
    }
    return 0;
}

static int make_index(shd_export *exp, shd_error *err)
{
    json_t *map = json_object();
    for (uint32_t i = 0; i < exp->n; i++) {
        json_object_set_new(map, exp->params[i].tensor.name,
                            json_string(exp->files[exp->params[i].file]));
    }
    json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)exp->bytes,
                              "weight_map", map);
    char *text = json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(index);
    if (text == NULL) {
        return shd_fail(err, SHD_EINTERNAL, "the index cannot be put into words");
    }
    const int rc = shd_out_dir_write(exp->dir, SHD_HF_INDEX, text, strlen(text), err);
    free(text);
    return rc;
}

int shd_export_create(const shd_model *model, const shd_export_tensor *tensors, uint32_t world,
                      uint64_t max_shard_bytes, shd_out_dir *dir, shd_export **out, shd_error *err)
{
    shd_export *exp = shd_calloc(1, sizeof(*exp));
    exp->dir = dir;
    exp->n = shd_model_n_params(model);
    exp->params = shd_calloc(exp->n, sizeof(*exp->params));
    exp->done = shd_calloc(world, sizeof(*exp->done));
    pthread_mutex_init(&exp->lock, NULL);
    for (uint32_t i = 0; i < exp->n; i++) {
        const shd_param_info *info = shd_model_param(model, i);
        const char *name = tensors[i].name != NULL ? tensors[i].name : info->name;
        shd_st_tensor *t = &exp->params[i].tensor;
        *t = (shd_st_tensor){
            .name = shd_strdup(name), .dtype = tensors[i].dtype, .ndim = info->ndim};
        memcpy(t->shape, info->shape, (size_t)info->ndim * sizeof(*t->shape));
    }
    int rc = assign_files(exp, max_shard_bytes > 0 ? max_shard_bytes : SHD_EXPORT_SHARD_BYTES, err);
    if (rc == 0) {
        rc = make_files(exp, err);
    }
    if (rc == 0 && exp->n_files > 1) {
        rc = make_index(exp, err);
    }
    if (rc < 0) {
        shd_export_free(exp);
        return rc;
    }
    *out = exp;
    return 0;
}

void shd_export_free(shd_export *exp)
{
    if (exp == NULL) {
        return;
    }
    for (uint32_t i = 0; i < exp->n; i++) {
        free(exp->params[i].tensor.name);
    }
    for (uint32_t f = 0; exp->files != NULL && f < exp->n_files; f++) {
        free(exp->files[f]);
        free(exp->paths[f]);
    }
    pthread_mutex_destroy(&exp->lock);
    free(exp->params);
    free(exp->files);
    free(exp->paths);
    free(exp->done);
    free(exp);
}

uint64_t shd_export_bytes(const shd_export *exp)
{
    return exp->bytes;
}

uint32_t shd_export_tensors(const shd_export *exp)
{
    return exp->n;
}

int shd_export_result(const shd_export *exp, shd_error *err)
{
    if (atomic_load(&exp->failed) && err != NULL) {
        *err = exp->err;
    }
    return atomic_load(&exp->failed) ? exp->err.code : 0;
}

/* ---- writing, on the ranks ---- */

/* Does this rank write its part of the parameter, or one with the same part? */
static int is_first_copy(const shd_worker *w, uint32_t index)
{
    const shd_unit *unit = &w->units.units[w->shared->layout.slots[index].unit];
    return shd_comm_rank(w->comm) < (unit->frozen ? unit->strategy.p : unit->strategy.o);
}

/* Elements of `part` as fp32 on the host. */
static void fetch(const shd_worker *w, const shd_param_part *part, int64_t at, size_t n, void *raw,
                  float *out)
{
    const size_t size = shd_dtype_size(part->dtype);
    const char *from = (const char *)part->data + (size_t)at * size;
    if (part->dtype == SHD_F32) {
        shd_device_to_host(w->dev, out, from, n * size);
        return;
    }
    shd_device_to_host(w->dev, raw, from, n * size);
    shd_convert_to_f32(out, raw, part->dtype == SHD_BF16 ? SHD_ST_BF16 : SHD_ST_F16, n);
}

static int write_piece(const shd_export *exp, const shd_worker *w, const placed *p, int fd,
                       const shd_param_part *part, int64_t at, size_t n, float *raw, float *fp32,
                       shd_error *err)
{
    const shd_st_tensor *t = &p->tensor;
    const size_t size = shd_st_dtype_size(t->dtype);
    fetch(w, part, at, n, raw, fp32);
    const size_t good = shd_convert_from_f32(raw, t->dtype, fp32, n);
    if (good < n) {
        return shd_fail(err, SHD_EINVAL,
                        "parameter '%s' holds %g, which %s cannot; export as bf16 or fp32", t->name,
                        (double)fp32[good], shd_st_dtype_name(t->dtype));
    }
    return shd_safetensors_write(fd, exp->paths[p->file], raw, n * size,
                                 t->offset + (uint64_t)(part->first + at) * size, err);
}

/* Writes what this rank has of elements [begin, end) of parameter `index`. */
static int write_range(const shd_export *exp, const shd_worker *w, uint32_t index, int64_t begin,
                       int64_t end, shd_error *err)
{
    const placed *p = &exp->params[index];
    const shd_param_part part = shd_worker_param_part(w, index);
    int64_t at = begin > part.first ? begin - part.first : 0;
    const int64_t stop = end - part.first < part.n ? end - part.first : part.n;
    if (at >= stop || !is_first_copy(w, index)) {
        return 0;
    }
    int fd;
    SHD_TRY(shd_out_dir_reopen(exp->dir, exp->files[p->file], &fd, err));
    float *raw = shd_reallocarray(NULL, SHD_EXPORT_PIECE, 2 * sizeof(*raw));
    int rc = 0;
    while (rc == 0 && at < stop) {
        const int64_t n = stop - at < SHD_EXPORT_PIECE ? stop - at : SHD_EXPORT_PIECE;
        rc = write_piece(exp, w, p, fd, &part, at, (size_t)n, raw, raw + SHD_EXPORT_PIECE, err);
        at += n;
    }
    free(raw);
    close(fd);
    return rc;
}

/* The parameter whose part round `round` is. */
static uint32_t param_of_round(const shd_export *exp, uint64_t round)
{
    uint32_t low = 0, high = exp->n - 1;
    while (low < high) {
        const uint32_t mid = high - (high - low) / 2;
        if (exp->params[mid].rounds <= round) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    return low;
}

static void run_round(shd_export *exp, const shd_worker *w, uint64_t round)
{
    const uint32_t index = param_of_round(exp, round);
    const placed *p = &exp->params[index];
    const int64_t begin = (int64_t)(round - p->rounds) * SHD_EXPORT_ROUND;
    const int64_t numel = numel_of(&p->tensor);
    const int64_t end = numel - begin < SHD_EXPORT_ROUND ? numel : begin + SHD_EXPORT_ROUND;
    shd_error why = {0};
    const int rc = write_range(exp, w, index, begin, end, &why);
    if (rc < 0) {
        pthread_mutex_lock(&exp->lock);
        if (!atomic_load(&exp->failed)) {
            exp->err = why;
            exp->err.code = rc;
            atomic_store(&exp->failed, 1);
        }
        pthread_mutex_unlock(&exp->lock);
    }
}

int shd_export_run(shd_export *exp, struct shd_worker *w, uint64_t turn, int *more, shd_error *err)
{
    uint64_t *done = &exp->done[shd_comm_rank(w->comm)];
    const uint64_t left = exp->rounds - *done;
    const uint64_t end = *done + (turn < left ? turn : left);
    while (*done < end && !atomic_load(&exp->failed)) {
        SHD_TRY(shd_comm_check(w->comm, err));
        run_round(exp, w, (*done)++);
    }
    *done = end;
    *more = end < exp->rounds && !atomic_load(&exp->failed);
    return 0;
}

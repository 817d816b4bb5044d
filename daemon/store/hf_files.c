/* A model directory's weights; see hf_files.h. Floor F3. */
#include "daemon/store/hf_files.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/base/input.h"
#include "daemon/store/json_walk.h"

enum {
    MAX_INDEX = 64 << 20, /* bytes of an index */
    MAX_VALUE = 64 << 10, /* bytes of one of its values beside the weight map */
    MAX_TENSORS = 1 << 18,
    MAX_FILE_NAME = 255,
    SHOWN = 120 /* characters of a name in a message */
};

struct shd_hf_files {
    char *dir;
    char *source;
    shd_safetensors **shards;
    uint32_t n_shards;
    shd_hf_tensor *tensors; /* by name */
    uint32_t n;
};

/* The index as it stands in the file. */
typedef struct index_entry {
    char *name;
    uint32_t shard;
    int found;
} index_entry;

typedef struct index_table {
    char **shards;
    uint32_t n_shards;
    index_entry *entries;
    uint32_t n, cap;
} index_table;

static void index_fini(index_table *index)
{
    for (uint32_t i = 0; i < index->n_shards; i++) {
        free(index->shards[i]);
    }
    for (uint32_t i = 0; i < index->n; i++) {
        free(index->entries[i].name);
    }
    free(index->shards);
    free(index->entries);
}

/* ---- the index ---- */

static int add_shard(index_table *index, const char *name, uint32_t *out, shd_error *err)
{
    for (uint32_t i = index->n_shards; i > 0; i--) { /* the last one is named again and again */
        if (strcmp(index->shards[i - 1], name) == 0) {
            *out = i - 1;
            return 0;
        }
    }
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL) {
        return shd_fail(err, SHD_EDATA, "it names '%.*s', which is no file of the directory", SHOWN,
                        name);
    }
    if (index->n_shards == SHD_HF_MAX_SHARDS) {
        return shd_fail(err, SHD_EDATA, "it names more than %d files", SHD_HF_MAX_SHARDS);
    }
    *out = index->n_shards++;
    index->shards = shd_reallocarray(index->shards, index->n_shards, sizeof(*index->shards));
    index->shards[*out] = shd_strdup(name);
    return 0;
}

static int read_weight_map(index_table *index, shd_json_walk *walk, shd_error *err)
{
    shd_json_walk inner = *walk;
    char *name, *shard;
    int rc = shd_json_walk_enter(&inner, err);
    while (rc == 0 && (rc = shd_json_walk_next(&inner, &name, err)) > 0) {
        if (index->n == MAX_TENSORS) {
            free(name);
            rc = shd_fail(err, SHD_EDATA, "it names more than %d tensors", MAX_TENSORS);
            break;
        }
        if (index->n == index->cap) {
            index->cap = index->cap > 0 ? 2 * index->cap : 64;
            index->entries = shd_reallocarray(index->entries, index->cap, sizeof(*index->entries));
        }
        index_entry *entry = &index->entries[index->n++];
        *entry = (index_entry){.name = name};
        rc = shd_json_walk_string(&inner, MAX_FILE_NAME + 2, &shard, err);
        if (rc == 0) {
            rc = add_shard(index, shard, &entry->shard, err);
        }
        free(shard);
    }
    walk->at = inner.at;
    return rc;
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const index_entry *)a)->name, ((const index_entry *)b)->name);
}

static int parse_index(index_table *index, const char *text, size_t size, shd_error *err)
{
    shd_json_walk walk = {.text = text, .size = size};
    int maps = 0, rc = shd_json_walk_enter(&walk, err);
    char *key;
    while (rc == 0 && (rc = shd_json_walk_next(&walk, &key, err)) > 0) {
        if (strcmp(key, "weight_map") == 0 && maps++ == 0) {
            rc = read_weight_map(index, &walk, err);
        } else if (strcmp(key, "weight_map") == 0) {
            rc = shd_fail(err, SHD_EDATA, "weight_map comes twice");
        } else {
            json_t *value = NULL;
            rc = shd_json_walk_value(&walk, MAX_VALUE, &value, err);
            json_decref(value);
        }
        free(key);
    }
    SHD_TRY(rc);
    SHD_TRY(shd_json_walk_finish(&walk, err));
    if (index->n == 0) {
        return shd_fail(err, SHD_EDATA, "it has no weight_map, or an empty one");
    }
    qsort(index->entries, index->n, sizeof(*index->entries), compare_entries);
    for (uint32_t i = 1; i < index->n; i++) {
        if (strcmp(index->entries[i].name, index->entries[i - 1].name) == 0) {
            return shd_fail(err, SHD_EDATA, "it names tensor '%.*s' twice", SHOWN,
                            index->entries[i].name);
        }
    }
    return 0;
}

/* Takes over fd. */
static int read_index(index_table *index, int fd, const char *path, shd_error *err)
{
    shd_input input;
    SHD_TRY(shd_input_open(&input, fd, path, err));
    char *text = NULL;
    int rc = 0;
    if (input.size > MAX_INDEX) {
        rc = shd_fail(err, SHD_EDATA, "'%s' has %llu bytes; an index of at most %d is read", path,
                      (unsigned long long)input.size, MAX_INDEX);
    } else {
        text = shd_malloc(input.size + 1);
        rc = shd_input_read(&input, text, input.size, 0, err);
        if (rc == 0) {
            rc = parse_index(index, text, input.size, err);
            rc = rc < 0 ? shd_error_prefix(err, rc, "'%s'", path) : rc;
        }
    }
    free(text);
    shd_input_fini(&input);
    return rc;
}

/* ---- the shards ---- */

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const shd_hf_tensor *)a)->tensor->name,
                  ((const shd_hf_tensor *)b)->tensor->name);
}

/* Opens shard `file` and adds its tensors to the table. */
static int add_file(shd_hf_files *f, int fd, const char *path, shd_error *err)
{
    shd_safetensors *shard;
    SHD_TRY(shd_safetensors_open(fd, path, &shard, err));
    const uint32_t more = shd_safetensors_n(shard);
    f->shards[f->n_shards] = shard;
    f->tensors = shd_reallocarray(f->tensors, (size_t)f->n + more + 1, sizeof(*f->tensors));
    for (uint32_t i = 0; i < more; i++) {
        f->tensors[f->n++] = (shd_hf_tensor){shd_safetensors_at(shard, i), f->n_shards};
    }
    f->n_shards++;
    return 0;
}

/* Every tensor of the last file that was added stands in the index, under that file. */
static int check_file(const shd_hf_files *f, index_table *index, uint32_t first, shd_error *err)
{
    const uint32_t file = f->n_shards - 1;
    for (uint32_t i = first; i < f->n; i++) {
        const index_entry key = {.name = f->tensors[i].tensor->name};
        index_entry *entry = bsearch(&key, index->entries, index->n, sizeof(key), compare_entries);
        if (entry == NULL || entry->shard != file) {
            return shd_fail(err, SHD_EDATA,
                            "'%s' holds tensor '%.*s', which the index %s; is the download whole?",
                            shd_safetensors_path(f->shards[file]), SHOWN, key.name,
                            entry == NULL ? "does not name" : "says is in another file");
        }
        entry->found = 1;
    }
    return 0;
}

static int open_shards(shd_hf_files *f, index_table *index, shd_hf_open_fn open, void *arg,
                       shd_error *err)
{
    f->shards = shd_calloc(index->n_shards, sizeof(*f->shards));
    for (uint32_t s = 0; s < index->n_shards; s++) {
        int fd;
        int rc = open(arg, index->shards[s], &fd, err);
        if (rc == SHD_ENOTFOUND) {
            return shd_fail(err, SHD_EDATA,
                            "the index '%s/" SHD_HF_INDEX "' names '%.*s', which is not there; is "
                            "the download whole?",
                            f->dir, SHOWN, index->shards[s]);
        }
        SHD_TRY(rc);
        char *path = shd_asprintf("%s/%s", f->dir, index->shards[s]);
        const uint32_t first = f->n;
        rc = add_file(f, fd, path, err);
        free(path);
        SHD_TRY(rc);
        SHD_TRY(check_file(f, index, first, err));
    }
    for (uint32_t i = 0; i < index->n; i++) {
        if (!index->entries[i].found) {
            return shd_fail(err, SHD_EDATA,
                            "the index says that tensor '%.*s' is in '%s/%.*s', which does not "
                            "hold it",
                            SHOWN, index->entries[i].name, f->dir, SHOWN,
                            index->shards[index->entries[i].shard]);
        }
    }
    return 0;
}

static int open_indexed(shd_hf_files *f, int fd, shd_hf_open_fn open, void *arg, shd_error *err)
{
    index_table index = {0};
    f->source = shd_asprintf("%s/" SHD_HF_INDEX, f->dir);
    int rc = read_index(&index, fd, f->source, err);
    if (rc == 0) {
        rc = open_shards(f, &index, open, arg, err);
    }
    index_fini(&index);
    return rc;
}

static int open_all(shd_hf_files *f, shd_hf_open_fn open, void *arg, shd_error *err)
{
    int fd;
    int rc = open(arg, SHD_HF_WEIGHTS, &fd, err);
    if (rc == 0) {
        f->source = shd_asprintf("%s/" SHD_HF_WEIGHTS, f->dir);
        f->shards = shd_calloc(1, sizeof(*f->shards));
        return add_file(f, fd, f->source, err);
    }
    if (rc != SHD_ENOTFOUND) {
        return rc;
    }
    rc = open(arg, SHD_HF_INDEX, &fd, err);
    if (rc == SHD_ENOTFOUND) {
        return shd_fail(err, SHD_ENOTFOUND,
                        "'%s' holds neither " SHD_HF_WEIGHTS " nor " SHD_HF_INDEX
                        "; weights in other formats must be converted to safetensors first",
                        f->dir);
    }
    return rc < 0 ? rc : open_indexed(f, fd, open, arg, err);
}

int shd_hf_files_open(const char *dir, shd_hf_open_fn open, void *arg, shd_hf_files **out,
                      shd_error *err)
{
    shd_hf_files *f = shd_calloc(1, sizeof(*f));
    f->dir = shd_strdup(dir);
    const int rc = open_all(f, open, arg, err);
    if (rc < 0) {
        shd_hf_files_free(f);
        return rc;
    }
    if (f->n > 0) {
        qsort(f->tensors, f->n, sizeof(*f->tensors), compare_tensors);
    }
    *out = f;
    return 0;
}

void shd_hf_files_free(shd_hf_files *f)
{
    if (f == NULL) {
        return;
    }
    for (uint32_t i = 0; i < f->n_shards; i++) {
        shd_safetensors_free(f->shards[i]);
    }
    free(f->shards);
    free(f->tensors);
    free(f->dir);
    free(f->source);
    free(f);
}

void shd_hf_files_close(shd_hf_files *f)
{
    for (uint32_t i = 0; i < f->n_shards; i++) {
        shd_safetensors_close(f->shards[i]);
    }
}

uint32_t shd_hf_files_n(const shd_hf_files *f)
{
    return f->n;
}

const shd_hf_tensor *shd_hf_files_at(const shd_hf_files *f, uint32_t i)
{
    return &f->tensors[i];
}

const shd_hf_tensor *shd_hf_files_find(const shd_hf_files *f, const char *name)
{
    const shd_st_tensor tensor = {.name = (char *)name};
    const shd_hf_tensor key = {.tensor = &tensor};
    return f->n == 0 ? NULL : bsearch(&key, f->tensors, f->n, sizeof(key), compare_tensors);
}

const char *shd_hf_files_source(const shd_hf_files *f)
{
    return f->source;
}

const char *shd_hf_files_path(const shd_hf_files *f, const shd_hf_tensor *tensor)
{
    return shd_safetensors_path(f->shards[tensor->file]);
}

int shd_hf_files_read(const shd_hf_files *f, const shd_hf_tensor *tensor, uint64_t first,
                      uint64_t n, void *out, shd_error *err)
{
    return shd_safetensors_read(f->shards[tensor->file], tensor->tensor, first, n, out, err);
}

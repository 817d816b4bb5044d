/* Headers of safetensors files; see safetensors.h. Floor F3. */
#include "daemon/store/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/base/input.h"
#include "daemon/store/json_walk.h"

enum {
    LENGTH_BYTES = 8,
    MAX_ENTRY = 4096,        /* bytes of JSON that describe one tensor; 150 are common */
    MAX_METADATA = 16 << 20, /* bytes of one string of the metadata */
    SHOWN = 120              /* characters of a name in a message */
};

struct shd_safetensors {
    shd_input input;
    uint64_t begin; /* byte of the first tensor */
    shd_st_tensor *tensors;
    uint32_t *by_name; /* indices into tensors */
    uint32_t n, cap;
};

static const struct {
    const char *name;
    size_t size;
} dtypes[SHD_ST_DTYPE_COUNT] = {
    [SHD_ST_F32] = {"F32", 4},         [SHD_ST_BF16] = {"BF16", 2},
    [SHD_ST_F16] = {"F16", 2},         [SHD_ST_F64] = {"F64", 8},
    [SHD_ST_F8_E5M2] = {"F8_E5M2", 1}, [SHD_ST_F8_E4M3] = {"F8_E4M3", 1},
    [SHD_ST_F8_E8M0] = {"F8_E8M0", 1}, [SHD_ST_I64] = {"I64", 8},
    [SHD_ST_I32] = {"I32", 4},         [SHD_ST_I16] = {"I16", 2},
    [SHD_ST_I8] = {"I8", 1},           [SHD_ST_U64] = {"U64", 8},
    [SHD_ST_U32] = {"U32", 4},         [SHD_ST_U16] = {"U16", 2},
    [SHD_ST_U8] = {"U8", 1},           [SHD_ST_BOOL] = {"BOOL", 1},
    [SHD_ST_C64] = {"C64", 8},
};

const char *shd_st_dtype_name(shd_st_dtype dtype)
{
    return (unsigned)dtype < SHD_ST_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

size_t shd_st_dtype_size(shd_st_dtype dtype)
{
    return dtypes[dtype].size;
}

const char *shd_st_shape_text(int ndim, const int64_t *shape, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int d = 0; d < ndim && used < size; d++) {
        used += (size_t)snprintf(out + used, size - used, "%s%lld", d > 0 ? ", " : "",
                                 (long long)shape[d]);
    }
    if (used < size) {
        snprintf(out + used, size - used, "]");
    }
    return out;
}

/* ---- one entry of the header ---- */

static int parse_dtype(const json_t *value, shd_st_dtype *out, shd_error *err)
{
    const char *word = json_string_value(value);
    if (word == NULL) {
        return shd_fail(err, SHD_EDATA, "its dtype is no string");
    }
    for (unsigned i = 0; i < SHD_ST_DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].name, word) == 0) {
            *out = (shd_st_dtype)i;
            return 0;
        }
    }
    return shd_fail(err, SHD_EDATA, "its dtype '%.32s' is unknown", word);
}

/* bytes: of all its elements. */
static int parse_shape(const json_t *value, shd_st_tensor *t, uint64_t *bytes, shd_error *err)
{
    if (!json_is_array(value)) {
        return shd_fail(err, SHD_EDATA, "its shape is no list");
    }
    const size_t ndim = json_array_size(value);
    if (ndim > SHD_ST_MAX_DIMS) {
        return shd_fail(err, SHD_EDATA, "it has %zu dimensions; at most %d are read", ndim,
                        SHD_ST_MAX_DIMS);
    }
    t->ndim = (int)ndim;
    *bytes = dtypes[t->dtype].size;
    for (size_t d = 0; d < ndim; d++) {
        const json_t *item = json_array_get(value, d);
        if (!json_is_integer(item) || json_integer_value(item) < 0) {
            return shd_fail(err, SHD_EDATA, "dimension %zu of its shape is no number from 0 up", d);
        }
        t->shape[d] = json_integer_value(item);
        if (__builtin_mul_overflow(*bytes, (uint64_t)t->shape[d], bytes)) {
            return shd_fail(err, SHD_EDATA, "its shape has more elements than can be counted");
        }
    }
    return 0;
}

static int parse_offsets(const json_t *value, shd_st_tensor *t, uint64_t needed, shd_error *err)
{
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
        return shd_fail(err, SHD_EDATA,
                        "its data_offsets are no two numbers from 0 up in rising order");
    }
    t->offset = (uint64_t)json_integer_value(begin);
    t->bytes = (uint64_t)json_integer_value(end) - t->offset;
    if (t->bytes != needed) {
        char shape[128];
        return shd_fail(
            err, SHD_EDATA, "shape %s of %s takes %llu bytes, its data_offsets give %llu",
            shd_st_shape_text(t->ndim, t->shape, shape, sizeof(shape)), shd_st_dtype_name(t->dtype),
            (unsigned long long)needed, (unsigned long long)t->bytes);
    }
    return 0;
}

static int parse_entry(const json_t *entry, shd_st_tensor *t, shd_error *err)
{
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    if (!json_is_object(entry)) {
        return shd_fail(err, SHD_EDATA, "its entry is no object");
    }
    for (size_t i = 0; i < 3; i++) {
        if (json_object_get(entry, fields[i]) == NULL) {
            return shd_fail(err, SHD_EDATA, "its entry has no %s", fields[i]);
        }
    }
    if (json_object_size(entry) != 3) {
        return shd_fail(err, SHD_EDATA,
                        "its entry has other fields than dtype, shape and data_offsets");
    }
    uint64_t bytes = 0;
    SHD_TRY(parse_dtype(json_object_get(entry, "dtype"), &t->dtype, err));
    SHD_TRY(parse_shape(json_object_get(entry, "shape"), t, &bytes, err));
    return parse_offsets(json_object_get(entry, "data_offsets"), t, bytes, err);
}

static int read_entry(shd_safetensors *f, shd_json_walk *walk, char *name, shd_error *err)
{
    json_t *entry;
    int rc = shd_json_walk_value(walk, MAX_ENTRY, &entry, err);
    if (rc < 0) {
        free(name);
        return rc;
    }
    if (f->n == f->cap) {
        f->cap = f->cap > 0 ? 2 * f->cap : 64;
        f->tensors = shd_reallocarray(f->tensors, f->cap, sizeof(*f->tensors));
    }
    shd_st_tensor *t = &f->tensors[f->n++];
    *t = (shd_st_tensor){.name = name};
    rc = parse_entry(entry, t, err);
    json_decref(entry);
    return rc < 0 ? shd_error_prefix(err, rc, "tensor '%.*s'", SHOWN, name) : 0;
}

/* Strings alone; nothing of them is used. */
static int skip_metadata(shd_json_walk *walk, shd_error *err)
{
    shd_json_walk inner = *walk;
    char *key, *value;
    int rc = shd_json_walk_enter(&inner, err);
    while (rc == 0 && (rc = shd_json_walk_next(&inner, &key, err)) > 0) {
        rc = shd_json_walk_string(&inner, MAX_METADATA, &value, err);
        free(value);
        free(key);
    }
    walk->at = inner.at;
    return rc < 0 ? shd_error_prefix(err, rc, "__metadata__") : 0;
}

static int parse_header(shd_safetensors *f, const char *text, size_t size, shd_error *err)
{
    shd_json_walk walk = {.text = text, .size = size};
    int metadata = 0;
    if (size == 0 || text[0] != '{') {
        return shd_fail(err, SHD_EDATA, "the header does not begin with '{'");
    }
    SHD_TRY(shd_json_walk_enter(&walk, err));
    for (;;) {
        char *name;
        const int rc = shd_json_walk_next(&walk, &name, err);
        SHD_TRY(rc);
        if (rc == 0) {
            return shd_json_walk_finish(&walk, err);
        }
        if (strcmp(name, "__metadata__") == 0) {
            free(name);
            if (metadata++ > 0) {
                return shd_fail(err, SHD_EDATA, "__metadata__ comes twice");
            }
            SHD_TRY(skip_metadata(&walk, err));
        } else {
            SHD_TRY(read_entry(f, &walk, name, err));
        }
    }
}

/* ---- the tensors together ---- */

static int compare_bytes(const void *a, const void *b)
{
    const shd_st_tensor *x = a, *y = b;
    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? -1 : 1) : strcmp(x->name, y->name);
}

static int compare_names(const void *a, const void *b, void *arg)
{
    const shd_st_tensor *tensors = arg;
    return strcmp(tensors[*(const uint32_t *)a].name, tensors[*(const uint32_t *)b].name);
}

static int check_names(shd_safetensors *f, shd_error *err)
{
    f->by_name = shd_calloc(f->n, sizeof(*f->by_name));
    for (uint32_t i = 0; i < f->n; i++) {
        f->by_name[i] = i;
    }
    qsort_r(f->by_name, f->n, sizeof(*f->by_name), compare_names, f->tensors);
    for (uint32_t i = 1; i < f->n; i++) {
        const char *name = f->tensors[f->by_name[i]].name;
        if (strcmp(name, f->tensors[f->by_name[i - 1]].name) == 0) {
            return shd_fail(err, SHD_EDATA, "tensor '%.*s' comes twice in the header", SHOWN, name);
        }
    }
    return 0;
}

/* Offsets become those of the file. */
static int check_bytes(shd_safetensors *f, shd_error *err)
{
    const uint64_t held = f->input.size - f->begin;
    uint64_t end = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        shd_st_tensor *t = &f->tensors[i];
        if (t->offset < end) {
            return shd_fail(err, SHD_EDATA, "tensors '%.*s' and '%.*s' overlap", SHOWN,
                            f->tensors[i - 1].name, SHOWN, t->name);
        }
        if (t->offset > end) {
            return shd_fail(err, SHD_EDATA, "%llu bytes before tensor '%.*s' belong to no tensor",
                            (unsigned long long)(t->offset - end), SHOWN, t->name);
        }
        end = t->offset + t->bytes;
        if (end > held) {
            return shd_fail(err, SHD_EDATA,
                            "the file is cut off: tensor '%.*s' ends at byte %llu, the file at "
                            "%llu",
                            SHOWN, t->name, (unsigned long long)(f->begin + end),
                            (unsigned long long)f->input.size);
        }
        t->offset += f->begin;
    }
    if (end != held) {
        return shd_fail(err, SHD_EDATA, "%llu bytes after the last tensor belong to none",
                        (unsigned long long)(held - end));
    }
    return 0;
}

static int read_header(shd_safetensors *f, shd_error *err)
{
    const uint64_t size = f->input.size;
    unsigned char raw[LENGTH_BYTES];
    if (size < LENGTH_BYTES) {
        return shd_fail(err, SHD_EDATA,
                        "not a safetensors file: %llu bytes are less than the %d of its header's "
                        "length",
                        (unsigned long long)size, LENGTH_BYTES);
    }
    SHD_TRY(shd_input_read(&f->input, raw, LENGTH_BYTES, 0, err));
    if (memcmp(raw, "version ", LENGTH_BYTES) == 0) {
        return shd_fail(err, SHD_EDATA,
                        "not a safetensors file but a pointer of Git LFS; fetch the file itself "
                        "(git lfs pull)");
    }
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) {
        length = length << 8 | raw[i];
    }
    if (length > SHD_ST_MAX_HEADER) {
        return shd_fail(err, SHD_EDATA,
                        "not a safetensors file: its header is said to have %llu bytes; the format "
                        "allows %llu",
                        (unsigned long long)length, (unsigned long long)SHD_ST_MAX_HEADER);
    }
    if (length > size - LENGTH_BYTES) {
        return shd_fail(err, SHD_EDATA,
                        "the header is said to have %llu bytes, the file has %llu after its length",
                        (unsigned long long)length, (unsigned long long)(size - LENGTH_BYTES));
    }
    f->begin = LENGTH_BYTES + length;
    char *text = shd_malloc(length + 1);
    int rc = shd_input_read(&f->input, text, length, LENGTH_BYTES, err);
    if (rc == 0) {
        rc = parse_header(f, text, length, err);
    }
    free(text);
    SHD_TRY(rc);
    if (f->n > 0) {
        qsort(f->tensors, f->n, sizeof(*f->tensors), compare_bytes);
        SHD_TRY(check_names(f, err));
    }
    return check_bytes(f, err);
}

int shd_safetensors_open(int fd, const char *path, shd_safetensors **out, shd_error *err)
{
    shd_safetensors *f = shd_calloc(1, sizeof(*f));
    int rc = shd_input_open(&f->input, fd, path, err);
    if (rc == 0) {
        rc = read_header(f, err);
        if (rc < 0 && rc != SHD_EIO) {
            rc = shd_error_prefix(err, rc, "'%s'", path);
        }
    }
    if (rc < 0) {
        shd_safetensors_free(f);
        return rc;
    }
    *out = f;
    return 0;
}

void shd_safetensors_free(shd_safetensors *f)
{
    if (f == NULL) {
        return;
    }
    shd_input_fini(&f->input);
    for (uint32_t i = 0; i < f->n; i++) {
        free(f->tensors[i].name);
    }
    free(f->tensors);
    free(f->by_name);
    free(f);
}

void shd_safetensors_close(shd_safetensors *f)
{
    shd_input_close(&f->input);
}

const char *shd_safetensors_path(const shd_safetensors *f)
{
    return f->input.path;
}

uint32_t shd_safetensors_n(const shd_safetensors *f)
{
    return f->n;
}

const shd_st_tensor *shd_safetensors_at(const shd_safetensors *f, uint32_t i)
{
    return &f->tensors[i];
}

const shd_st_tensor *shd_safetensors_find(const shd_safetensors *f, const char *name)
{
    uint32_t low = 0, high = f->n;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        const shd_st_tensor *t = &f->tensors[f->by_name[mid]];
        const int order = strcmp(t->name, name);
        if (order == 0) {
            return t;
        }
        if (order < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return NULL;
}

int shd_safetensors_read(const shd_safetensors *f, const shd_st_tensor *t, uint64_t first,
                         uint64_t n, void *out, shd_error *err)
{
    if (first > t->bytes || n > t->bytes - first) {
        return shd_fail(err, SHD_EINVAL,
                        "tensor '%.*s' has %llu bytes; %llu from byte %llu on are more", SHOWN,
                        t->name, (unsigned long long)t->bytes, (unsigned long long)n,
                        (unsigned long long)first);
    }
    return shd_input_read(&f->input, out, n, t->offset + first, err);
}

/* Parameters from the tensors of files; see import.h. Floor F4. */
#include "daemon/train/import.h"

#include <ctype.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/store/convert.h"

#define HEAD "lm_head.weight"
#define TABLE 0   /* the parameter that a tied head equals: every architecture begins with it */
#define SHOWN 120 /* characters of a name in a message */

struct shd_import {
    shd_hf_files *files; /* owned */
    uint32_t n;
    const shd_hf_tensor **tensors; /* [n] */
    const shd_hf_tensor *head;     /* of a tied model, when it is there; NULL: it is not */
    shd_dtype compute;
    float most; /* finite values of this size and above are infinite in `compute`; 0: none is */
    atomic_uint_fast64_t done;
};

/* ---- names ---- */

/* What stands before the names of the base model. */
static const char *prefix_of(shd_arch arch)
{
    return arch == SHD_ARCH_GPT2 ? "transformer." : "model.";
}

static const char *without_prefix(const char *name, const char *prefix)
{
    const size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : name;
}

/* '#' stands for a number. */
static int matches(const char *pattern, const char *name)
{
    for (; *pattern != '\0'; pattern++) {
        if (*pattern != '#') {
            if (*name++ != *pattern) {
                return 0;
            }
            continue;
        }
        if (!isdigit((unsigned char)*name)) {
            return 0;
        }
        while (isdigit((unsigned char)*name)) {
            name++;
        }
    }
    return *name == '\0';
}

/* Constants that are computed, not loaded: what a checkpoint says of them changes nothing. */
static int is_buffer(shd_arch arch, const char *name)
{
    static const char *const gpt2[] = {"h.#.attn.bias", "h.#.attn.masked_bias", NULL};
    static const char *const llama[] = {"layers.#.self_attn.rotary_emb.inv_freq",
                                        "rotary_emb.inv_freq", NULL};
    const char *base = without_prefix(name, prefix_of(arch));
    for (const char *const *p = arch == SHD_ARCH_GPT2 ? gpt2 : llama; *p != NULL; p++) {
        if (matches(*p, base)) {
            return 1;
        }
    }
    return 0;
}

/* ---- matching ---- */

static int check_tensor(const shd_import *im, const shd_hf_tensor *t, const shd_param_info *info,
                        shd_error *err)
{
    const shd_st_tensor *s = t->tensor;
    if (!shd_st_dtype_is_float(s->dtype)) {
        return shd_fail(err, SHD_EDATA, "tensor '%.*s' of '%s' is %s; F32, BF16 and F16 are read",
                        SHOWN, s->name, shd_hf_files_path(im->files, t),
                        shd_st_dtype_name(s->dtype));
    }
    if (s->ndim != info->ndim ||
        memcmp(s->shape, info->shape, (size_t)info->ndim * sizeof(*s->shape)) != 0) {
        char has[96], needs[96];
        return shd_fail(err, SHD_EDATA,
                        "tensor '%.*s' of '%s' has the shape %s; the model's configuration needs "
                        "%s",
                        SHOWN, s->name, shd_hf_files_path(im->files, t),
                        shd_st_shape_text(s->ndim, s->shape, has, sizeof(has)),
                        shd_st_shape_text(info->ndim, info->shape, needs, sizeof(needs)));
    }
    return 0;
}

/* "", or " (and 3 more)" */
static const char *and_more(uint32_t more, char out[32])
{
    out[0] = '\0';
    if (more > 0) {
        snprintf(out, 32, " (and %u more)", more);
    }
    return out;
}

static int match_params(shd_import *im, const shd_model *model, shd_error *err)
{
    const char *prefix = prefix_of(shd_model_config_of(model)->arch);
    const char *first = shd_model_param(model, 0)->name;
    const int bare = shd_hf_files_find(im->files, first) == NULL &&
                     shd_hf_files_find(im->files, without_prefix(first, prefix)) != NULL;
    const char *missing = NULL;
    uint32_t n_missing = 0;
    for (uint32_t i = 0; i < im->n; i++) {
        const shd_param_info *info = shd_model_param(model, i);
        const char *name = bare ? without_prefix(info->name, prefix) : info->name;
        im->tensors[i] = shd_hf_files_find(im->files, name);
        if (im->tensors[i] == NULL) {
            missing = n_missing++ == 0 ? name : missing;
        } else {
            SHD_TRY(check_tensor(im, im->tensors[i], info, err));
        }
    }
    char more[32];
    return n_missing == 0
               ? 0
               : shd_fail(err, SHD_EDATA,
                          "'%s' has no tensor '%s'%s, which the model's configuration needs",
                          shd_hf_files_source(im->files), missing, and_more(n_missing - 1, more));
}

/* What remains must be known to mean nothing. */
static int match_rest(shd_import *im, const shd_model *model, shd_error *err)
{
    const shd_model_config *config = shd_model_config_of(model);
    const uint32_t n = shd_hf_files_n(im->files);
    const shd_hf_tensor *all = shd_hf_files_at(im->files, 0), *unexpected = NULL;
    unsigned char *used = shd_calloc(n, 1);
    uint32_t n_unexpected = 0;
    for (uint32_t i = 0; i < im->n; i++) {
        used[im->tensors[i] - all] = 1;
    }
    for (uint32_t i = 0; i < n; i++) {
        const char *name = all[i].tensor->name;
        if (used[i] || is_buffer(config->arch, name)) {
            continue;
        }
        if (config->tied && strcmp(name, HEAD) == 0) {
            im->head = &all[i];
            continue;
        }
        unexpected = n_unexpected++ == 0 ? &all[i] : unexpected;
    }
    free(used);
    char more[32];
    return n_unexpected == 0
               ? 0
               : shd_fail(err, SHD_EDATA,
                          "'%s' holds tensor '%.*s'%s, which the model's configuration has no "
                          "place for",
                          shd_hf_files_path(im->files, unexpected), SHOWN, unexpected->tensor->name,
                          and_more(n_unexpected - 1, more));
}

/* The head of a tied model can only be what the token table is. */
static int check_head(const shd_import *im, const shd_model *model, shd_error *err)
{
    if (im->head == NULL) {
        return 0;
    }
    SHD_TRY(check_tensor(im, im->head, shd_model_param(model, TABLE), err));
    const shd_st_tensor *head = im->head->tensor, *table = im->tensors[TABLE]->tensor;
    if (head->dtype != table->dtype) {
        return shd_fail(err, SHD_EDATA,
                        "the configuration ties " HEAD " to '%s', but one is %s and the other %s",
                        table->name, shd_st_dtype_name(head->dtype),
                        shd_st_dtype_name(table->dtype));
    }
    return 0;
}

static int match(shd_import *im, const shd_model *model, shd_error *err)
{
    SHD_TRY(match_params(im, model, err));
    SHD_TRY(match_rest(im, model, err));
    return check_head(im, model, err);
}

int shd_import_create(const shd_model *model, shd_hf_files *files, shd_import **out, shd_error *err)
{
    shd_import *im = shd_calloc(1, sizeof(*im));
    im->files = files;
    im->n = shd_model_n_params(model);
    im->tensors = shd_calloc(im->n, sizeof(*im->tensors));
    const int rc = match(im, model, err);
    if (rc < 0) {
        im->files = NULL;
        shd_import_free(im);
        return rc;
    }
    *out = im;
    return 0;
}

void shd_import_free(shd_import *im)
{
    if (im != NULL) {
        shd_hf_files_free(im->files);
        free(im->tensors);
        free(im);
    }
}

/* ---- loading ---- */

/* The same bytes of the head of a tied model. */
static int compare_head(shd_import *im, const void *raw, uint64_t first, uint64_t bytes,
                        shd_error *err)
{
    void *other = shd_malloc(bytes);
    int rc = shd_hf_files_read(im->files, im->head, first, bytes, other, err);
    if (rc == 0 && memcmp(raw, other, bytes) != 0) {
        rc = shd_fail(err, SHD_EDATA,
                      "the configuration ties " HEAD " to '%s', but '%s' holds different ones; set "
                      "tie_word_embeddings to false",
                      im->tensors[TABLE]->tensor->name, shd_hf_files_path(im->files, im->head));
    }
    free(other);
    return rc;
}

void shd_import_limit(shd_import *im, shd_dtype dtype)
{
    /* Halfway from the largest number to what would be the next, which is rounded up. */
    im->compute = dtype;
    im->most = dtype == SHD_F16 ? 65520.0f : dtype == SHD_BF16 ? 0x1.ffp127f : 0.0f;
}

static int check_values(const shd_import *im, const shd_hf_tensor *t, uint64_t first, size_t n,
                        const float *values, shd_error *err)
{
    for (size_t i = 0; im->most > 0 && i < n; i++) {
        if (fabsf(values[i]) >= im->most && isfinite(values[i])) {
            const int fp16 = im->compute == SHD_F16;
            return shd_fail(err, SHD_EDATA,
                            "tensor '%.*s' of '%s' holds %g (element %llu), which is infinite in "
                            "%s (at most %g); choose --dtype %s",
                            SHOWN, t->tensor->name, shd_hf_files_path(im->files, t),
                            (double)values[i], (unsigned long long)(first + i),
                            fp16 ? "fp16" : "bf16", fp16 ? 65504.0 : 0x1.fep127,
                            fp16 ? "bf16 or fp32" : "fp32");
        }
    }
    return 0;
}

static int load_piece(shd_import *im, shd_device *dev, uint32_t index, uint64_t first, size_t n,
                      void *raw, float *wide, float *dst, shd_error *err)
{
    const shd_hf_tensor *t = im->tensors[index];
    const shd_st_dtype dtype = t->tensor->dtype;
    const size_t size = shd_st_dtype_size(dtype);
    SHD_TRY(shd_hf_files_read(im->files, t, first * size, n * size, raw, err));
    if (im->head != NULL && index == TABLE) {
        SHD_TRY(compare_head(im, raw, first * size, n * size, err));
    }
    const float *from = raw;
    if (dtype != SHD_ST_F32) {
        shd_convert_to_f32(wide, raw, dtype, n);
        from = wide;
    }
    SHD_TRY(check_values(im, t, first, n, from, err));
    shd_device_from_host(dev, dst, from, n * sizeof(*dst));
    atomic_fetch_add_explicit(&im->done, n * size, memory_order_relaxed);
    return 0;
}

int shd_import_load(void *import, shd_device *dev, uint32_t index, int64_t first, int64_t n,
                    float *dst, shd_error *err)
{
    shd_import *im = import;
    const size_t most = n < SHD_IMPORT_PIECE ? (size_t)n : SHD_IMPORT_PIECE;
    float *raw = shd_reallocarray(NULL, most, 2 * sizeof(*raw)), *wide = raw + most;
    int rc = 0;
    for (int64_t at = 0; rc == 0 && at < n; at += (int64_t)most) {
        const size_t piece = n - at < (int64_t)most ? (size_t)(n - at) : most;
        rc = load_piece(im, dev, index, (uint64_t)(first + at), piece, raw, wide, dst + at, err);
    }
    free(raw);
    return rc;
}

/* ---- what is known of a parameter ---- */

void shd_import_close(shd_import *im)
{
    shd_hf_files_close(im->files);
}

uint64_t shd_import_done(const shd_import *im)
{
    return atomic_load_explicit(&((shd_import *)im)->done, memory_order_relaxed);
}

uint64_t shd_import_param_bytes(const shd_import *im, uint32_t index)
{
    return im->tensors[index]->tensor->bytes;
}

shd_st_dtype shd_import_dtype(const shd_import *im, uint32_t index)
{
    return im->tensors[index]->tensor->dtype;
}

const char *shd_import_name(const shd_import *im, uint32_t index)
{
    return im->tensors[index]->tensor->name;
}

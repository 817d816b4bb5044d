/* A job's files as windows; see train_data.h. Floor F4. */
#include "daemon/train/train_data.h"

#include <stdlib.h>

#include "daemon/base/mem.h"

/* Cuts a part of a file into windows; errors name the file and its part. */
static int make_windows(const shd_spec *spec, const shd_source *source, shd_windows_part part,
                        int train, shd_windows **out, shd_error *err)
{
    static const char *const names[] = {"the whole", "training part", "held-out part"};
    const shd_windows_options options = {
        .part = part,
        .tail = spec->eval_split,
        .seq_len = spec->seq_len,
        .packing = spec->packing,
        .shuffle = train,
        .seed = train ? spec->seed : 0,
    };
    const int rc = shd_windows_create(source, &options, out, err);
    const char *name = train ? names[SHD_WINDOWS_HEAD] : names[part];
    return rc < 0 ? shd_error_prefix(err, rc, "%s of '%s'", name, shd_source_path(source)) : 0;
}

/* Splits the data. */
static int cut(const shd_spec *spec, shd_train_data *d, shd_error *err)
{
    const int split = d->eval == NULL && spec->eval_split > 0;
    SHD_TRY(
        make_windows(spec, d->data, split ? SHD_WINDOWS_HEAD : SHD_WINDOWS_ALL, 1, &d->train, err));
    if (split) {
        d->eval = d->data;
        SHD_TRY(make_windows(spec, d->data, SHD_WINDOWS_TAIL, 0, &d->held_out, err));
    } else if (d->eval != NULL) {
        SHD_TRY(make_windows(spec, d->eval, SHD_WINDOWS_ALL, 0, &d->held_out, err));
    }
    return 0;
}

uint64_t shd_train_data_eval_leaves(const shd_train_data *d, const shd_spec *spec)
{
    if (d->held_out == NULL) {
        return 0;
    }
    const uint64_t windows = shd_windows_count(d->held_out);
    const uint64_t all = (windows + spec->micro_batch - 1) / spec->micro_batch;
    return spec->eval_batches > 0 && spec->eval_batches < all ? spec->eval_batches : all;
}

int shd_train_data_cut(const shd_spec *spec, shd_source *data, shd_source *eval,
                       shd_train_data **out, shd_error *err)
{
    shd_train_data *d = shd_calloc(1, sizeof(*d));
    d->data = data;
    d->eval = eval;
    const int rc = cut(spec, d, err);
    if (rc < 0) {
        shd_train_data_free(d);
        return rc;
    }
    *out = d;
    return 0;
}

void shd_train_data_free(shd_train_data *d)
{
    if (d == NULL) {
        return;
    }
    shd_windows_free(d->train);
    shd_windows_free(d->held_out);
    if (d->eval != d->data) {
        shd_source_free(d->eval);
    }
    shd_source_free(d->data);
    free(d);
}

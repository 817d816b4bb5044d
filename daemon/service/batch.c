#include "daemon/service/batch.h"

#include <string.h>

#include "daemon/base/mem.h"

static int check(const Shard__V1__Batch *in, uint32_t max_length, size_t *length, shd_error *err)
{
    if (in == NULL || in->n_sequences == 0) {
        return shd_fail(err, SHD_EINVAL, "the batch has no sequences");
    }
    *length = 0;
    for (size_t i = 0; i < in->n_sequences; i++) {
        const Shard__V1__Sequence *s = in->sequences[i];
        if (s->n_tokens == 0) {
            return shd_fail(err, SHD_EINVAL, "sequence %zu of the batch is empty", i);
        }
        if (s->n_tokens > max_length) {
            return shd_fail(err, SHD_EINVAL,
                            "sequence %zu of the batch has %zu tokens; the job's longest is %u "
                            "(--seq-len)",
                            i, s->n_tokens, max_length);
        }
        if (s->n_targets != 0 && s->n_targets != s->n_tokens) {
            return shd_fail(err, SHD_EINVAL,
                            "sequence %zu has %zu tokens but %zu targets; give one target per "
                            "token (%d: not counted), or none for the next token",
                            i, s->n_tokens, s->n_targets, SHD_IGNORE_INDEX);
        }
        *length = s->n_tokens > *length ? s->n_tokens : *length;
    }
    if (in->n_sequences > SHD_BATCH_MAX_POSITIONS / *length) {
        return shd_fail(err, SHD_EINVAL,
                        "%zu sequences padded to %zu tokens are too large a batch; at most %u "
                        "positions are accepted",
                        in->n_sequences, *length, SHD_BATCH_MAX_POSITIONS);
    }
    return SHD_OK;
}

int shd_batch_convert(const Shard__V1__Batch *in, uint32_t max_length, shd_batch *out,
                      shd_error *err)
{
    size_t length = 0;
    SHD_TRY(check(in, max_length, &length, err));
    out->sequences = (uint32_t)in->n_sequences;
    out->length = (uint32_t)length;
    out->tokens = shd_calloc(in->n_sequences * length, sizeof(*out->tokens));
    out->targets = shd_reallocarray(NULL, in->n_sequences * length, sizeof(*out->targets));
    for (size_t i = 0; i < in->n_sequences; i++) {
        const Shard__V1__Sequence *s = in->sequences[i];
        int32_t *tokens = out->tokens + i * length, *targets = out->targets + i * length;
        memcpy(tokens, s->tokens, s->n_tokens * sizeof(*tokens));
        if (s->n_targets != 0) {
            memcpy(targets, s->targets, s->n_targets * sizeof(*targets));
        } else {
            memcpy(targets, s->tokens + 1, (s->n_tokens - 1) * sizeof(*targets));
            targets[s->n_tokens - 1] = SHD_IGNORE_INDEX;
        }
        for (size_t t = s->n_tokens; t < length; t++) {
            targets[t] = SHD_IGNORE_INDEX;
        }
    }
    return SHD_OK;
}

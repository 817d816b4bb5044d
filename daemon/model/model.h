/* A model: its parameter table, how parameters are cut into units, and forward as tape ops, segment
 * by segment. Floor F3; immutable after creation, any thread; never knows shards. */
#ifndef SHD_DAEMON_MODEL_MODEL_H
#define SHD_DAEMON_MODEL_MODEL_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/model/config.h"
#include "daemon/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shd_param_info {
    char name[64]; /* as in Hugging Face checkpoints of the architecture */
    int ndim;
    int64_t shape[2];
    uint32_t unit;
    int decay;       /* weight decay applies (matrices and tables; not norms and biases) */
    float init_mean; /* constant where init_std is 0 */
    float init_std;
    int64_t zero_row; /* this row of a random table is 0; -1: none */
} shd_param_info;

/* Which random numbers dropout takes; see shd_dropout. Off: p = 0. */
typedef struct shd_model_dropout {
    float p;
    uint64_t seed, step;
    uint64_t first_sample; /* global index of the first sequence */
} shd_model_dropout;

/* What a segment computes on. Device memory unless said. */
typedef struct shd_model_input {
    const int32_t *ids; /* [sequences * tokens] */
    const int32_t
        *targets;  /* the same; NULL: logits of the last row are wanted instead of losses */
    float *losses; /* [sequences * tokens] */
    int64_t sequences, tokens;
    shd_model_dropout dropout;
    /* [n_layer] keys and values of the tokens so far, for generation: 1 sequence, no targets, and
     * the tokens follow those held; shd_model_kv_width elements a token. NULL: none. */
    const shd_kv_cache *cache;
} shd_model_input;

typedef struct shd_model shd_model;

/* SHD_EINVAL as shd_model_check. */
int shd_model_create(const shd_model_config *config, shd_model **out, shd_error *err);
void shd_model_free(shd_model *model); /* NULL is fine */

const shd_model_config *shd_model_config_of(const shd_model *model);
uint32_t shd_model_n_params(const shd_model *model);
const shd_param_info *shd_model_param(const shd_model *model, uint32_t i);
int64_t shd_param_numel(const shd_param_info *info);
uint32_t shd_model_n_units(const shd_model *model);
uint32_t shd_model_n_segments(const shd_model *model);

/* Units that segment uses, into units[2]; the number is returned. *backward_needs_params is 0 when
 * its backward reads no parameter. */
uint32_t shd_model_segment_units(const shd_model *model, uint32_t segment, uint32_t units[2],
                                 int *backward_needs_params);

/* Elements that a token takes in the cache of one layer: of keys, and as many of values. */
int64_t shd_model_kv_width(const shd_model *model);

/* Runs segment forward on the tape. params[i] is parameter i's tensor (those of the segment's units
 * have data). *x is the activation between segments: NULL before the first, taken and replaced by
 * each; after the last it is NULL, or, when in->targets is NULL, the logits [1, vocab] of the
 * last row. */
void shd_model_forward(const shd_model *model, uint32_t segment, shd_tape *tape,
                       shd_tensor *const *params, const shd_model_input *in, shd_tensor **x);

#ifdef __cplusplus
}
#endif
#endif

/* A model: its parameter table, how parameters are cut into units, and forward as tape ops, segment
 * by segment. Floor F3; immutable after creation, any thread; never knows shards. */
#ifndef SHD_DAEMON_MODEL_MODEL_H
#define SHD_DAEMON_MODEL_MODEL_H

#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/tape/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SHD_MODEL_MAX_LAYERS = 1024,
    SHD_MODEL_MAX_HEADS = 1024,
    SHD_MODEL_MAX_HEAD_DIM = 1 << 16,
    SHD_MODEL_MAX_WIDTH = 1 << 20,
    SHD_MODEL_MAX_INNER = 1 << 22,
    SHD_MODEL_MAX_CONTEXT = 1 << 24,
    SHD_MODEL_MAX_VOCAB = 1 << 24,
};

/* The model_type of Hugging Face configurations. */
typedef enum shd_arch {
    SHD_ARCH_GPT2 = 0,
    SHD_ARCH_LLAMA,
    SHD_ARCH_MISTRAL,
    SHD_ARCH_QWEN2,
    SHD_ARCH_QWEN3,
} shd_arch;

typedef enum shd_activation {
    SHD_ACT_GELU_TANH = 0, /* gelu_new, gelu_pytorch_tanh, gelu_fast */
    SHD_ACT_GELU,          /* with erf */
    SHD_ACT_SILU,
} shd_activation;

typedef enum shd_rope_kind { SHD_ROPE_DEFAULT = 0, SHD_ROPE_LINEAR, SHD_ROPE_LLAMA3 } shd_rope_kind;

/* Rotary positions (Su et al. 2021): base frequency and how it is stretched. */
typedef struct shd_rope_config {
    shd_rope_kind kind;
    double theta;
    double factor;              /* linear, llama3 */
    double low_freq, high_freq; /* llama3 */
    int64_t original_context;   /* llama3 */
} shd_rope_config;

/* What decides the numbers of a model. Every field holds its value; shd_model_config_gpt2 and
 * shd_model_config_llama start from an architecture's usual ones. */
typedef struct shd_model_config {
    shd_arch arch;
    int64_t n_layer, n_head, n_kv_head, head_dim, d_model;
    int64_t d_ff;    /* inner width of the feed-forward part */
    int64_t context; /* longest sequence */
    int64_t vocab;
    float norm_eps;
    float init_range; /* standard deviation of random initialisation */
    int tied;         /* the head is the token table */
    shd_activation activation;
    int scale_attn;          /* gpt2: scores are divided by sqrt(head_dim) */
    int scale_attn_by_layer; /* gpt2: and by the layer's number, from 1 */
    int qkv_bias, o_bias;    /* llama: biases of the attention's projections */
    int mlp_bias;            /* llama */
    int qk_norm;             /* llama: RMS norm of every head's query and key */
    int64_t sliding_window;  /* llama: keys that a query sees, its own included; 0: all before it */
    uint8_t windowed[SHD_MODEL_MAX_LAYERS / 8]; /* bit i: layer i has the window */
    shd_rope_config rope;                       /* llama */
} shd_model_config;

/* GPT-2 as published, of these sizes. */
shd_model_config shd_model_config_gpt2(int64_t n_layer, int64_t n_head, int64_t d_model,
                                       int64_t context, int64_t vocab);
/* A Llama of these sizes: no biases, untied, one key head a query head, theta 10000, eps 1e-5. */
shd_model_config shd_model_config_llama(int64_t n_layer, int64_t n_head, int64_t d_model,
                                        int64_t d_ff, int64_t context, int64_t vocab);

static inline int shd_model_layer_windowed(const shd_model_config *c, int64_t layer)
{
    return c->sliding_window > 0 && (c->windowed[layer / 8] >> (layer % 8) & 1);
}

typedef struct shd_param_info {
    char name[64]; /* as in Hugging Face checkpoints of the architecture */
    int ndim;
    int64_t shape[2];
    uint32_t unit;
    int decay;       /* weight decay applies (matrices and tables; not norms and biases) */
    float init_mean; /* constant where init_std is 0 */
    float init_std;
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

/* "gpt-byte-1m", "gpt2", "smollm2-135m", ...: SHD_ENOTFOUND names the choices. */
int shd_model_preset(const char *name, shd_model_config *out, shd_error *err);
/* All preset names, comma-separated. Static storage. */
const char *shd_model_presets(void);

/* SHD_EINVAL names the value that is out of range or does not divide. */
int shd_model_check(const shd_model_config *config, shd_error *err);
/* Refuses what shd_model_check does. */
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

/* The architecture's model_type: "gpt2", "llama", "mistral", "qwen2", "qwen3". Static storage. */
const char *shd_arch_name(shd_arch arch);

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

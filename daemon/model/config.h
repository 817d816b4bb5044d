/* A model's configuration: what decides its numbers; presets; what is refused. Floor F3; pure. */
#ifndef SHD_DAEMON_MODEL_CONFIG_H
#define SHD_DAEMON_MODEL_CONFIG_H

#include <stdint.h>

#include "daemon/base/err.h"

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
    int64_t pad; /* token whose embedding starts at 0 and gets no gradient; -1: none */
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

/* "gpt-byte-1m", "gpt2", "smollm2-135m", ...: SHD_ENOTFOUND names the choices. */
int shd_model_preset(const char *name, shd_model_config *out, shd_error *err);
/* All preset names, comma-separated. Static storage. */
const char *shd_model_presets(void);

/* SHD_EINVAL names the value that is out of range or does not divide. */
int shd_model_check(const shd_model_config *config, shd_error *err);

/* The architecture's model_type: "gpt2", "llama", "mistral", "qwen2", "qwen3". Static storage. */
const char *shd_arch_name(shd_arch arch);

#ifdef __cplusplus
}
#endif
#endif

/* What an architecture provides. Floor F3; private to daemon/model. */
#ifndef SHD_DAEMON_MODEL_MODEL_INTERNAL_H
#define SHD_DAEMON_MODEL_MODEL_INTERNAL_H

#include "daemon/model/model.h"

typedef struct shd_arch_ops {
    /* Fills the parameter table through shd_model_add_param, and the counts. */
    void (*build)(shd_model *model);
    void (*forward)(const shd_model *model, uint32_t segment, shd_tape *tape,
                    shd_tensor *const *params, const shd_model_input *in, shd_tensor **x);
} shd_arch_ops;

struct shd_model {
    shd_model_config config;
    const shd_arch_ops *ops;
    shd_param_info *params;
    uint32_t n_params, cap_params;
    uint32_t n_units, n_segments;
    float *inv_freq; /* [head_dim / 2] angle per position of rotary pairs; NULL: none */
};

extern const shd_arch_ops shd_arch_gpt2;
extern const shd_arch_ops shd_arch_llama;

/* Appends a parameter of 1 (cols == 0) or 2 dimensions to `unit`; matrices decay, vectors do not.
 */
void shd_model_add_param(shd_model *model, uint32_t unit, int64_t rows, int64_t cols, float mean,
                         float std, const char *fmt, ...) __attribute__((format(printf, 7, 8)));

/* ---- what architectures share of forward ---- */

/* The position of the input's first token: those in the cache come before it. */
int64_t shd_model_first_position(const shd_model_input *in);

/* The dropouts of a model: one for the embedding, three a layer. */
enum {
    SHD_SITE_EMBEDDING = -1, /* with layer 0 */
    SHD_SITE_ATTENTION = 0,
    SHD_SITE_ATTENTION_OUT,
    SHD_SITE_MLP_OUT,
    SHD_SITES_PER_LAYER
};
shd_dropout shd_model_dropout_at(const shd_model_input *in, int64_t layer, int site);

/* Attention of a layer, over the cache when there is one; k and v NULL: q is packed. */
shd_tensor *shd_model_attention(const shd_model *model, shd_tape *tape, const shd_model_input *in,
                                int64_t layer, shd_tensor *q, shd_tensor *k, shd_tensor *v);

/* The rows of x that the head needs: all for losses, else the last. Takes x over. */
shd_tensor *shd_model_wanted_rows(shd_tape *tape, const shd_model_input *in, shd_tensor *x);

/* Losses through, or logits of, the head w [vocab, C]. Takes h over. */
shd_tensor *shd_model_head(shd_tape *tape, const shd_model_input *in, shd_tensor *h, shd_tensor *w);

#endif

/* What architectures share of forward; see model_internal.h. Floor F3; pure. */
#include <math.h>

#include "daemon/model/model_internal.h"

int64_t shd_model_first_position(const shd_model_input *in)
{
    return in->cache != NULL ? in->cache[0].length : 0;
}

shd_dropout shd_model_dropout_at(const shd_model_input *in, int64_t layer, int site)
{
    const shd_model_dropout *d = &in->dropout;
    return (shd_dropout){.p = d->p,
                         .seed = d->seed,
                         .step = d->step,
                         .first_sample = d->first_sample,
                         .site = (uint32_t)(1 + layer * SHD_SITES_PER_LAYER + site)};
}

shd_tensor *shd_model_attention(const shd_model *model, shd_tape *tape, const shd_model_input *in,
                                int64_t layer, shd_tensor *q, shd_tensor *k, shd_tensor *v)
{
    const shd_model_config *c = &model->config;
    double scale = c->scale_attn ? 1.0 / sqrt((double)c->head_dim) : 1.0;
    if (c->scale_attn_by_layer) {
        scale /= (double)(layer + 1);
    }
    const shd_attn_spec spec = {
        .heads = c->n_head,
        .kv_heads = c->n_kv_head,
        .head_dim = c->head_dim,
        .window = shd_model_layer_windowed(c, layer) ? c->sliding_window : 0,
        .scale = (float)scale,
    };
    if (in->cache != NULL) {
        return shd_tape_attention_cached(tape, q, k, v, &spec, &in->cache[layer]);
    }
    const shd_dropout drop = shd_model_dropout_at(in, layer, SHD_SITE_ATTENTION);
    const shd_dropout *dropout = drop.p > 0 ? &drop : NULL;
    return k == NULL ? shd_tape_attention_packed(tape, q, &spec, in->tokens, dropout)
                     : shd_tape_attention(tape, q, k, v, &spec, in->tokens, dropout);
}

shd_tensor *shd_model_wanted_rows(shd_tape *tape, const shd_model_input *in, shd_tensor *x)
{
    if (in->targets != NULL) {
        return x;
    }
    shd_tensor *last = shd_tape_rows(tape, x, in->sequences * in->tokens - 1, 1);
    shd_tape_drop(tape, x);
    return last;
}

shd_tensor *shd_model_head(shd_tape *tape, const shd_model_input *in, shd_tensor *h, shd_tensor *w)
{
    shd_tensor *logits = NULL;
    if (in->targets == NULL) {
        logits = shd_tape_logits(tape, h, w);
    } else {
        shd_tape_cross_entropy(tape, h, w, in->targets, in->losses);
    }
    shd_tape_drop(tape, h);
    return logits;
}

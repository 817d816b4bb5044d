/* GPT-2 (Radford et al. 2019): learned positions, pre-LayerNorm blocks, GELU. Names, shapes and
 * layout ([in,out] projections) are those of Hugging Face's GPT2LMHeadModel. Floor F3; pure.
 *
 * Units: 0 holds the token table and the positions, then one per block. A tied head is the token
 * table, so unit 0 holds the final norm too; else norm and head are the last unit. Segments:
 * embedding, blocks, head. */
#include <math.h>

#include "daemon/model/model_internal.h"

enum { FIRST_UNIT = 0 };

/* Order of the parameter table. */
enum { WTE, WPE, LNF_W, LNF_B, FIRST_BLOCK };
enum {
    LN1_W,
    LN1_B,
    ATTN_W,
    ATTN_B,
    PROJ_W,
    PROJ_B,
    LN2_W,
    LN2_B,
    FC_W,
    FC_B,
    OUT_W,
    OUT_B,
    BLOCK_PARAMS
};

static void gpt2_build(shd_model *m)
{
    const shd_model_config *c = &m->config;
    const int64_t C = c->d_model, L = c->n_layer, F = c->d_ff;
    const uint32_t last = c->tied ? FIRST_UNIT : (uint32_t)L + 1;
    const float std = c->init_range;
    /* Projections back into the residual stream start smaller (GPT-2 paper, §2.3). */
    const float std_residual = (float)((double)std / sqrt(2.0 * (double)L));
    shd_model_add_param(m, FIRST_UNIT, c->vocab, C, 0, std, "transformer.wte.weight");
    shd_model_add_param(m, FIRST_UNIT, c->context, C, 0, std, "transformer.wpe.weight");
    shd_model_add_param(m, last, C, 0, 1, 0, "transformer.ln_f.weight");
    shd_model_add_param(m, last, C, 0, 0, 0, "transformer.ln_f.bias");
    for (int64_t i = 0; i < L; i++) {
        const uint32_t u = (uint32_t)i + 1;
        const int n = (int)i;
        shd_model_add_param(m, u, C, 0, 1, 0, "transformer.h.%d.ln_1.weight", n);
        shd_model_add_param(m, u, C, 0, 0, 0, "transformer.h.%d.ln_1.bias", n);
        shd_model_add_param(m, u, C, 3 * C, 0, std, "transformer.h.%d.attn.c_attn.weight", n);
        shd_model_add_param(m, u, 3 * C, 0, 0, 0, "transformer.h.%d.attn.c_attn.bias", n);
        shd_model_add_param(m, u, C, C, 0, std_residual, "transformer.h.%d.attn.c_proj.weight", n);
        shd_model_add_param(m, u, C, 0, 0, 0, "transformer.h.%d.attn.c_proj.bias", n);
        shd_model_add_param(m, u, C, 0, 1, 0, "transformer.h.%d.ln_2.weight", n);
        shd_model_add_param(m, u, C, 0, 0, 0, "transformer.h.%d.ln_2.bias", n);
        shd_model_add_param(m, u, C, F, 0, std, "transformer.h.%d.mlp.c_fc.weight", n);
        shd_model_add_param(m, u, F, 0, 0, 0, "transformer.h.%d.mlp.c_fc.bias", n);
        shd_model_add_param(m, u, F, C, 0, std_residual, "transformer.h.%d.mlp.c_proj.weight", n);
        shd_model_add_param(m, u, C, 0, 0, 0, "transformer.h.%d.mlp.c_proj.bias", n);
    }
    if (!c->tied) {
        shd_model_add_param(m, last, c->vocab, C, 0, std, "lm_head.weight");
    }
    m->n_units = (uint32_t)L + (c->tied ? 1 : 2);
    m->n_segments = (uint32_t)L + 2;
}

/* residual + dropout(x · w + b); x is dropped. */
static shd_tensor *branch(shd_tape *tape, const shd_model_input *in, int64_t layer, int site,
                          shd_tensor *x, shd_tensor *w, shd_tensor *b, shd_tensor *residual)
{
    const shd_dropout drop = shd_model_dropout_at(in, layer, site);
    shd_tensor *out = NULL;
    if (drop.p > 0) {
        shd_tensor *y = shd_tape_linear(tape, x, w, b, NULL, 1);
        out = shd_tape_dropout(tape, y, residual, in->tokens, &drop);
        shd_tape_drop(tape, y);
    } else {
        out = shd_tape_linear(tape, x, w, b, residual, 1);
    }
    shd_tape_drop(tape, x);
    return out;
}

static shd_tensor *block(const shd_model *m, shd_tape *tape, shd_tensor *const *p,
                         const shd_model_input *in, int64_t layer, shd_tensor *x)
{
    const float eps = m->config.norm_eps;
    const shd_gelu_form form = m->config.activation == SHD_ACT_GELU ? SHD_GELU_ERF : SHD_GELU_TANH;
    shd_tensor *h1 = shd_tape_layernorm(tape, x, p[LN1_W], p[LN1_B], eps);
    shd_tensor *qkv = shd_tape_linear(tape, h1, p[ATTN_W], p[ATTN_B], NULL, 1);
    shd_tape_drop(tape, h1);
    shd_tensor *att = shd_model_attention(m, tape, in, layer, qkv, NULL, NULL);
    shd_tape_drop(tape, qkv);
    shd_tensor *mid = branch(tape, in, layer, SHD_SITE_ATTENTION_OUT, att, p[PROJ_W], p[PROJ_B], x);
    shd_tape_drop(tape, x);
    shd_tensor *h2 = shd_tape_layernorm(tape, mid, p[LN2_W], p[LN2_B], eps);
    shd_tensor *fc = shd_tape_linear(tape, h2, p[FC_W], p[FC_B], NULL, 1);
    shd_tape_drop(tape, h2);
    shd_tensor *act = shd_tape_gelu(tape, fc, form);
    shd_tape_drop(tape, fc);
    shd_tensor *out = branch(tape, in, layer, SHD_SITE_MLP_OUT, act, p[OUT_W], p[OUT_B], mid);
    shd_tape_drop(tape, mid);
    return out;
}

static shd_tensor *embedding(shd_tape *tape, shd_tensor *const *p, const shd_model_input *in)
{
    shd_tensor *x = shd_tape_embedding(tape, p[WTE], p[WPE], in->ids, in->sequences * in->tokens,
                                       in->tokens, shd_model_first_position(in), -1);
    const shd_dropout drop = shd_model_dropout_at(in, 0, SHD_SITE_EMBEDDING);
    if (drop.p > 0) {
        shd_tensor *kept = shd_tape_dropout(tape, x, NULL, in->tokens, &drop);
        shd_tape_drop(tape, x);
        return kept;
    }
    return x;
}

static void gpt2_forward(const shd_model *m, uint32_t segment, shd_tape *tape,
                         shd_tensor *const *params, const shd_model_input *in, shd_tensor **x)
{
    if (segment == 0) {
        *x = embedding(tape, params, in);
    } else if (segment == m->n_segments - 1) {
        shd_tensor *last = shd_model_wanted_rows(tape, in, *x);
        shd_tensor *h =
            shd_tape_layernorm(tape, last, params[LNF_W], params[LNF_B], m->config.norm_eps);
        shd_tape_drop(tape, last);
        *x = shd_model_head(tape, in, h, params[m->config.tied ? WTE : m->n_params - 1]);
    } else {
        const int64_t layer = segment - 1;
        *x = block(m, tape, params + FIRST_BLOCK + layer * BLOCK_PARAMS, in, layer, *x);
    }
}

const shd_arch_ops shd_arch_gpt2 = {
    .build = gpt2_build,
    .forward = gpt2_forward,
};

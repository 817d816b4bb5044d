/* GPT-2 (Radford et al. 2019): learned positions, pre-LayerNorm blocks, GELU (tanh), tied head.
 * Names, shapes and layout ([in,out] projections) are those of Hugging Face's GPT2LMHeadModel.
 * Floor F3; pure.
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

static int gpt2_check(const shd_model_config *c, shd_error *err)
{
    if (c->n_kv_head != c->n_head) {
        return shd_fail(err, SHD_EINVAL, "model: n_kv_head %lld: gpt2 has as many as n_head, %lld",
                        (long long)c->n_kv_head, (long long)c->n_head);
    }
    if (c->d_model % c->n_head != 0) {
        return shd_fail(err, SHD_EINVAL, "model: d_model %lld is not a multiple of n_head %lld",
                        (long long)c->d_model, (long long)c->n_head);
    }
    if (c->head_dim * c->n_head != c->d_model) {
        return shd_fail(err, SHD_EINVAL, "model: head_dim %lld: gpt2 has d_model / n_head, %lld",
                        (long long)c->head_dim, (long long)(c->d_model / c->n_head));
    }
    if (c->activation == SHD_ACT_SILU) {
        return shd_fail(err, SHD_EINVAL, "model: gpt2 has no activation silu; use gelu");
    }
    return 0;
}

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

static uint32_t gpt2_segment_units(const shd_model *m, uint32_t segment, uint32_t units[2],
                                   int *backward_needs_params)
{
    units[0] = segment == m->n_segments - 1 && m->config.tied ? FIRST_UNIT : segment;
    *backward_needs_params = segment != 0;
    return 1;
}

static shd_tensor *block(const shd_model *m, shd_tape *tape, shd_tensor *const *p,
                         const shd_model_input *in, shd_tensor *x)
{
    const float eps = m->config.norm_eps;
    const int64_t D = m->config.d_model / m->config.n_head;
    const shd_attn_spec spec = {.heads = m->config.n_head,
                                .kv_heads = m->config.n_head,
                                .head_dim = D,
                                .scale = (float)(1.0 / sqrt((double)D))};
    shd_tensor *h1 = shd_tape_layernorm(tape, x, p[LN1_W], p[LN1_B], eps);
    shd_tensor *qkv = shd_tape_linear(tape, h1, p[ATTN_W], p[ATTN_B], NULL, 1);
    shd_tape_drop(tape, h1);
    shd_tensor *att = shd_tape_attention_packed(tape, qkv, &spec, in->tokens, NULL);
    shd_tape_drop(tape, qkv);
    shd_tensor *mid = shd_tape_linear(tape, att, p[PROJ_W], p[PROJ_B], x, 1);
    shd_tape_drop(tape, att);
    shd_tape_drop(tape, x);
    shd_tensor *h2 = shd_tape_layernorm(tape, mid, p[LN2_W], p[LN2_B], eps);
    shd_tensor *fc = shd_tape_linear(tape, h2, p[FC_W], p[FC_B], NULL, 1);
    shd_tape_drop(tape, h2);
    shd_tensor *act = shd_tape_gelu(tape, fc, SHD_GELU_TANH);
    shd_tape_drop(tape, fc);
    shd_tensor *out = shd_tape_linear(tape, act, p[OUT_W], p[OUT_B], mid, 1);
    shd_tape_drop(tape, act);
    shd_tape_drop(tape, mid);
    return out;
}

/* logits = ln_f(x) · wᵀ, w the token table when tied. */
static shd_tensor *head(const shd_model *m, shd_tape *tape, shd_tensor *const *p,
                        const shd_model_input *in, shd_tensor *x)
{
    if (in->targets == NULL) {
        shd_tensor *last = shd_tape_rows(tape, x, in->sequences * in->tokens - 1, 1);
        shd_tape_drop(tape, x);
        x = last;
    }
    shd_tensor *h = shd_tape_layernorm(tape, x, p[LNF_W], p[LNF_B], m->config.norm_eps);
    shd_tape_drop(tape, x);
    shd_tensor *w = p[m->config.tied ? WTE : m->n_params - 1];
    shd_tensor *logits = NULL;
    if (in->targets == NULL) {
        logits = shd_tape_logits(tape, h, w);
    } else {
        shd_tape_cross_entropy(tape, h, w, in->targets, in->losses);
    }
    shd_tape_drop(tape, h);
    return logits;
}

static void gpt2_forward(const shd_model *m, uint32_t segment, shd_tape *tape,
                         shd_tensor *const *params, const shd_model_input *in, shd_tensor **x)
{
    if (segment == 0) {
        *x = shd_tape_embedding(tape, params[WTE], params[WPE], in->ids, in->sequences * in->tokens,
                                in->tokens, 0);
    } else if (segment == m->n_segments - 1) {
        *x = head(m, tape, params, in, *x);
    } else {
        *x = block(m, tape, params + FIRST_BLOCK + (segment - 1) * BLOCK_PARAMS, in, *x);
    }
}

const shd_arch_ops shd_arch_gpt2 = {
    .name = "gpt2",
    .check = gpt2_check,
    .build = gpt2_build,
    .segment_units = gpt2_segment_units,
    .forward = gpt2_forward,
};

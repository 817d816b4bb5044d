/* GPT-2 (Radford et al. 2019): learned positions, pre-LayerNorm blocks, GELU (tanh), tied head.
 * Names, shapes and layout ([in,out] projections) are those of Hugging Face's GPT2LMHeadModel.
 * Floor F3; pure.
 *
 * Units: 0 holds what is used at both ends (token table, which is also the head, positions, final
 * norm), then one per block. Segments: embedding, blocks, head. */
#include <math.h>

#include "daemon/model/model_internal.h"

enum { ROOT_UNIT = 0 };

/* Order of the parameter table. */
enum { WTE, WPE, LNF_W, LNF_B, ROOT_PARAMS };
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

static int check_size(const char *what, int64_t value, int64_t most, shd_error *err)
{
    if (value < 1 || value > most) {
        return shd_fail(err, SHD_EINVAL, "model: %s is %lld; it must be 1 to %lld", what,
                        (long long)value, (long long)most);
    }
    return 0;
}

static int gpt2_check(const shd_model_config *c, shd_error *err)
{
    SHD_TRY(check_size("n_layer", c->n_layer, 1024, err));
    SHD_TRY(check_size("n_head", c->n_head, 1024, err));
    SHD_TRY(check_size("d_model", c->d_model, 1 << 20, err));
    SHD_TRY(check_size("context", c->context, 1 << 24, err));
    SHD_TRY(check_size("vocab", c->vocab, 1 << 24, err));
    if (c->d_model % c->n_head != 0) {
        return shd_fail(err, SHD_EINVAL, "model: d_model %lld is not a multiple of n_head %lld",
                        (long long)c->d_model, (long long)c->n_head);
    }
    if (!(c->norm_eps > 0.0f) || c->norm_eps > 1.0f) {
        return shd_fail(err, SHD_EINVAL, "model: norm_eps %g must be above 0 and at most 1",
                        (double)c->norm_eps);
    }
    return 0;
}

static void gpt2_build(shd_model *m)
{
    const int64_t C = m->config.d_model, L = m->config.n_layer;
    const float std = 0.02f;
    /* Projections back into the residual stream start smaller (GPT-2 paper, §2.3). */
    const float std_residual = (float)(0.02 / sqrt(2.0 * (double)L));
    shd_model_add_param(m, ROOT_UNIT, m->config.vocab, C, 0, std, "transformer.wte.weight");
    shd_model_add_param(m, ROOT_UNIT, m->config.context, C, 0, std, "transformer.wpe.weight");
    shd_model_add_param(m, ROOT_UNIT, C, 0, 1, 0, "transformer.ln_f.weight");
    shd_model_add_param(m, ROOT_UNIT, C, 0, 0, 0, "transformer.ln_f.bias");
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
        shd_model_add_param(m, u, C, 4 * C, 0, std, "transformer.h.%d.mlp.c_fc.weight", n);
        shd_model_add_param(m, u, 4 * C, 0, 0, 0, "transformer.h.%d.mlp.c_fc.bias", n);
        shd_model_add_param(m, u, 4 * C, C, 0, std_residual, "transformer.h.%d.mlp.c_proj.weight",
                            n);
        shd_model_add_param(m, u, C, 0, 0, 0, "transformer.h.%d.mlp.c_proj.bias", n);
    }
    m->n_units = (uint32_t)L + 1;
    m->n_segments = (uint32_t)L + 2;
}

static uint32_t gpt2_segment_units(const shd_model *m, uint32_t segment, uint32_t units[2],
                                   int *backward_needs_params)
{
    const uint32_t head = m->n_segments - 1;
    units[0] = segment == 0 || segment == head ? ROOT_UNIT : segment;
    *backward_needs_params = segment != 0;
    return 1;
}

static shd_tensor *block(const shd_model *m, shd_tape *tape, shd_tensor *const *p,
                         const shd_model_input *in, shd_tensor *x)
{
    const float eps = m->config.norm_eps;
    shd_tensor *h1 = shd_tape_layernorm(tape, x, p[LN1_W], p[LN1_B], eps);
    shd_tensor *qkv = shd_tape_linear(tape, h1, p[ATTN_W], p[ATTN_B], NULL, 1);
    shd_tape_drop(tape, h1);
    shd_tensor *att = shd_tape_attention(tape, qkv, m->config.n_head, in->tokens);
    shd_tape_drop(tape, qkv);
    shd_tensor *mid = shd_tape_linear(tape, att, p[PROJ_W], p[PROJ_B], x, 1);
    shd_tape_drop(tape, att);
    shd_tape_drop(tape, x);
    shd_tensor *h2 = shd_tape_layernorm(tape, mid, p[LN2_W], p[LN2_B], eps);
    shd_tensor *fc = shd_tape_linear(tape, h2, p[FC_W], p[FC_B], NULL, 1);
    shd_tape_drop(tape, h2);
    shd_tensor *act = shd_tape_gelu(tape, fc);
    shd_tape_drop(tape, fc);
    shd_tensor *out = shd_tape_linear(tape, act, p[OUT_W], p[OUT_B], mid, 1);
    shd_tape_drop(tape, act);
    shd_tape_drop(tape, mid);
    return out;
}

/* The head is the token table: logits = ln_f(x) · wteᵀ. */
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
    shd_tensor *logits = NULL;
    if (in->targets == NULL) {
        logits = shd_tape_linear(tape, h, p[WTE], NULL, NULL, 0);
    } else {
        shd_tape_cross_entropy(tape, h, p[WTE], in->targets, in->losses);
    }
    shd_tape_drop(tape, h);
    return logits;
}

static void gpt2_forward(const shd_model *m, uint32_t segment, shd_tape *tape,
                         shd_tensor *const *params, const shd_model_input *in, shd_tensor **x)
{
    if (segment == 0) {
        *x = shd_tape_embedding(tape, params[WTE], params[WPE], in->ids, in->sequences * in->tokens,
                                in->tokens);
    } else if (segment == m->n_segments - 1) {
        *x = head(m, tape, params, in, *x);
    } else {
        *x = block(m, tape, params + ROOT_PARAMS + (segment - 1) * BLOCK_PARAMS, in, *x);
    }
}

const shd_arch_ops shd_arch_gpt2 = {
    .name = "gpt2",
    .check = gpt2_check,
    .build = gpt2_build,
    .segment_units = gpt2_segment_units,
    .forward = gpt2_forward,
};

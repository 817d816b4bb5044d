/* Llama (Touvron et al. 2023; Llama 3: Grattafiori et al. 2024) and its relatives: pre-RMSNorm
 * blocks, rotary positions, grouped key heads (Ainslie et al. 2023), SwiGLU (Shazeer 2020).
 * Mistral adds a sliding window, Qwen2 biases of q, k and v, Qwen3 a norm of every head's query and
 * key. Names, shapes and layout ([out,in] projections) are those of Hugging Face's *ForCausalLM.
 * Floor F3; pure.
 *
 * Units: 0 holds the token table, then one per block. A tied head is the token table, so unit 0
 * holds the final norm too; else norm and head are the last unit. Segments: embedding, blocks,
 * head. */
#include <math.h>

#include "daemon/base/mem.h"
#include "daemon/model/model_internal.h"

enum { FIRST_UNIT = 0 };

/* Order of the parameter table: these, the blocks, and the head unless it is tied. */
enum { EMBED, NORM, FIRST_BLOCK };
enum {
    Q_W,
    Q_B,
    K_W,
    K_B,
    V_W,
    V_B,
    O_W,
    O_B,
    Q_NORM,
    K_NORM,
    GATE_W,
    GATE_B,
    UP_W,
    UP_B,
    DOWN_W,
    DOWN_B,
    NORM_1,
    NORM_2,
    BLOCK_PARAMS
};

/* A block's parameter: its shape, rows == 0 where this model has none. */
typedef struct block_param {
    const char *name;
    int64_t rows, cols;
} block_param;

static void block_params(const shd_model_config *c, block_param out[BLOCK_PARAMS])
{
    const int64_t C = c->d_model, F = c->d_ff, D = c->head_dim;
    const int64_t Q = c->n_head * D, KV = c->n_kv_head * D;
    const int qkv = c->qkv_bias, o = c->o_bias, mlp = c->mlp_bias;
    const block_param all[BLOCK_PARAMS] = {
        [Q_W] = {"self_attn.q_proj.weight", Q, C},
        [Q_B] = {"self_attn.q_proj.bias", qkv ? Q : 0, 0},
        [K_W] = {"self_attn.k_proj.weight", KV, C},
        [K_B] = {"self_attn.k_proj.bias", qkv ? KV : 0, 0},
        [V_W] = {"self_attn.v_proj.weight", KV, C},
        [V_B] = {"self_attn.v_proj.bias", qkv ? KV : 0, 0},
        [O_W] = {"self_attn.o_proj.weight", C, Q},
        [O_B] = {"self_attn.o_proj.bias", o ? C : 0, 0},
        [Q_NORM] = {"self_attn.q_norm.weight", c->qk_norm ? D : 0, 0},
        [K_NORM] = {"self_attn.k_norm.weight", c->qk_norm ? D : 0, 0},
        [GATE_W] = {"mlp.gate_proj.weight", F, C},
        [GATE_B] = {"mlp.gate_proj.bias", mlp ? F : 0, 0},
        [UP_W] = {"mlp.up_proj.weight", F, C},
        [UP_B] = {"mlp.up_proj.bias", mlp ? F : 0, 0},
        [DOWN_W] = {"mlp.down_proj.weight", C, F},
        [DOWN_B] = {"mlp.down_proj.bias", mlp ? C : 0, 0},
        [NORM_1] = {"input_layernorm.weight", C, 0},
        [NORM_2] = {"post_attention_layernorm.weight", C, 0},
    };
    for (int i = 0; i < BLOCK_PARAMS; i++) {
        out[i] = all[i];
    }
}

/* Angle per position of each pair: theta^(-2i/D), stretched. llama3 leaves short wavelengths as
 * they are, stretches those longer than the original context, and blends between (the Llama 3.1
 * reference code). In fp32 step by step, as the checkpoints were trained. */
static void rope_frequencies(const shd_model_config *c, float *out)
{
    const shd_rope_config *r = &c->rope;
    const float factor = (float)r->factor, low = (float)r->low_freq, high = (float)r->high_freq;
    const float original = (float)r->original_context;
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        float f = 1.0f / powf((float)r->theta, (float)(2 * i) / (float)c->head_dim);
        if (r->kind == SHD_ROPE_LINEAR) {
            f /= factor;
        } else if (r->kind == SHD_ROPE_LLAMA3) {
            const float wavelength = (float)(2.0 * M_PI) / f;
            if (wavelength > original / low) {
                f /= factor;
            } else if (wavelength >= original / high) {
                const float smooth = (original / wavelength - low) / (high - low);
                f = (1.0f - smooth) * (f / factor) + smooth * f;
            }
        }
        out[i] = f;
    }
}

static void llama_build(shd_model *m)
{
    const shd_model_config *c = &m->config;
    const int64_t C = c->d_model, L = c->n_layer;
    const uint32_t last = c->tied ? FIRST_UNIT : (uint32_t)L + 1;
    block_param block[BLOCK_PARAMS];
    block_params(c, block);
    shd_model_add_param(m, FIRST_UNIT, c->vocab, C, 0, c->init_range, "model.embed_tokens.weight");
    m->params[EMBED].zero_row = c->pad;
    shd_model_add_param(m, last, C, 0, 1, 0, "model.norm.weight");
    for (int64_t n = 0; n < L; n++) {
        for (int i = 0; i < BLOCK_PARAMS; i++) {
            if (block[i].rows == 0) {
                continue;
            }
            const int matrix = block[i].cols > 0;
            const int norm = i == Q_NORM || i == K_NORM || i == NORM_1 || i == NORM_2;
            shd_model_add_param(m, (uint32_t)n + 1, block[i].rows, block[i].cols,
                                norm ? 1.0f : 0.0f, matrix ? c->init_range : 0.0f,
                                "model.layers.%d.%s", (int)n, block[i].name);
        }
    }
    if (!c->tied) {
        shd_model_add_param(m, last, c->vocab, C, 0, c->init_range, "lm_head.weight");
    }
    m->n_units = (uint32_t)L + (c->tied ? 1 : 2);
    m->n_segments = (uint32_t)L + 2;
    m->inv_freq = shd_calloc((size_t)c->head_dim / 2, sizeof *m->inv_freq);
    rope_frequencies(c, m->inv_freq);
}

/* q [R, heads*D] of h, normed per head where the model does so, and turned by its position. */
static shd_tensor *rotated(const shd_model *m, shd_tape *tape, const shd_model_input *in,
                           shd_tensor *h, shd_tensor *w, shd_tensor *b, shd_tensor *norm)
{
    const shd_model_config *c = &m->config;
    shd_tensor *x = shd_tape_linear(tape, h, w, b, NULL, 0);
    if (norm != NULL) {
        shd_tensor *normed = shd_tape_rmsnorm(tape, x, norm, c->norm_eps);
        shd_tape_drop(tape, x);
        x = normed;
    }
    return shd_tape_rope(tape, x, m->inv_freq, c->head_dim, in->tokens,
                         shd_model_first_position(in));
}

/* `p` has NULL where the model lacks a parameter. x is dropped. */
static shd_tensor *block(const shd_model *m, shd_tape *tape, shd_tensor *const p[BLOCK_PARAMS],
                         const shd_model_input *in, int64_t layer, shd_tensor *x)
{
    const float eps = m->config.norm_eps;
    shd_tensor *h1 = shd_tape_rmsnorm(tape, x, p[NORM_1], eps);
    shd_tensor *q = rotated(m, tape, in, h1, p[Q_W], p[Q_B], p[Q_NORM]);
    shd_tensor *k = rotated(m, tape, in, h1, p[K_W], p[K_B], p[K_NORM]);
    shd_tensor *v = shd_tape_linear(tape, h1, p[V_W], p[V_B], NULL, 0);
    shd_tape_drop(tape, h1);
    shd_tensor *att = shd_model_attention(m, tape, in, layer, q, k, v);
    shd_tape_drop(tape, q);
    shd_tape_drop(tape, k);
    shd_tape_drop(tape, v);
    shd_tensor *mid = shd_tape_linear(tape, att, p[O_W], p[O_B], x, 0);
    shd_tape_drop(tape, att);
    shd_tape_drop(tape, x);
    shd_tensor *h2 = shd_tape_rmsnorm(tape, mid, p[NORM_2], eps);
    shd_tensor *gate = shd_tape_linear(tape, h2, p[GATE_W], p[GATE_B], NULL, 0);
    shd_tensor *up = shd_tape_linear(tape, h2, p[UP_W], p[UP_B], NULL, 0);
    shd_tape_drop(tape, h2);
    shd_tensor *act = shd_tape_swiglu(tape, gate, up);
    shd_tape_drop(tape, gate);
    shd_tape_drop(tape, up);
    shd_tensor *out = shd_tape_linear(tape, act, p[DOWN_W], p[DOWN_B], mid, 0);
    shd_tape_drop(tape, act);
    shd_tape_drop(tape, mid);
    return out;
}

static void llama_forward(const shd_model *m, uint32_t segment, shd_tape *tape,
                          shd_tensor *const *params, const shd_model_input *in, shd_tensor **x)
{
    const shd_model_config *c = &m->config;
    if (segment == 0) {
        *x = shd_tape_embedding(tape, params[EMBED], NULL, in->ids, in->sequences * in->tokens,
                                in->tokens, shd_model_first_position(in), c->pad);
        return;
    }
    if (segment == m->n_segments - 1) {
        shd_tensor *last = shd_model_wanted_rows(tape, in, *x);
        shd_tensor *h = shd_tape_rmsnorm(tape, last, params[NORM], c->norm_eps);
        shd_tape_drop(tape, last);
        *x = shd_model_head(tape, in, h, params[c->tied ? EMBED : m->n_params - 1]);
        return;
    }
    const int64_t layer = segment - 1;
    const uint32_t per_block = (m->n_params - FIRST_BLOCK - !c->tied) / (uint32_t)c->n_layer;
    shd_tensor *const *next = params + FIRST_BLOCK + (uint32_t)layer * per_block;
    block_param shapes[BLOCK_PARAMS];
    shd_tensor *p[BLOCK_PARAMS];
    block_params(c, shapes);
    for (int i = 0; i < BLOCK_PARAMS; i++) {
        p[i] = shapes[i].rows > 0 ? *next++ : NULL;
    }
    *x = block(m, tape, p, in, layer, *x);
}

const shd_arch_ops shd_arch_llama = {
    .build = llama_build,
    .forward = llama_forward,
};

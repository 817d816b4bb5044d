/* Configurations and what they may hold; see config.h. Floor F3; pure. */
#include "daemon/model/config.h"

shd_model_config shd_model_config_gpt2(int64_t n_layer, int64_t n_head, int64_t d_model,
                                       int64_t context, int64_t vocab)
{
    return (shd_model_config){
        .arch = SHD_ARCH_GPT2,
        .n_layer = n_layer,
        .n_head = n_head,
        .n_kv_head = n_head,
        .head_dim = n_head > 0 ? d_model / n_head : 0,
        .d_model = d_model,
        .d_ff = 4 * d_model,
        .context = context,
        .vocab = vocab,
        .pad = -1,
        .norm_eps = 1e-5f,
        .init_range = 0.02f,
        .tied = 1,
        .activation = SHD_ACT_GELU_TANH,
        .scale_attn = 1,
        .qkv_bias = 1,
        .o_bias = 1,
        .mlp_bias = 1,
    };
}

shd_model_config shd_model_config_llama(int64_t n_layer, int64_t n_head, int64_t d_model,
                                        int64_t d_ff, int64_t context, int64_t vocab)
{
    return (shd_model_config){
        .arch = SHD_ARCH_LLAMA,
        .n_layer = n_layer,
        .n_head = n_head,
        .n_kv_head = n_head,
        .head_dim = n_head > 0 ? d_model / n_head : 0,
        .d_model = d_model,
        .d_ff = d_ff,
        .context = context,
        .vocab = vocab,
        .pad = -1,
        .norm_eps = 1e-5f,
        .init_range = 0.02f,
        .activation = SHD_ACT_SILU,
        .scale_attn = 1,
        .rope = {.kind = SHD_ROPE_DEFAULT, .theta = 10000.0, .factor = 1.0},
    };
}

const char *shd_arch_name(shd_arch arch)
{
    static const char *const names[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};
    return names[arch];
}

static int check_size(const char *what, int64_t value, int64_t most, shd_error *err)
{
    if (value < 1 || value > most) {
        return shd_fail(err, SHD_EINVAL, "model: %s is %lld; it must be 1 to %lld", what,
                        (long long)value, (long long)most);
    }
    return 0;
}

static int check_gpt2(const shd_model_config *c, shd_error *err)
{
    if (c->d_model % c->n_head != 0) {
        return shd_fail(err, SHD_EINVAL, "model: d_model %lld is not a multiple of n_head %lld",
                        (long long)c->d_model, (long long)c->n_head);
    }
    if (c->n_kv_head != c->n_head) {
        return shd_fail(err, SHD_EINVAL, "model: n_kv_head %lld: gpt2 has as many as n_head, %lld",
                        (long long)c->n_kv_head, (long long)c->n_head);
    }
    if (c->head_dim * c->n_head != c->d_model) {
        return shd_fail(err, SHD_EINVAL, "model: head_dim %lld: gpt2 has d_model / n_head, %lld",
                        (long long)c->head_dim, (long long)(c->d_model / c->n_head));
    }
    if (c->pad >= 0) {
        return shd_fail(err, SHD_EINVAL, "model: pad is %lld; gpt2 has none", (long long)c->pad);
    }
    if (c->activation == SHD_ACT_SILU) {
        return shd_fail(err, SHD_EINVAL, "model: gpt2 has no activation silu; use gelu");
    }
    return 0;
}

static int check_llama(const shd_model_config *c, shd_error *err)
{
    const shd_rope_config *r = &c->rope;
    if (c->n_head % c->n_kv_head != 0) {
        return shd_fail(err, SHD_EINVAL, "model: n_head %lld is not a multiple of n_kv_head %lld",
                        (long long)c->n_head, (long long)c->n_kv_head);
    }
    if (c->head_dim % 2 != 0) {
        return shd_fail(err, SHD_EINVAL, "model: head_dim %lld is odd; rotary positions take pairs",
                        (long long)c->head_dim);
    }
    if (c->activation != SHD_ACT_SILU) {
        return shd_fail(err, SHD_EINVAL, "model: %s has the activation silu alone",
                        shd_arch_name(c->arch));
    }
    if (!c->scale_attn || c->scale_attn_by_layer) {
        return shd_fail(err, SHD_EINVAL, "model: %s scales its scores by 1/sqrt(head_dim) alone",
                        shd_arch_name(c->arch));
    }
    if (c->sliding_window < 0) {
        return shd_fail(err, SHD_EINVAL, "model: sliding_window %lld must not be negative",
                        (long long)c->sliding_window);
    }
    if (!(r->theta > 0.0) || r->theta > 1e15) {
        return shd_fail(err, SHD_EINVAL, "model: rope theta %g must be above 0 and at most 1e15",
                        r->theta);
    }
    if (r->kind != SHD_ROPE_DEFAULT && !(r->factor >= 1.0 && r->factor <= 1e6)) {
        return shd_fail(err, SHD_EINVAL, "model: rope factor %g must be 1 to 1e6", r->factor);
    }
    if (r->kind == SHD_ROPE_LLAMA3 &&
        !(r->low_freq > 0.0 && r->high_freq > r->low_freq && r->high_freq <= 1e6)) {
        return shd_fail(err, SHD_EINVAL,
                        "model: rope low_freq %g and high_freq %g: must be above 0, the second "
                        "above the first and at most 1e6",
                        r->low_freq, r->high_freq);
    }
    if (r->kind == SHD_ROPE_LLAMA3 &&
        (r->original_context < 1 || r->original_context > SHD_MODEL_MAX_CONTEXT)) {
        return shd_fail(err, SHD_EINVAL, "model: rope original_context %lld must be 1 to %d",
                        (long long)r->original_context, SHD_MODEL_MAX_CONTEXT);
    }
    return 0;
}

int shd_model_check(const shd_model_config *c, shd_error *err)
{
    SHD_TRY(check_size("n_layer", c->n_layer, SHD_MODEL_MAX_LAYERS, err));
    SHD_TRY(check_size("n_head", c->n_head, SHD_MODEL_MAX_HEADS, err));
    SHD_TRY(check_size("n_kv_head", c->n_kv_head, SHD_MODEL_MAX_HEADS, err));
    SHD_TRY(check_size("head_dim", c->head_dim, SHD_MODEL_MAX_HEAD_DIM, err));
    SHD_TRY(check_size("d_model", c->d_model, SHD_MODEL_MAX_WIDTH, err));
    SHD_TRY(check_size("context", c->context, SHD_MODEL_MAX_CONTEXT, err));
    SHD_TRY(check_size("vocab", c->vocab, SHD_MODEL_MAX_VOCAB, err));
    SHD_TRY(check_size("d_ff", c->d_ff, SHD_MODEL_MAX_INNER, err));
    if (c->pad < -1 || c->pad >= c->vocab) {
        return shd_fail(err, SHD_EINVAL, "model: pad is %lld; it must be -1 or a token below %lld",
                        (long long)c->pad, (long long)c->vocab);
    }
    if (!(c->norm_eps > 0.0f) || c->norm_eps > 1.0f) {
        return shd_fail(err, SHD_EINVAL, "model: norm_eps %g must be above 0 and at most 1",
                        (double)c->norm_eps);
    }
    if (!(c->init_range >= 0.0f) || c->init_range > 1.0f) {
        return shd_fail(err, SHD_EINVAL, "model: init_range %g must be 0 to 1",
                        (double)c->init_range);
    }
    return c->arch == SHD_ARCH_GPT2 ? check_gpt2(c, err) : check_llama(c, err);
}

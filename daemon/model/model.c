/* Presets, the parameter table, dispatch to architectures; see model.h. Floor F3; immutable. */
#include "daemon/model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/model/model_internal.h"

static const struct {
    const char *name;
    const shd_arch_ops *ops;
} archs[] = {
    [SHD_ARCH_GPT2] = {"gpt2", &shd_arch_gpt2},
    [SHD_ARCH_LLAMA] = {"llama", &shd_arch_llama},
    [SHD_ARCH_MISTRAL] = {"mistral", &shd_arch_llama},
    [SHD_ARCH_QWEN2] = {"qwen2", &shd_arch_llama},
    [SHD_ARCH_QWEN3] = {"qwen3", &shd_arch_llama},
};

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
        .norm_eps = 1e-5f,
        .init_range = 0.02f,
        .activation = SHD_ACT_SILU,
        .scale_attn = 1,
        .rope = {.kind = SHD_ROPE_DEFAULT, .theta = 10000.0, .factor = 1.0},
    };
}

const char *shd_arch_name(shd_arch arch)
{
    return archs[arch].name;
}

static int check_size(const char *what, int64_t value, int64_t most, shd_error *err)
{
    if (value < 1 || value > most) {
        return shd_fail(err, SHD_EINVAL, "model: %s is %lld; it must be 1 to %lld", what,
                        (long long)value, (long long)most);
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
    if (!(c->norm_eps > 0.0f) || c->norm_eps > 1.0f) {
        return shd_fail(err, SHD_EINVAL, "model: norm_eps %g must be above 0 and at most 1",
                        (double)c->norm_eps);
    }
    if (!(c->init_range >= 0.0f) || c->init_range > 1.0f) {
        return shd_fail(err, SHD_EINVAL, "model: init_range %g must be 0 to 1",
                        (double)c->init_range);
    }
    return archs[c->arch].ops->check(c, err);
}

int shd_model_create(const shd_model_config *config, shd_model **out, shd_error *err)
{
    SHD_TRY(shd_model_check(config, err));
    const shd_arch_ops *ops = archs[config->arch].ops;
    shd_model *model = shd_calloc(1, sizeof *model);
    model->config = *config;
    model->ops = ops;
    ops->build(model);
    *out = model;
    return 0;
}

void shd_model_free(shd_model *model)
{
    if (model != NULL) {
        free(model->params);
        free(model->inv_freq);
        free(model);
    }
}

void shd_model_add_param(shd_model *model, uint32_t unit, int64_t rows, int64_t cols, float mean,
                         float std, const char *fmt, ...)
{
    if (model->n_params == model->cap_params) {
        model->cap_params = model->cap_params > 0 ? 2 * model->cap_params : 16;
        model->params = shd_reallocarray(model->params, model->cap_params, sizeof *model->params);
    }
    shd_param_info *info = &model->params[model->n_params++];
    *info = (shd_param_info){.ndim = cols > 0 ? 2 : 1,
                             .shape = {rows, cols},
                             .unit = unit,
                             .decay = cols > 0,
                             .init_mean = mean,
                             .init_std = std};
    va_list args;
    va_start(args, fmt);
    vsnprintf(info->name, sizeof info->name, fmt, args);
    va_end(args);
}

const shd_model_config *shd_model_config_of(const shd_model *model)
{
    return &model->config;
}
uint32_t shd_model_n_params(const shd_model *model)
{
    return model->n_params;
}
uint32_t shd_model_n_units(const shd_model *model)
{
    return model->n_units;
}
uint32_t shd_model_n_segments(const shd_model *model)
{
    return model->n_segments;
}

const shd_param_info *shd_model_param(const shd_model *model, uint32_t i)
{
    return &model->params[i];
}

int64_t shd_param_numel(const shd_param_info *info)
{
    return info->ndim == 2 ? info->shape[0] * info->shape[1] : info->shape[0];
}

int64_t shd_model_kv_width(const shd_model *model)
{
    return model->config.n_kv_head * model->config.head_dim;
}

uint32_t shd_model_segment_units(const shd_model *model, uint32_t segment, uint32_t units[2],
                                 int *backward_needs_params)
{
    units[0] = model->config.tied && segment == model->n_segments - 1 ? 0 : segment;
    *backward_needs_params = segment != 0; /* looking up needs none */
    return 1;
}

void shd_model_forward(const shd_model *model, uint32_t segment, shd_tape *tape,
                       shd_tensor *const *params, const shd_model_input *in, shd_tensor **x)
{
    model->ops->forward(model, segment, tape, params, in, x);
}

/* The parameter table, dispatch to architectures; see model.h. Floor F3; immutable. */
#include "daemon/model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/model/model_internal.h"

static const shd_arch_ops *const archs[] = {
    [SHD_ARCH_GPT2] = &shd_arch_gpt2,     [SHD_ARCH_LLAMA] = &shd_arch_llama,
    [SHD_ARCH_MISTRAL] = &shd_arch_llama, [SHD_ARCH_QWEN2] = &shd_arch_llama,
    [SHD_ARCH_QWEN3] = &shd_arch_llama,
};

int shd_model_create(const shd_model_config *config, shd_model **out, shd_error *err)
{
    SHD_TRY(shd_model_check(config, err));
    const shd_arch_ops *ops = archs[config->arch];
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
                             .init_std = std,
                             .zero_row = -1};
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

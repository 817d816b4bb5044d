/* Presets, the parameter table, dispatch to architectures; see model.h. Floor F3; immutable. */
#include "daemon/model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/model/model_internal.h"

static const shd_arch_ops *const archs[] = {[SHD_ARCH_GPT2] = &shd_arch_gpt2};

static const struct {
    const char *name;
    shd_model_config config;
} presets[] = {
    {"gpt-byte-1m", {SHD_ARCH_GPT2, 4, 4, 128, 256, 256, 1e-5f}},
    {"gpt-byte-10m", {SHD_ARCH_GPT2, 6, 6, 384, 256, 256, 1e-5f}},
    {"gpt2", {SHD_ARCH_GPT2, 12, 12, 768, 1024, 50257, 1e-5f}},
    {"gpt2-medium", {SHD_ARCH_GPT2, 24, 16, 1024, 1024, 50257, 1e-5f}},
    {"gpt2-large", {SHD_ARCH_GPT2, 36, 20, 1280, 1024, 50257, 1e-5f}},
    {"gpt2-xl", {SHD_ARCH_GPT2, 48, 25, 1600, 1024, 50257, 1e-5f}},
};

const char *shd_model_presets(void)
{
    return "gpt-byte-1m, gpt-byte-10m, gpt2, gpt2-medium, gpt2-large, gpt2-xl";
}

int shd_model_preset(const char *name, shd_model_config *out, shd_error *err)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *out = presets[i].config;
            return 0;
        }
    }
    return shd_fail(err, SHD_ENOTFOUND, "--model '%s' is not a preset; choose one of %s", name,
                    shd_model_presets());
}

int shd_model_create(const shd_model_config *config, shd_model **out, shd_error *err)
{
    const shd_arch_ops *ops = archs[config->arch];
    SHD_TRY(ops->check(config, err));
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

uint32_t shd_model_segment_units(const shd_model *model, uint32_t segment, uint32_t units[2],
                                 int *backward_needs_params)
{
    return model->ops->segment_units(model, segment, units, backward_needs_params);
}

void shd_model_forward(const shd_model *model, uint32_t segment, shd_tape *tape,
                       shd_tensor *const *params, const shd_model_input *in, shd_tensor **x)
{
    model->ops->forward(model, segment, tape, params, in, x);
}

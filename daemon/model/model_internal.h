/* What an architecture provides. Floor F3; private to daemon/model. */
#ifndef SHD_DAEMON_MODEL_MODEL_INTERNAL_H
#define SHD_DAEMON_MODEL_MODEL_INTERNAL_H

#include "daemon/model/model.h"

typedef struct shd_arch_ops {
    const char *name;
    int (*check)(const shd_model_config *config, shd_error *err);
    void (*build)(shd_model *model); /* fills the parameter table through shd_model_add_param */
    uint32_t (*segment_units)(const shd_model *model, uint32_t segment, uint32_t units[2],
                              int *backward_needs_params);
    void (*forward)(const shd_model *model, uint32_t segment, shd_tape *tape,
                    shd_tensor *const *params, const shd_model_input *in, shd_tensor **x);
} shd_arch_ops;

struct shd_model {
    shd_model_config config;
    const shd_arch_ops *ops;
    shd_param_info *params;
    uint32_t n_params, cap_params;
    uint32_t n_units, n_segments;
};

extern const shd_arch_ops shd_arch_gpt2;

/* Appends a parameter of 1 (cols == 0) or 2 dimensions to `unit`; matrices decay, vectors do not.
 */
void shd_model_add_param(shd_model *model, uint32_t unit, int64_t rows, int64_t cols, float mean,
                         float std, const char *fmt, ...) __attribute__((format(printf, 7, 8)));

#endif

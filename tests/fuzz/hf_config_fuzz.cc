// config.json and generation_config.json of a checkpoint: whatever its bytes, it is refused by
// name, or gives a model that is accepted and whose own config.json means the same.
#include "daemon/model/hf_config.h"

#include <cstdlib>
#include <cstring>

static bool Same(const shd_model_config &a, const shd_model_config &b)
{
    for (int64_t i = 0; i < a.n_layer; i++) {
        if (shd_model_layer_windowed(&a, i) != shd_model_layer_windowed(&b, i)) {
            return false;
        }
    }
    return a.arch == b.arch && a.n_layer == b.n_layer && a.n_head == b.n_head &&
           a.n_kv_head == b.n_kv_head && a.head_dim == b.head_dim && a.d_model == b.d_model &&
           a.d_ff == b.d_ff && a.context == b.context && a.vocab == b.vocab && a.pad == b.pad &&
           a.norm_eps == b.norm_eps && a.init_range == b.init_range && a.tied == b.tied &&
           a.activation == b.activation && a.scale_attn == b.scale_attn &&
           a.scale_attn_by_layer == b.scale_attn_by_layer && a.qkv_bias == b.qkv_bias &&
           a.o_bias == b.o_bias && a.mlp_bias == b.mlp_bias && a.qk_norm == b.qk_norm &&
           a.sliding_window == b.sliding_window && a.rope.kind == b.rope.kind;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *json = reinterpret_cast<const char *>(data);
    shd_model_config config, again;
    shd_hf_info info;
    shd_error err;
    char *text = nullptr;
    if (shd_hf_config_with_dtype(json, size, "float16", &text, &err) == 0) {
        free(text);
    }
    info = {};
    (void)shd_hf_generation_parse(json, size, 1000, &info, &err);
    for (uint32_t i = 0; i < info.n_eos; i++) {
        if (i >= SHD_HF_MAX_EOS || info.eos[i] < 0 || info.eos[i] >= 1000) {
            abort();
        }
    }
    const int rc = shd_hf_config_parse(json, size, &config, &info, &err);
    if (rc != 0) {
        const bool named =
            strncmp(err.message, "config.json", 11) == 0 || strncmp(err.message, "model: ", 7) == 0;
        if ((rc != SHD_EINVAL && rc != SHD_EUNSUPPORTED) || !named) {
            abort();
        }
        return 0;
    }
    if (shd_model_check(&config, &err) != 0 || info.n_eos > SHD_HF_MAX_EOS) {
        abort();
    }
    text = shd_hf_config_write(&config, "float32");
    if (shd_hf_config_parse(text, strlen(text), &again, &info, &err) != 0 || !Same(config, again)) {
        abort();
    }
    free(text);
    return 0;
}

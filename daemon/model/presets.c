/* Models by name: shapes as published; see config.h. Floor F3; pure. */
#include <string.h>

#include "daemon/model/config.h"

typedef struct preset {
    const char *name;
    shd_arch arch;
    int64_t n_layer, n_head, n_kv_head, head_dim, d_model, d_ff, context, vocab;
    int tied;
    float norm_eps;
    double theta;
    double llama3_factor; /* 0: positions as they are */
} preset;

#define GPT2(name, layers, heads, width, context, vocab)                                           \
    {                                                                                              \
        name, SHD_ARCH_GPT2, layers, heads, heads, (width) / (heads), width, 4 * (width), context, \
            vocab, 1, 1e-5f, 0, 0                                                                  \
    }

static const preset presets[] = {
    GPT2("gpt-byte-1m", 4, 4, 128, 256, 256),
    GPT2("gpt-byte-10m", 6, 6, 384, 256, 256),
    GPT2("gpt2", 12, 12, 768, 1024, 50257),
    GPT2("gpt2-medium", 24, 16, 1024, 1024, 50257),
    GPT2("gpt2-large", 36, 20, 1280, 1024, 50257),
    GPT2("gpt2-xl", 48, 25, 1600, 1024, 50257),
    /* name, architecture, layers, heads, key heads, head width, width, inner width, context,
       vocabulary, tied, norm epsilon, theta, llama3 factor */
    {"smollm2-135m", SHD_ARCH_LLAMA, 30, 9, 3, 64, 576, 1536, 8192, 49152, 1, 1e-5f, 1e5, 0},
    {"smollm2-360m", SHD_ARCH_LLAMA, 32, 15, 5, 64, 960, 2560, 8192, 49152, 1, 1e-5f, 1e5, 0},
    {"smollm2-1.7b", SHD_ARCH_LLAMA, 24, 32, 32, 64, 2048, 8192, 8192, 49152, 1, 1e-5f, 1.3e5, 0},
    {"llama-2-7b", SHD_ARCH_LLAMA, 32, 32, 32, 128, 4096, 11008, 4096, 32000, 0, 1e-5f, 1e4, 0},
    {"llama-3.1-8b", SHD_ARCH_LLAMA, 32, 32, 8, 128, 4096, 14336, 131072, 128256, 0, 1e-5f, 5e5, 8},
    {"llama-3.2-1b", SHD_ARCH_LLAMA, 16, 32, 8, 64, 2048, 8192, 131072, 128256, 1, 1e-5f, 5e5, 32},
    {"llama-3.2-3b", SHD_ARCH_LLAMA, 28, 24, 8, 128, 3072, 8192, 131072, 128256, 1, 1e-5f, 5e5, 32},
    {"mistral-7b", SHD_ARCH_MISTRAL, 32, 32, 8, 128, 4096, 14336, 32768, 32000, 0, 1e-5f, 1e4, 0},
    {"qwen2.5-0.5b", SHD_ARCH_QWEN2, 24, 14, 2, 64, 896, 4864, 32768, 151936, 1, 1e-6f, 1e6, 0},
    {"qwen2.5-1.5b", SHD_ARCH_QWEN2, 28, 12, 2, 128, 1536, 8960, 131072, 151936, 1, 1e-6f, 1e6, 0},
    {"qwen3-0.6b", SHD_ARCH_QWEN3, 28, 16, 8, 128, 1024, 3072, 40960, 151936, 1, 1e-6f, 1e6, 0},
    {"qwen3-1.7b", SHD_ARCH_QWEN3, 28, 16, 8, 128, 2048, 6144, 40960, 151936, 1, 1e-6f, 1e6, 0},
};

const char *shd_model_presets(void)
{
    return "gpt-byte-1m, gpt-byte-10m, gpt2, gpt2-medium, gpt2-large, gpt2-xl, smollm2-135m, "
           "smollm2-360m, smollm2-1.7b, llama-2-7b, llama-3.1-8b, llama-3.2-1b, llama-3.2-3b, "
           "mistral-7b, qwen2.5-0.5b, qwen2.5-1.5b, qwen3-0.6b, qwen3-1.7b";
}

static shd_model_config config_of(const preset *p)
{
    if (p->arch == SHD_ARCH_GPT2) {
        return shd_model_config_gpt2(p->n_layer, p->n_head, p->d_model, p->context, p->vocab);
    }
    shd_model_config c =
        shd_model_config_llama(p->n_layer, p->n_head, p->d_model, p->d_ff, p->context, p->vocab);
    c.arch = p->arch;
    c.n_kv_head = p->n_kv_head;
    c.head_dim = p->head_dim;
    c.norm_eps = p->norm_eps;
    c.tied = p->tied;
    c.qkv_bias = p->arch == SHD_ARCH_QWEN2;
    c.qk_norm = p->arch == SHD_ARCH_QWEN3;
    c.rope.theta = p->theta;
    if (p->arch == SHD_ARCH_MISTRAL) {
        c.sliding_window = 4096;
        memset(c.windowed, 0xff, sizeof c.windowed);
    }
    if (p->llama3_factor > 0) {
        c.rope.kind = SHD_ROPE_LLAMA3;
        c.rope.factor = p->llama3_factor;
        c.rope.low_freq = 1;
        c.rope.high_freq = 4;
        c.rope.original_context = 8192;
    }
    return c;
}

int shd_model_preset(const char *name, shd_model_config *out, shd_error *err)
{
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *out = config_of(&presets[i]);
            return 0;
        }
    }
    return shd_fail(err, SHD_ENOTFOUND, "--model '%s' is not a preset; choose one of %s", name,
                    shd_model_presets());
}

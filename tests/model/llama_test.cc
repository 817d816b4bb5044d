// The Llama family: published numbers of parameters, the parameter table, units, and what is
// refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "daemon/model/model.h"

namespace
{

struct Model {
    explicit Model(const shd_model_config &config)
    {
        shd_error err = {};
        EXPECT_EQ(0, shd_model_create(&config, &model, &err)) << err.message;
    }
    ~Model()
    {
        shd_model_free(model);
    }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;
    shd_model *model = nullptr;
};

TEST(LlamaPresets, HaveThePublishedNumbersOfParameters)
{
    const std::map<std::string, int64_t> published = {
        {"smollm2-135m", 134515008},  {"smollm2-360m", 361821120},  {"smollm2-1.7b", 1711376384},
        {"llama-2-7b", 6738415616},   {"llama-3.1-8b", 8030261248}, {"llama-3.2-1b", 1235814400},
        {"llama-3.2-3b", 3212749824}, {"mistral-7b", 7241732096},   {"qwen2.5-0.5b", 494032768},
        {"qwen2.5-1.5b", 1543714304}, {"qwen3-0.6b", 596049920},    {"qwen3-1.7b", 1720574976},
    };
    for (const auto &[name, numel] : published) {
        shd_model_config config;
        shd_error err = {};
        ASSERT_EQ(0, shd_model_preset(name.c_str(), &config, &err)) << err.message;
        Model m(config);
        int64_t n = 0;
        for (uint32_t i = 0; i < shd_model_n_params(m.model); i++) {
            n += shd_param_numel(shd_model_param(m.model, i));
        }
        EXPECT_EQ(numel, n) << name;
        EXPECT_EQ(config.n_kv_head * config.head_dim, shd_model_kv_width(m.model));
    }
}

shd_model_config Odd()
{
    shd_model_config c = shd_model_config_llama(2, 6, 35, 51, 19, 97);
    c.n_kv_head = 2;
    c.head_dim = 10;
    c.init_range = 0.03f;
    return c;
}

struct Want {
    std::string name;
    int64_t rows, cols;
};

void ExpectTable(const shd_model_config &c, const std::vector<Want> &block)
{
    Model m(c);
    std::vector<Want> want = {{"model.embed_tokens.weight", 97, 35}, {"model.norm.weight", 35, 0}};
    std::vector<uint32_t> unit = {0, c.tied ? 0u : 3u};
    for (uint32_t i = 0; i < 2; i++) {
        for (const Want &w : block) {
            want.push_back({"model.layers." + std::to_string(i) + "." + w.name, w.rows, w.cols});
            unit.push_back(i + 1);
        }
    }
    if (!c.tied) {
        want.push_back({"lm_head.weight", 97, 35});
        unit.push_back(3);
    }
    ASSERT_EQ(want.size(), shd_model_n_params(m.model));
    for (uint32_t i = 0; i < want.size(); i++) {
        const shd_param_info *info = shd_model_param(m.model, i);
        EXPECT_EQ(want[i].name, info->name);
        EXPECT_EQ(want[i].rows, info->shape[0]) << info->name;
        EXPECT_EQ(want[i].cols, info->shape[1]) << info->name;
        EXPECT_EQ(want[i].cols > 0 ? 2 : 1, info->ndim) << info->name;
        EXPECT_EQ(unit[i], info->unit) << info->name;
        EXPECT_EQ(want[i].cols > 0, info->decay != 0) << info->name;
        // transformers: matrices are normal with initializer_range, norms 1, biases 0.
        EXPECT_EQ(want[i].cols > 0 ? 0.03f : 0.0f, info->init_std) << info->name;
        EXPECT_EQ(want[i].name.find("norm") != std::string::npos ? 1.0f : 0.0f, info->init_mean);
    }
    ASSERT_EQ(c.tied ? 3u : 4u, shd_model_n_units(m.model));
    ASSERT_EQ(4u, shd_model_n_segments(m.model));
    for (uint32_t s = 0; s < 4; s++) {
        uint32_t units[2] = {99, 99};
        int needs = -1;
        ASSERT_EQ(1u, shd_model_segment_units(m.model, s, units, &needs));
        EXPECT_EQ(s == 3 && c.tied ? 0 : s, units[0]);
        EXPECT_EQ(s != 0, needs != 0);
    }
}

TEST(LlamaParameters, AreThoseOfHuggingFaceCheckpoints)
{
    shd_model_config c = Odd();
    const std::vector<Want> plain = {
        {"self_attn.q_proj.weight", 60, 35},       {"self_attn.k_proj.weight", 20, 35},
        {"self_attn.v_proj.weight", 20, 35},       {"self_attn.o_proj.weight", 35, 60},
        {"mlp.gate_proj.weight", 51, 35},          {"mlp.up_proj.weight", 51, 35},
        {"mlp.down_proj.weight", 35, 51},          {"input_layernorm.weight", 35, 0},
        {"post_attention_layernorm.weight", 35, 0}};
    ExpectTable(c, plain);
    c.tied = 1;
    ExpectTable(c, plain);
    c.qkv_bias = 1;
    ExpectTable(c, {{"self_attn.q_proj.weight", 60, 35},
                    {"self_attn.q_proj.bias", 60, 0},
                    {"self_attn.k_proj.weight", 20, 35},
                    {"self_attn.k_proj.bias", 20, 0},
                    {"self_attn.v_proj.weight", 20, 35},
                    {"self_attn.v_proj.bias", 20, 0},
                    {"self_attn.o_proj.weight", 35, 60},
                    {"mlp.gate_proj.weight", 51, 35},
                    {"mlp.up_proj.weight", 51, 35},
                    {"mlp.down_proj.weight", 35, 51},
                    {"input_layernorm.weight", 35, 0},
                    {"post_attention_layernorm.weight", 35, 0}});
    c.o_bias = c.mlp_bias = c.qk_norm = 1;
    ExpectTable(c, {{"self_attn.q_proj.weight", 60, 35},
                    {"self_attn.q_proj.bias", 60, 0},
                    {"self_attn.k_proj.weight", 20, 35},
                    {"self_attn.k_proj.bias", 20, 0},
                    {"self_attn.v_proj.weight", 20, 35},
                    {"self_attn.v_proj.bias", 20, 0},
                    {"self_attn.o_proj.weight", 35, 60},
                    {"self_attn.o_proj.bias", 35, 0},
                    {"self_attn.q_norm.weight", 10, 0},
                    {"self_attn.k_norm.weight", 10, 0},
                    {"mlp.gate_proj.weight", 51, 35},
                    {"mlp.gate_proj.bias", 51, 0},
                    {"mlp.up_proj.weight", 51, 35},
                    {"mlp.up_proj.bias", 51, 0},
                    {"mlp.down_proj.weight", 35, 51},
                    {"mlp.down_proj.bias", 35, 0},
                    {"input_layernorm.weight", 35, 0},
                    {"post_attention_layernorm.weight", 35, 0}});
}

void ExpectRefused(const shd_model_config &config, const char *said)
{
    shd_model *model = nullptr;
    shd_error err = {};
    EXPECT_EQ(SHD_EINVAL, shd_model_create(&config, &model, &err)) << said;
    EXPECT_NE(nullptr, strstr(err.message, said)) << err.message;
    EXPECT_EQ(nullptr, model);
}

TEST(LlamaRefusals, NameTheFieldAndTheValue)
{
    shd_model_config c = Odd();
    c.n_kv_head = 4;
    ExpectRefused(c, "n_kv_head 4");
    c = Odd();
    c.head_dim = 7;
    ExpectRefused(c, "head_dim 7");
    c = Odd();
    c.head_dim = 0;
    ExpectRefused(c, "head_dim is 0");
    c = Odd();
    c.pad = 97;
    ExpectRefused(c, "pad is 97");
    c = Odd();
    c.activation = SHD_ACT_GELU;
    ExpectRefused(c, "silu");
    c = Odd();
    c.scale_attn = 0;
    ExpectRefused(c, "scores");
    c = Odd();
    c.sliding_window = -1;
    ExpectRefused(c, "sliding_window -1");
    for (double theta : {0.0, -1.0, std::nan(""), 1e16}) {
        c = Odd();
        c.rope.theta = theta;
        ExpectRefused(c, "theta");
    }
    c = Odd();
    c.rope.kind = SHD_ROPE_LINEAR;
    c.rope.factor = 0.5;
    ExpectRefused(c, "factor 0.5");
    c.rope = {SHD_ROPE_LLAMA3, 1e4, 8, 4, 1, 8192};
    ExpectRefused(c, "low_freq 4");
    c.rope = {SHD_ROPE_LLAMA3, 1e4, 8, 1, 4, 0};
    ExpectRefused(c, "original_context 0");
}

} // namespace

// config.json: real files give the published shapes, every refusal names its key and value, and
// what is written reads back the same.
#include "daemon/model/hf_config.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "daemon/model/model.h"

namespace
{

// As published, long lists of labels and sampling settings included.
const char kGpt2[] = R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
 "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
 "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024,
 "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
 "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
 "summary_type": "cls_index", "summary_use_proj": true,
 "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
 "vocab_size": 50257})";

const char kLlama32[] = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
 "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
 "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
 "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
 "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
 "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
 "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
  "original_max_position_embeddings": 8192, "rope_type": "llama3"},
 "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
 "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})";

const char kSmolLm2[] = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
 "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu",
 "hidden_size": 576, "initializer_range": 0.041666666666666664, "intermediate_size": 1536,
 "is_llama_config": true, "max_position_embeddings": 8192, "model_type": "llama",
 "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
 "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
 "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
 "use_cache": true, "vocab_size": 49152})";

const char kMistral[] = R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1,
 "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
 "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
 "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
 "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
 "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
 "use_cache": true, "vocab_size": 32000})";

const char kQwen25[] = R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
 "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
 "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
 "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
 "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
 "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
 "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true,
 "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})";

const char kQwen3[] = R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
 "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
 "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
 "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
 "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
 "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
 "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
 "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

struct Read {
    explicit Read(const std::string &json)
    {
        rc = shd_hf_config_parse(json.data(), json.size(), &config, &info, &err);
    }
    int rc;
    shd_model_config config = {};
    shd_hf_info info = {};
    shd_error err = {};
};

int64_t Numel(const shd_model_config &config)
{
    shd_model *model = nullptr;
    shd_error err = {};
    EXPECT_EQ(0, shd_model_create(&config, &model, &err)) << err.message;
    int64_t n = 0;
    for (uint32_t i = 0; model != nullptr && i < shd_model_n_params(model); i++) {
        n += shd_param_numel(shd_model_param(model, i));
    }
    shd_model_free(model);
    return n;
}

// `json` with one key's value replaced, or the key added.
std::string With(std::string json, const std::string &key, const std::string &value)
{
    const size_t at = json.find("\"" + key + "\":");
    if (at == std::string::npos) {
        json.insert(1, "\"" + key + "\": " + value + ", ");
        return json;
    }
    const size_t from = at + key.size() + 3;
    size_t to = from, depth = 0;
    while (depth > 0 || (json[to] != ',' && json[to] != '}')) {
        depth += json[to] == '[' || json[to] == '{';
        depth -= json[to] == ']' || json[to] == '}';
        to++;
    }
    return json.replace(from, to - from, " " + value);
}

TEST(HfConfig, PublishedFilesGiveThePublishedModels)
{
    struct Case {
        const char *json, *preset;
        int64_t numel;
        const char *dtype;
    };
    const Case cases[] = {
        {kGpt2, "gpt2", 124439808, ""},
        {kLlama32, "llama-3.2-1b", 1235814400, "bfloat16"},
        {kSmolLm2, "smollm2-135m", 134515008, "bfloat16"},
        {kMistral, "mistral-7b", 7241732096, "bfloat16"},
        {kQwen25, "qwen2.5-0.5b", 494032768, "bfloat16"},
        {kQwen3, "qwen3-0.6b", 596049920, "bfloat16"},
    };
    for (const Case &c : cases) {
        const Read read(c.json);
        ASSERT_EQ(0, read.rc) << read.err.message;
        EXPECT_EQ(c.numel, Numel(read.config)) << c.preset;
        EXPECT_STREQ(c.dtype, read.info.dtype);
        shd_model_config preset;
        shd_error err = {};
        ASSERT_EQ(0, shd_model_preset(c.preset, &preset, &err)) << err.message;
        preset.init_range = read.config.init_range; // published ones differ
        char *a = shd_hf_config_write(&preset, "float32");
        char *b = shd_hf_config_write(&read.config, "float32");
        EXPECT_STREQ(a, b) << c.preset;
        free(a);
        free(b);
    }
    const Read smol(kSmolLm2);
    EXPECT_FLOAT_EQ(0.041666668f, smol.config.init_range);
    const Read llama(kLlama32);
    ASSERT_EQ(3u, llama.info.n_eos);
    EXPECT_EQ(128009, llama.info.eos[2]);
    EXPECT_EQ(128000, llama.info.bos);
    EXPECT_EQ(SHD_ROPE_LLAMA3, llama.config.rope.kind);
    EXPECT_EQ(32.0, llama.config.rope.factor);
    EXPECT_EQ(8192, llama.config.rope.original_context);
}

TEST(HfConfig, WhatIsWrittenReadsBackTheSame)
{
    std::vector<shd_model_config> configs;
    const std::string list = std::string(shd_model_presets()) + ", ";
    size_t at = 0;
    for (size_t comma; (comma = list.find(", ", at)) != std::string::npos; at = comma + 2) {
        shd_error err = {};
        configs.emplace_back();
        ASSERT_EQ(0, shd_model_preset(list.substr(at, comma - at).c_str(), &configs.back(), &err));
    }
    shd_model_config odd = shd_model_config_gpt2(3, 5, 35, 19, 97);
    odd.tied = odd.scale_attn = 0;
    odd.scale_attn_by_layer = 1;
    odd.activation = SHD_ACT_GELU;
    odd.d_ff = 51;
    odd.norm_eps = 0.1f + 0.2f;
    odd.init_range = 0.0f;
    configs.push_back(odd);
    odd = shd_model_config_llama(3, 6, 35, 51, 19, 97);
    odd.n_kv_head = 2;
    odd.head_dim = 10;
    odd.pad = 96;
    odd.qkv_bias = odd.o_bias = odd.mlp_bias = 1;
    odd.rope = {SHD_ROPE_LINEAR, 12345.678, 1.5, 0, 0, 0};
    configs.push_back(odd);
    odd.arch = SHD_ARCH_QWEN3;
    odd.mlp_bias = 0;
    odd.qk_norm = 1;
    odd.sliding_window = 7;
    odd.windowed[0] = 5;
    configs.push_back(odd);
    for (const shd_model_config &want : configs) {
        char *json = shd_hf_config_write(&want, "bfloat16");
        const Read read(json);
        ASSERT_EQ(0, read.rc) << read.err.message << json;
        EXPECT_STREQ("bfloat16", read.info.dtype);
        const shd_model_config &got = read.config;
        EXPECT_EQ(want.arch, got.arch);
        EXPECT_EQ(want.n_layer, got.n_layer);
        EXPECT_EQ(want.n_head, got.n_head);
        EXPECT_EQ(want.n_kv_head, got.n_kv_head);
        EXPECT_EQ(want.head_dim, got.head_dim);
        EXPECT_EQ(want.d_model, got.d_model);
        EXPECT_EQ(want.d_ff, got.d_ff);
        EXPECT_EQ(want.context, got.context);
        EXPECT_EQ(want.vocab, got.vocab);
        EXPECT_EQ(want.pad, got.pad);
        EXPECT_EQ(want.norm_eps, got.norm_eps) << json;
        EXPECT_EQ(want.init_range, got.init_range);
        EXPECT_EQ(want.tied, got.tied);
        EXPECT_EQ(want.activation, got.activation);
        EXPECT_EQ(want.scale_attn, got.scale_attn);
        EXPECT_EQ(want.scale_attn_by_layer, got.scale_attn_by_layer);
        EXPECT_EQ(want.qkv_bias, got.qkv_bias);
        EXPECT_EQ(want.o_bias, got.o_bias);
        EXPECT_EQ(want.mlp_bias, got.mlp_bias);
        EXPECT_EQ(want.qk_norm, got.qk_norm);
        EXPECT_EQ(want.sliding_window, got.sliding_window);
        for (int64_t i = 0; i < want.n_layer; i++) {
            EXPECT_EQ(shd_model_layer_windowed(&want, i), shd_model_layer_windowed(&got, i)) << i;
        }
        EXPECT_EQ(want.rope.kind, got.rope.kind);
        EXPECT_EQ(want.rope.theta, got.rope.theta);
        if (want.rope.kind != SHD_ROPE_DEFAULT) {
            EXPECT_EQ(want.rope.factor, got.rope.factor);
            EXPECT_EQ(want.rope.low_freq, got.rope.low_freq);
            EXPECT_EQ(want.rope.high_freq, got.rope.high_freq);
            EXPECT_EQ(want.rope.original_context, got.rope.original_context);
        }
        free(json);
    }
}

TEST(HfConfig, TokensThatEndATextByTheGenerationConfig)
{
    const auto add = [](const std::string &json, shd_hf_info *info, shd_error *err) {
        return shd_hf_generation_parse(json.data(), json.size(), 64, info, err);
    };
    shd_error err;
    shd_hf_info info = {};
    info.eos[info.n_eos++] = 7;
    ASSERT_EQ(
        0,
        add(R"({"eos_token_id": [5, 7, 63], "top_k": 40, "max_new_tokens": 1000000000000000000000})",
            &info, &err))
        << err.message;
    ASSERT_EQ(3u, info.n_eos);
    EXPECT_EQ(7, info.eos[0]);
    EXPECT_EQ(5, info.eos[1]);
    EXPECT_EQ(63, info.eos[2]);
    for (const char *nothing : {"{}", R"({"eos_token_id": null})", R"({"eos_token_id": 5})"}) {
        ASSERT_EQ(0, add(nothing, &info, &err)) << err.message;
        EXPECT_EQ(3u, info.n_eos) << nothing;
    }
    EXPECT_EQ(SHD_EINVAL, add(R"({"eos_token_id": [5, 64]})", &info, &err));
    EXPECT_STREQ(
        "generation_config.json: eos_token_id is 64.0; it must be a token below vocab_size",
        err.message);
    EXPECT_EQ(SHD_EINVAL, add("[]", &info, &err));
    EXPECT_STREQ("generation_config.json holds no object", err.message);
    std::string many = R"({"eos_token_id": [)";
    for (int i = 0; i < 17; i++) {
        many += (i > 0 ? "," : "") + std::to_string(i);
    }
    EXPECT_EQ(SHD_EUNSUPPORTED, add(many + "]}", &info, &err));
}

TEST(HfConfig, ValuesThatAreLeftOutAreTransformersOwn)
{
    Read read(R"({"model_type": "llama", "hidden_size": 24, "intermediate_size": 40,
      "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32,
      "vocab_size": 64})");
    ASSERT_EQ(0, read.rc) << read.err.message;
    EXPECT_EQ(4, read.config.n_kv_head);
    EXPECT_EQ(6, read.config.head_dim);
    EXPECT_EQ(1e-6f, read.config.norm_eps);
    EXPECT_EQ(1e4, read.config.rope.theta);
    EXPECT_EQ(0, read.config.tied);
    EXPECT_EQ(-1, read.info.bos);
    EXPECT_EQ(0u, read.info.n_eos);
    Read gpt2(R"({"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 12,
      "n_positions": 9, "vocab_size": 64, "n_inner": null})");
    ASSERT_EQ(0, gpt2.rc) << gpt2.err.message;
    EXPECT_EQ(48, gpt2.config.d_ff);
    EXPECT_EQ(1, gpt2.config.tied);
    Read mistral(With(kMistral, "sliding_window", "null"));
    ASSERT_EQ(0, mistral.rc) << mistral.err.message;
    EXPECT_EQ(0, mistral.config.sliding_window);
}

TEST(HfConfig, PaddingTokens)
{
    EXPECT_EQ(-1, Read(kQwen3).config.pad);
    EXPECT_EQ(7, Read(With(kQwen3, "pad_token_id", "7")).config.pad);
    EXPECT_EQ(151935, Read(With(kQwen3, "pad_token_id", "-1")).config.pad) << "as PyTorch counts";
    EXPECT_EQ(-1, Read(With(kGpt2, "pad_token_id", "7")).config.pad) << "GPT-2's table has none";
    EXPECT_EQ(0, Read(With(kGpt2, "pad_token_id", "50257")).rc);
}

TEST(HfConfig, WindowsOfQwenGoByLayer)
{
    std::string json = With(kQwen25, "use_sliding_window", "true");
    json = With(json, "max_window_layers", "21");
    json = With(json, "sliding_window", "512");
    const Read read(json);
    ASSERT_EQ(0, read.rc) << read.err.message;
    EXPECT_EQ(512, read.config.sliding_window);
    for (int64_t i = 0; i < 24; i++) {
        EXPECT_EQ(i >= 21, shd_model_layer_windowed(&read.config, i)) << i;
    }
    std::string types = "[\"sliding_attention\"";
    for (int i = 1; i < 24; i++) {
        types += i % 2 ? ", \"full_attention\"" : ", \"sliding_attention\"";
    }
    const Read by_name(With(json, "layer_types", types + "]"));
    ASSERT_EQ(0, by_name.rc) << by_name.err.message;
    for (int64_t i = 0; i < 24; i++) {
        EXPECT_EQ(i % 2 == 0, shd_model_layer_windowed(&by_name.config, i)) << i;
    }
    const Read off(With(kQwen25, "layer_types", types + "]"));
    EXPECT_EQ(SHD_EINVAL, off.rc) << "use_sliding_window is false";
    EXPECT_NE(nullptr, strstr(off.err.message, "layer_types"));
    const Read few(With(json, "layer_types", "[\"full_attention\"]"));
    EXPECT_EQ(SHD_EINVAL, few.rc);
}

TEST(HfConfig, RopeOfTransformers5)
{
    std::string json = With(kLlama32, "rope_scaling", "null");
    json = With(json, "rope_theta", "null");
    const Read read(With(json, "rope_parameters",
                         R"({"rope_type": "linear", "factor": 2, "rope_theta": 777.5})"));
    ASSERT_EQ(0, read.rc) << read.err.message;
    EXPECT_EQ(SHD_ROPE_LINEAR, read.config.rope.kind);
    EXPECT_EQ(777.5, read.config.rope.theta);
    EXPECT_EQ(2.0, read.config.rope.factor);
}

struct Refused {
    const char *json, *key, *value;
    int code;
};

class Refusals : public testing::TestWithParam<Refused>
{
};

TEST_P(Refusals, NameTheKeyAndTheValue)
{
    const Refused &c = GetParam();
    const Read read(With(c.json, c.key, c.value));
    EXPECT_EQ(c.code, read.rc) << read.err.message;
    EXPECT_NE(nullptr, strstr(read.err.message, c.key)) << read.err.message;
    const char first = c.value[0];
    const std::string shown = first == '{'   ? "an object"
                              : first == '[' ? ""
                                             : std::string(c.value).substr(0, 80);
    EXPECT_NE(nullptr, strstr(read.err.message, shown.c_str())) << read.err.message;
    EXPECT_EQ(0, read.config.n_layer) << "nothing is given back";
}

const int kBad = SHD_EINVAL, kNot = SHD_EUNSUPPORTED;

INSTANTIATE_TEST_SUITE_P(
    Gpt2, Refusals,
    testing::Values(
        Refused{kGpt2, "model_type", "\"gpt_neox\"", kNot}, Refused{kGpt2, "model_type", "7", kBad},
        Refused{kGpt2, "architectures", "[\"GPT2Model\"]", kNot},
        Refused{kGpt2, "architectures", "[]", kBad}, Refused{kGpt2, "n_layer", "0", kBad},
        Refused{kGpt2, "n_layer", "-3", kBad}, Refused{kGpt2, "n_layer", "1025", kBad},
        Refused{kGpt2, "n_layer", "12.5", kBad}, Refused{kGpt2, "n_layer", "\"12\"", kBad},
        Refused{kGpt2, "n_layer", "true", kBad}, Refused{kGpt2, "n_layer", "[12]", kBad},
        Refused{kGpt2, "n_head", "7", kBad} /* names n_embd and n_head */,
        Refused{kGpt2, "n_embd", "2000000", kBad}, Refused{kGpt2, "vocab_size", "0", kBad},
        Refused{kGpt2, "vocab_size", "9223372036854775807", kBad},
        Refused{kGpt2, "n_positions", "-1", kBad}, Refused{kGpt2, "n_ctx", "512", kNot},
        Refused{kGpt2, "n_inner", "0", kBad}, Refused{kGpt2, "n_inner", "3072.0", kBad},
        Refused{kGpt2, "activation_function", "\"relu\"", kNot},
        Refused{kGpt2, "activation_function", "\"silu\"", kNot},
        Refused{kGpt2, "activation_function", "{}", kBad},
        Refused{kGpt2, "layer_norm_epsilon", "0", kBad},
        Refused{kGpt2, "layer_norm_epsilon", "-1.0", kBad},
        Refused{kGpt2, "layer_norm_epsilon", "\"1e-5\"", kBad},
        Refused{kGpt2, "layer_norm_epsilon", "2.0", kBad},
        Refused{kGpt2, "initializer_range", "-0.5", kBad},
        Refused{kGpt2, "scale_attn_weights", "1", kBad},
        Refused{kGpt2, "tie_word_embeddings", "\"yes\"", kBad},
        Refused{kGpt2, "add_cross_attention", "true", kNot},
        Refused{kGpt2, "pruned_heads", "{\"1\": [0]}", kNot},
        Refused{kGpt2, "eos_token_id", "50257", kBad}, Refused{kGpt2, "bos_token_id", "1.5", kBad},
        Refused{kGpt2, "quantization_config", "{\"bits\": 4}", kNot},
        Refused{kGpt2, "hidden_size", "768", kNot}, Refused{kGpt2, "rope_theta", "1.0", kNot},
        Refused{kGpt2, "alibi", "true", kNot}));

INSTANTIATE_TEST_SUITE_P(
    Llama, Refusals,
    testing::Values(
        Refused{kLlama32, "architectures", "[\"LlamaForSequenceClassification\"]", kNot},
        Refused{kLlama32, "hidden_act", "\"gelu\"", kNot},
        Refused{kLlama32, "hidden_size", "0", kBad}, Refused{kSmolLm2, "hidden_size", "577", kBad},
        Refused{kLlama32, "head_dim", "63", kBad}, Refused{kLlama32, "head_dim", "0", kBad},
        Refused{kLlama32, "num_key_value_heads", "5", kBad},
        Refused{kLlama32, "num_key_value_heads", "0", kBad},
        Refused{kLlama32, "num_key_value_heads", "64", kBad},
        Refused{kLlama32, "rope_theta", "0", kBad}, Refused{kLlama32, "rope_theta", "-1.0", kBad},
        Refused{kLlama32, "rope_scaling", "7", kBad},
        Refused{kLlama32, "attention_bias", "0", kBad},
        Refused{kLlama32, "sliding_window", "4096", kNot},
        Refused{kLlama32, "partial_rotary_factor", "0.5", kNot},
        Refused{kLlama32, "layer_types", "[\"full_attention\"]", kNot},
        Refused{kLlama32, "residual_multiplier", "0.5", kNot},
        Refused{kLlama32, "logits_scaling", "8.0", kNot},
        Refused{kSmolLm2, "rope_interleaved", "true", kNot},
        Refused{kSmolLm2, "pad_token_id", "49152", kBad},
        Refused{kSmolLm2, "pad_token_id", "-49153", kBad},
        Refused{kSmolLm2, "pad_token_id", "\"<pad>\"", kBad},
        Refused{kMistral, "sliding_window", "0", kBad},
        Refused{kMistral, "sliding_window", "-4096", kBad},
        Refused{kMistral, "attention_bias", "true", kNot},
        Refused{kQwen25, "use_mrope", "true", kNot},
        Refused{kQwen25, "attention_bias", "true", kNot},
        Refused{kQwen25, "max_window_layers", "-1", kBad},
        Refused{kQwen25, "layer_types", "\"full\"", kBad},
        Refused{kQwen3, "mlp_bias", "true", kNot}, Refused{kQwen3, "num_experts", "8", kNot}));

TEST(HfConfig, RopeScalingIsRefusedByItsOwnKey)
{
    struct Case {
        const char *scaling, *named;
        int code;
    };
    const Case cases[] = {
        {R"({"rope_type": "yarn", "factor": 4.0})", "yarn", kNot},
        {R"({"type": "dynamic", "factor": 4.0})", "dynamic", kNot},
        {R"({"rope_type": "linear"})", "factor is missing", kBad},
        {R"({"rope_type": "linear", "factor": 0.5})", "factor is 0.5", kBad},
        {R"({"rope_type": "linear", "factor": "4"})", "factor", kBad},
        {R"({"rope_type": "linear", "type": "llama3", "factor": 4})", "rope_type", kBad},
        {R"({"rope_type": "linear", "factor": 4, "mrope_section": [1]})", "mrope_section", kNot},
        {R"({"full_attention": {"rope_type": "default"}})", "full_attention", kNot},
        {R"({"rope_type": "llama3", "factor": 8})", "low_freq_factor", kBad},
        {R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})",
         "high_freq_factor", kBad},
        {R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
             "original_max_position_embeddings": 0})",
         "original_max_position_embeddings", kBad},
        {R"({"rope_type": "default", "partial_rotary_factor": 0.25})", "partial_rotary_factor",
         kNot},
        {R"({"rope_type": "default", "rope_theta": 7.0})", "rope_theta", kBad},
    };
    for (const Case &c : cases) {
        const Read read(With(kLlama32, "rope_scaling", c.scaling));
        EXPECT_EQ(c.code, read.rc) << c.scaling;
        EXPECT_NE(nullptr, strstr(read.err.message, c.named)) << read.err.message;
    }
    const Read both(With(kLlama32, "rope_parameters", R"({"rope_type": "default"})"));
    EXPECT_EQ(kBad, both.rc);
    EXPECT_NE(nullptr, strstr(both.err.message, "rope_parameters")) << both.err.message;
}

TEST(HfConfig, SizesHaveNoDefault)
{
    for (const char *key : {"n_layer", "n_head", "n_embd", "n_positions", "vocab_size"}) {
        const Read read(With(kGpt2, key, "null"));
        EXPECT_EQ(SHD_EINVAL, read.rc);
        EXPECT_NE(nullptr, strstr(read.err.message, (std::string(key) + " is missing").c_str()));
    }
    for (const char *key : {"hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "max_position_embeddings", "vocab_size"}) {
        const Read read(With(kQwen3, key, "null"));
        EXPECT_EQ(SHD_EINVAL, read.rc);
        EXPECT_NE(nullptr, strstr(read.err.message, (std::string(key) + " is missing").c_str()));
    }
}

TEST(HfConfig, WhatIsNoObjectIsRefused)
{
    struct Case {
        std::string json;
        const char *said;
    };
    const Case cases[] = {
        {"", "line"},
        {"{", "line 1"},
        {"[1]", "no object"},
        {"{\"model_type\": \"gpt2\", \"model_type\": \"gpt2\"}", "duplicate"},
        {"{\"n_layer\": 99999999999999999999}", "big"},
        {"{\"a\": NaN}", "line 1"},
        {"{} trailing", "line 1"},
        {std::string("{\"a\0b\": 1}", 10), "line 1"},
        {"{\"a\": \"\xff\"}", "line 1"},
        {"{}", "model_type"},
        {std::string(2 << 20, ' '), "2097152 bytes"},
        {std::string(100000, '['), "line 1"},
    };
    for (const Case &c : cases) {
        const Read read(c.json);
        EXPECT_EQ(SHD_EINVAL, read.rc);
        EXPECT_NE(nullptr, strstr(read.err.message, c.said)) << read.err.message;
    }
}

TEST(HfConfig, LongAndStrangeKeysAreShownCut)
{
    const Read read(With(kGpt2, std::string(5000, 'k') + "\\u00e9\\n", "1"));
    EXPECT_EQ(SHD_EUNSUPPORTED, read.rc);
    EXPECT_NE(nullptr, strstr(read.err.message, "kkkk...")) << read.err.message;
    const Read strange(With(kGpt2, "\xc3\xa9\\n", "1"));
    EXPECT_EQ(SHD_EUNSUPPORTED, strange.rc);
    EXPECT_NE(nullptr, strstr(strange.err.message, "???")) << strange.err.message;
}

TEST(HfConfig, CarriedWithAnotherDtype)
{
    struct Case {
        std::string json;
        const char *key;
    };
    const Case cases[] = {{kLlama32, "torch_dtype"},
                          {With(kGpt2, "dtype", "\"bfloat16\""), "dtype"},
                          {kGpt2, "torch_dtype"}};
    for (const Case &c : cases) {
        char *out = nullptr;
        shd_error err = {};
        ASSERT_EQ(0, shd_hf_config_with_dtype(c.json.data(), c.json.size(), "float16", &out, &err));
        const std::string want = "\"" + std::string(c.key) + "\": \"float16\"";
        EXPECT_NE(nullptr, strstr(out, want.c_str())) << out;
        EXPECT_EQ(nullptr, strstr(out, "bfloat16"));
        const Read before(c.json), after(out);
        ASSERT_EQ(0, after.rc) << after.err.message;
        EXPECT_STREQ("float16", after.info.dtype);
        EXPECT_EQ(0, memcmp(&before.config, &after.config, sizeof before.config));
        free(out);
    }
    char *out = nullptr;
    shd_error err = {};
    EXPECT_EQ(SHD_EINVAL, shd_hf_config_with_dtype("[]", 2, "float16", &out, &err));
    EXPECT_EQ(SHD_EINVAL, shd_hf_config_with_dtype("{", 1, "float16", &out, &err));
    EXPECT_EQ(nullptr, out);
}

} // namespace

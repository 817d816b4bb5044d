/* A model's configuration as config.json; see hf_config.h. Floor F3; pure. The keys are those that
 * transformers 4 writes, which 5 reads too. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/model/hf_config.h"

/* The decimal with the fewest digits that reads back as the same float. */
static double decimal(float value)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) {
            break;
        }
    }
    return strtod(text, NULL);
}

static void set_int(json_t *out, const char *key, int64_t value)
{
    json_object_set_new(out, key, json_integer(value));
}

static void set_real(json_t *out, const char *key, double value)
{
    json_object_set_new(out, key, json_real(value));
}

static void set_bool(json_t *out, const char *key, int value)
{
    json_object_set_new(out, key, json_boolean(value));
}

static void set_text(json_t *out, const char *key, const char *value)
{
    json_object_set_new(out, key, json_string(value));
}

static void set_class(json_t *out, const char *name)
{
    json_t *list = json_array();
    json_array_append_new(list, json_string(name));
    json_object_set_new(out, "architectures", list);
}

static void write_gpt2(const shd_model_config *c, json_t *out)
{
    set_class(out, "GPT2LMHeadModel");
    set_int(out, "n_layer", c->n_layer);
    set_int(out, "n_head", c->n_head);
    set_int(out, "n_embd", c->d_model);
    set_int(out, "n_inner", c->d_ff);
    set_int(out, "n_positions", c->context);
    set_text(out, "activation_function", c->activation == SHD_ACT_GELU ? "gelu" : "gelu_new");
    set_real(out, "layer_norm_epsilon", decimal(c->norm_eps));
    set_bool(out, "scale_attn_weights", c->scale_attn);
    set_bool(out, "scale_attn_by_inverse_layer_idx", c->scale_attn_by_layer);
}

static json_t *rope_scaling(const shd_rope_config *rope)
{
    if (rope->kind == SHD_ROPE_DEFAULT) {
        return json_null();
    }
    json_t *out = json_object();
    set_text(out, "rope_type", rope->kind == SHD_ROPE_LINEAR ? "linear" : "llama3");
    set_real(out, "factor", rope->factor);
    if (rope->kind == SHD_ROPE_LLAMA3) {
        set_real(out, "low_freq_factor", rope->low_freq);
        set_real(out, "high_freq_factor", rope->high_freq);
        set_int(out, "original_max_position_embeddings", rope->original_context);
    }
    return out;
}

static void write_windows(const shd_model_config *c, json_t *out)
{
    const int windows = c->sliding_window > 0;
    json_object_set_new(out, "sliding_window",
                        windows ? json_integer(c->sliding_window) : json_null());
    if (c->arch == SHD_ARCH_MISTRAL) {
        return;
    }
    json_t *types = json_array();
    for (int64_t i = 0; i < c->n_layer; i++) {
        json_array_append_new(
            types,
            json_string(shd_model_layer_windowed(c, i) ? "sliding_attention" : "full_attention"));
    }
    set_bool(out, "use_sliding_window", windows);
    json_object_set_new(out, "layer_types", types);
}

static void write_llama(const shd_model_config *c, json_t *out)
{
    set_class(out, c->arch == SHD_ARCH_LLAMA     ? "LlamaForCausalLM"
                   : c->arch == SHD_ARCH_MISTRAL ? "MistralForCausalLM"
                   : c->arch == SHD_ARCH_QWEN2   ? "Qwen2ForCausalLM"
                                                 : "Qwen3ForCausalLM");
    set_int(out, "num_hidden_layers", c->n_layer);
    set_int(out, "num_attention_heads", c->n_head);
    set_int(out, "num_key_value_heads", c->n_kv_head);
    set_int(out, "head_dim", c->head_dim);
    set_int(out, "hidden_size", c->d_model);
    set_int(out, "intermediate_size", c->d_ff);
    set_int(out, "max_position_embeddings", c->context);
    set_text(out, "hidden_act", "silu");
    set_real(out, "rms_norm_eps", decimal(c->norm_eps));
    set_real(out, "rope_theta", c->rope.theta);
    json_object_set_new(out, "rope_scaling", rope_scaling(&c->rope));
    if (c->arch == SHD_ARCH_LLAMA || c->arch == SHD_ARCH_QWEN3) {
        set_bool(out, "attention_bias", c->qkv_bias);
    }
    if (c->arch == SHD_ARCH_LLAMA) {
        set_bool(out, "mlp_bias", c->mlp_bias);
    } else {
        write_windows(c, out);
    }
}

/* Keeps the order; numbers in as many digits as bring them back. */
static char *dump(const json_t *root, int digits)
{
    char *text =
        json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(digits));
    char *out = shd_asprintf("%s\n", text);
    free(text);
    return out;
}

char *shd_hf_config_write(const shd_model_config *config, const char *dtype)
{
    json_t *out = json_object();
    set_text(out, "model_type", shd_arch_name(config->arch));
    if (config->arch == SHD_ARCH_GPT2) {
        write_gpt2(config, out);
    } else {
        write_llama(config, out);
    }
    set_int(out, "vocab_size", config->vocab);
    set_bool(out, "tie_word_embeddings", config->tied);
    set_real(out, "initializer_range", decimal(config->init_range));
    /* Where they are left out, transformers takes those of the architecture's first model, which
     * may lie outside of this vocabulary. */
    json_object_set_new(out, "bos_token_id", json_null());
    json_object_set_new(out, "eos_token_id", json_null());
    json_object_set_new(out, "pad_token_id",
                        config->pad >= 0 ? json_integer(config->pad) : json_null());
    set_text(out, "torch_dtype", dtype);
    char *text = dump(out, 15);
    json_decref(out);
    return text;
}

int shd_hf_config_with_dtype(const char *json, size_t size, const char *dtype, char **out,
                             shd_error *err)
{
    json_error_t why;
    json_t *root = json_loadb(json, size, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(root)) {
        json_decref(root);
        return shd_fail(err, SHD_EINVAL, "config.json is not a JSON object");
    }
    const char *key = json_object_get(root, "dtype") != NULL ? "dtype" : "torch_dtype";
    json_object_set_new(root, key, json_string(dtype));
    if (strcmp(key, "dtype") == 0) {
        json_object_del(root, "torch_dtype");
    }
    *out = dump(root, 17);
    json_decref(root);
    return 0;
}

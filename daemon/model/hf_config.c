/* config.json to a model's configuration and back; see hf_config.h. Floor F3; pure.
 *
 * The meaning of each key, and its value where the file does not give it, is that of transformers'
 * configuration_{gpt2,llama,mistral,qwen2,qwen3}.py; sizes have no default here. */
#include "daemon/model/hf_config.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/mem.h"
#include "daemon/model/hf_keys.h"

typedef struct reader {
    const char *file; /* as messages name it */
    const json_t *root;
    int reals; /* whole numbers stand there as reals */
    shd_arch arch;
    shd_error *err;
} reader;

enum { SHOWN_MAX = 80 };

#define CONFIG "config.json"

/* A key or value as messages show it: printable ASCII, cut when long. */
static const char *shown(char out[SHOWN_MAX + 4], const char *text)
{
    size_t n = 0;
    for (; text[n] != '\0' && n < SHOWN_MAX; n++) {
        out[n] = text[n] >= ' ' && text[n] <= '~' ? text[n] : '?';
    }
    memcpy(out + n, text[n] == '\0' ? "" : "...", text[n] == '\0' ? 1 : 4);
    return out;
}

static const char *shown_value(char out[SHOWN_MAX + 4], const json_t *value)
{
    if (json_is_object(value)) {
        return "an object";
    }
    if (json_is_array(value)) {
        return "a list";
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    shown(out, text != NULL ? text : "?");
    free(text);
    return out;
}

static int refuse(const reader *r, int code, const char *key, const json_t *value, const char *why)
{
    char k[SHOWN_MAX + 4], v[SHOWN_MAX + 4];
    return shd_fail(r->err, code, "%s: %s is %s; %s", r->file, shown(k, key),
                    value != NULL ? shown_value(v, value) : "missing", why);
}

/* The value, NULL where the file has none or null. */
static const json_t *find(const json_t *in, const char *key)
{
    const json_t *value = json_object_get(in, key);
    return json_is_null(value) ? NULL : value;
}

/* ---- typed reading from an object; absent and null leave *out ---- */

static int read_int(const reader *r, const json_t *in, const char *key, int64_t least, int64_t most,
                    int64_t *out)
{
    const json_t *value = find(in, key);
    if (value == NULL) {
        return 0;
    }
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > most) {
        char why[80];
        snprintf(why, sizeof why, "it must be a whole number, %lld to %lld", (long long)least,
                 (long long)most);
        return refuse(r, SHD_EINVAL, key, value, why);
    }
    *out = json_integer_value(value);
    return 0;
}

static int need_int(const reader *r, const char *key, int64_t most, int64_t *out)
{
    if (find(r->root, key) == NULL) {
        return refuse(r, SHD_EINVAL, key, NULL, "a model has no default for it");
    }
    return read_int(r, r->root, key, 1, most, out);
}

static int read_real(const reader *r, const json_t *in, const char *key, int zero_too, double most,
                     double *out)
{
    const json_t *value = find(in, key);
    if (value == NULL) {
        return 0;
    }
    const double number = json_number_value(value);
    if (!json_is_number(value) || number < 0.0 || number > most || (number == 0.0 && !zero_too)) {
        char why[80];
        snprintf(why, sizeof why, "it must be a number %s 0 and at most %g",
                 zero_too ? "from" : "above", most);
        return refuse(r, SHD_EINVAL, key, value, why);
    }
    *out = number;
    return 0;
}

static int read_float(const reader *r, const char *key, int zero_too, float *out)
{
    double value = (double)*out;
    SHD_TRY(read_real(r, r->root, key, zero_too, 1.0, &value));
    *out = (float)value;
    return 0;
}

static int read_bool(const reader *r, const char *key, int *out)
{
    const json_t *value = find(r->root, key);
    if (value != NULL && !json_is_boolean(value)) {
        return refuse(r, SHD_EINVAL, key, value, "it must be true or false");
    }
    if (value != NULL) {
        *out = json_is_true(value);
    }
    return 0;
}

static int read_text(const reader *r, const json_t *in, const char *key, const char **out)
{
    const json_t *value = find(in, key);
    if (value != NULL && !json_is_string(value)) {
        return refuse(r, SHD_EINVAL, key, value, "it must be text");
    }
    if (value != NULL) {
        *out = json_string_value(value);
    }
    return 0;
}

/* ---- which keys there may be ---- */

static int check_fixed(const reader *r, const char *key, const json_t *value, shd_hf_only only)
{
    static const char *const why[] = {
        [SHD_HF_FALSE] = "only false is supported",
        [SHD_HF_TRUE] = "only true is supported",
        [SHD_HF_ZERO] = "only 0 is supported",
        [SHD_HF_ONE] = "only 1 is supported",
        [SHD_HF_EMPTY] = "only an empty one is supported",
    };
    const double number = json_is_number(value) ? json_number_value(value) : -1.0;
    const int empty = (json_is_object(value) && json_object_size(value) == 0) ||
                      (json_is_array(value) && json_array_size(value) == 0);
    const int is[] = {
        [SHD_HF_FALSE] = json_is_false(value),
        [SHD_HF_TRUE] = json_is_true(value),
        [SHD_HF_ZERO] = number == 0.0,
        [SHD_HF_ONE] = number == 1.0,
        [SHD_HF_EMPTY] = empty,
    };
    return is[only] ? 0 : refuse(r, SHD_EUNSUPPORTED, key, value, why[only]);
}

/* A key that nobody knows could change the numbers; null says nothing. */
static int check_keys(const reader *r)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)r->root, key, value)
    {
        const shd_hf_only only = shd_hf_key(key, r->arch);
        if (json_is_null(value) || only == SHD_HF_ANY) {
            continue;
        }
        if (only != SHD_HF_UNKNOWN) {
            SHD_TRY(check_fixed(r, key, value, only));
            continue;
        }
        char why[96];
        snprintf(why, sizeof why, "this key of a %s model is not supported",
                 shd_arch_name(r->arch));
        return refuse(r, SHD_EUNSUPPORTED, key, value, why);
    }
    return 0;
}

/* ---- what all have ---- */

static int read_arch(reader *r)
{
    const char *type = NULL;
    SHD_TRY(read_text(r, r->root, "model_type", &type));
    if (type == NULL) {
        return refuse(r, SHD_EINVAL, "model_type", NULL, "it says which architecture this is");
    }
    for (int i = SHD_ARCH_GPT2; i <= SHD_ARCH_QWEN3; i++) {
        if (strcmp(type, shd_arch_name((shd_arch)i)) == 0) {
            r->arch = (shd_arch)i;
            return 0;
        }
    }
    return refuse(r, SHD_EUNSUPPORTED, "model_type", find(r->root, "model_type"),
                  "supported are gpt2, llama, mistral, qwen2, qwen3");
}

/* The class of the checkpoint decides which tensors there are: it must be the language model. */
static int check_class(const reader *r)
{
    static const char *const classes[] = {
        [SHD_ARCH_GPT2] = "GPT2LMHeadModel",       [SHD_ARCH_LLAMA] = "LlamaForCausalLM",
        [SHD_ARCH_MISTRAL] = "MistralForCausalLM", [SHD_ARCH_QWEN2] = "Qwen2ForCausalLM",
        [SHD_ARCH_QWEN3] = "Qwen3ForCausalLM",
    };
    const json_t *list = find(r->root, "architectures");
    if (list == NULL) {
        return 0;
    }
    const json_t *name =
        json_is_array(list) && json_array_size(list) == 1 ? json_array_get(list, 0) : NULL;
    if (!json_is_string(name)) {
        return refuse(r, SHD_EINVAL, "architectures", list, "it must be a list of one class name");
    }
    if (strcmp(json_string_value(name), classes[r->arch]) != 0) {
        char why[96];
        snprintf(why, sizeof why, "of a %s model only %s is supported", shd_arch_name(r->arch),
                 classes[r->arch]);
        return refuse(r, SHD_EUNSUPPORTED, "architectures", name, why);
    }
    return 0;
}

static int read_token(const reader *r, const char *key, const json_t *value, int64_t vocab,
                      int32_t *out)
{
    const int is = r->reals ? json_is_real(value) : json_is_integer(value);
    const double token = json_number_value(value);
    if (!is || token != floor(token) || token < -1 || token >= (double)vocab) {
        return refuse(r, SHD_EINVAL, key, value, "it must be a token below vocab_size");
    }
    *out = (int32_t)token;
    return 0;
}

/* Adds what is new to info->eos. */
static int read_eos(const reader *r, int64_t vocab, shd_hf_info *info)
{
    const json_t *eos = find(r->root, "eos_token_id");
    const size_t n = json_is_array(eos) ? json_array_size(eos) : eos != NULL ? 1 : 0;
    for (size_t i = 0; i < n; i++) {
        int32_t token = -1;
        SHD_TRY(read_token(r, "eos_token_id", json_is_array(eos) ? json_array_get(eos, i) : eos,
                           vocab, &token));
        int known = token < 0;
        for (uint32_t k = 0; k < info->n_eos; k++) {
            known |= info->eos[k] == token;
        }
        if (!known && info->n_eos == SHD_HF_MAX_EOS) {
            return refuse(r, SHD_EUNSUPPORTED, "eos_token_id", eos, "at most 16 are supported");
        }
        if (!known) {
            info->eos[info->n_eos++] = token;
        }
    }
    return 0;
}

static int read_info(const reader *r, int64_t vocab, shd_hf_info *info)
{
    *info = (shd_hf_info){.bos = -1};
    const json_t *bos = find(r->root, "bos_token_id");
    if (bos != NULL) {
        SHD_TRY(read_token(r, "bos_token_id", bos, vocab, &info->bos));
    }
    SHD_TRY(read_eos(r, vocab, info));
    const char *dtype = "";
    SHD_TRY(read_text(r, r->root, "torch_dtype", &dtype));
    SHD_TRY(read_text(r, r->root, "dtype", &dtype));
    if (strcmp(dtype, "float32") == 0 || strcmp(dtype, "bfloat16") == 0 ||
        strcmp(dtype, "float16") == 0) {
        strncpy(info->dtype, dtype, sizeof info->dtype - 1);
    }
    return 0;
}

static int read_activation(const reader *r, const char *key, shd_activation *out)
{
    static const struct {
        const char *name;
        shd_activation activation;
    } names[] = {
        {"gelu_new", SHD_ACT_GELU_TANH},  {"gelu_pytorch_tanh", SHD_ACT_GELU_TANH},
        {"gelu_fast", SHD_ACT_GELU_TANH}, {"gelu", SHD_ACT_GELU},
        {"silu", SHD_ACT_SILU},           {"swish", SHD_ACT_SILU},
    };
    const int silu = r->arch != SHD_ARCH_GPT2;
    const char *name = NULL;
    SHD_TRY(read_text(r, r->root, key, &name));
    if (name == NULL) {
        return 0;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, name) == 0 && (names[i].activation == SHD_ACT_SILU) == silu) {
            *out = names[i].activation;
            return 0;
        }
    }
    return refuse(r, SHD_EUNSUPPORTED, key, find(r->root, key),
                  silu ? "supported is silu" : "supported are gelu_new and gelu");
}

/* ---- GPT-2 ---- */

static int read_gpt2(const reader *r, shd_model_config *c)
{
    int64_t layers = 0, heads = 0, width = 0, context = 0, vocab = 0, held = 0;
    SHD_TRY(need_int(r, "n_layer", SHD_MODEL_MAX_LAYERS, &layers));
    SHD_TRY(need_int(r, "n_head", SHD_MODEL_MAX_HEADS, &heads));
    SHD_TRY(need_int(r, "n_embd", SHD_MODEL_MAX_WIDTH, &width));
    SHD_TRY(need_int(r, "n_positions", SHD_MODEL_MAX_CONTEXT, &context));
    SHD_TRY(need_int(r, "vocab_size", SHD_MODEL_MAX_VOCAB, &vocab));
    held = context;
    SHD_TRY(read_int(r, r->root, "n_ctx", 1, SHD_MODEL_MAX_CONTEXT, &held));
    if (held != context) {
        return refuse(r, SHD_EUNSUPPORTED, "n_ctx", find(r->root, "n_ctx"),
                      "only n_positions is supported");
    }
    if (width % heads != 0) {
        return refuse(r, SHD_EINVAL, "n_embd", find(r->root, "n_embd"),
                      "it must be a multiple of n_head");
    }
    *c = shd_model_config_gpt2(layers, heads, width, context, vocab);
    SHD_TRY(read_int(r, r->root, "n_inner", 1, SHD_MODEL_MAX_INNER, &c->d_ff));
    SHD_TRY(read_activation(r, "activation_function", &c->activation));
    SHD_TRY(read_float(r, "layer_norm_epsilon", 0, &c->norm_eps));
    SHD_TRY(read_bool(r, "scale_attn_weights", &c->scale_attn));
    return read_bool(r, "scale_attn_by_inverse_layer_idx", &c->scale_attn_by_layer);
}

/* ---- Llama ---- */

/* rope_scaling (transformers 4) or rope_parameters (5): an object of the kind and its numbers. */
static int read_rope(const reader *r, shd_model_config *c)
{
    static const char *const keys[] = {"rope_type",
                                       "type",
                                       "rope_theta",
                                       "factor",
                                       "low_freq_factor",
                                       "high_freq_factor",
                                       "original_max_position_embeddings",
                                       "partial_rotary_factor"};
    shd_rope_config *rope = &c->rope;
    SHD_TRY(read_real(r, r->root, "rope_theta", 0, 1e15, &rope->theta));
    const json_t *scaling = find(r->root, "rope_scaling");
    const json_t *in = find(r->root, "rope_parameters");
    const char *name = scaling != NULL ? "rope_scaling" : "rope_parameters";
    if (scaling != NULL && in != NULL) {
        return refuse(r, SHD_EINVAL, "rope_parameters", in, "rope_scaling is there too; keep one");
    }
    in = scaling != NULL ? scaling : in;
    if (in == NULL) {
        return 0;
    }
    if (!json_is_object(in)) {
        return refuse(r, SHD_EINVAL, name, in, "it must be an object");
    }
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)in, key, value)
    {
        size_t i = 0;
        while (i < sizeof keys / sizeof keys[0] && strcmp(keys[i], key) != 0) {
            i++;
        }
        if (i == sizeof keys / sizeof keys[0] && !json_is_null(value)) {
            char k[SHOWN_MAX + 4], v[SHOWN_MAX + 4];
            return shd_fail(r->err, SHD_EUNSUPPORTED, "%s: %s.%s is %s; this key is not supported",
                            r->file, name, shown(k, key), shown_value(v, value));
        }
    }
    double theta = rope->theta, part = 1.0;
    SHD_TRY(read_real(r, in, "rope_theta", 0, 1e15, &theta));
    if (find(r->root, "rope_theta") != NULL && theta != rope->theta) {
        return refuse(r, SHD_EINVAL, "rope_theta", find(r->root, "rope_theta"),
                      "rope_parameters has another; keep one");
    }
    rope->theta = theta;
    SHD_TRY(read_real(r, in, "partial_rotary_factor", 0, 1.0, &part));
    if (part != 1.0) {
        return refuse(r, SHD_EUNSUPPORTED, "partial_rotary_factor",
                      find(in, "partial_rotary_factor"), "only 1 is supported");
    }
    const char *kind = "default", *old = NULL;
    SHD_TRY(read_text(r, in, "type", &old));
    kind = old != NULL ? old : kind;
    SHD_TRY(read_text(r, in, "rope_type", &kind));
    if (old != NULL && strcmp(old, kind) != 0) {
        return refuse(r, SHD_EINVAL, "rope_type", find(in, "rope_type"),
                      "type says something else; keep one");
    }
    if (strcmp(kind, "default") == 0) {
        return 0;
    }
    if (strcmp(kind, "linear") != 0 && strcmp(kind, "llama3") != 0) {
        return refuse(r, SHD_EUNSUPPORTED, "rope_type",
                      find(in, find(in, "rope_type") != NULL ? "rope_type" : "type"),
                      "supported are default, linear, llama3");
    }
    rope->kind = strcmp(kind, "linear") == 0 ? SHD_ROPE_LINEAR : SHD_ROPE_LLAMA3;
    rope->factor = 0;
    SHD_TRY(read_real(r, in, "factor", 0, 1e6, &rope->factor));
    if (!(rope->factor >= 1.0)) {
        return refuse(r, SHD_EINVAL, "factor", find(in, "factor"), "it must be at least 1");
    }
    if (rope->kind == SHD_ROPE_LINEAR) {
        return 0;
    }
    SHD_TRY(read_real(r, in, "low_freq_factor", 0, 1e6, &rope->low_freq));
    SHD_TRY(read_real(r, in, "high_freq_factor", 0, 1e6, &rope->high_freq));
    if (!(rope->low_freq > 0)) {
        return refuse(r, SHD_EINVAL, "low_freq_factor", NULL, "llama3 scaling needs it");
    }
    if (!(rope->high_freq > rope->low_freq)) {
        return refuse(r, SHD_EINVAL, "high_freq_factor", find(in, "high_freq_factor"),
                      "llama3 scaling needs it above low_freq_factor");
    }
    rope->original_context = c->context;
    return read_int(r, in, "original_max_position_embeddings", 1, SHD_MODEL_MAX_CONTEXT,
                    &rope->original_context);
}

/* PyTorch's padding_idx: from the end when negative. */
static int read_pad(const reader *r, shd_model_config *c)
{
    if (find(r->root, "pad_token_id") == NULL) {
        return 0;
    }
    SHD_TRY(read_int(r, r->root, "pad_token_id", -c->vocab, c->vocab - 1, &c->pad));
    c->pad += c->pad < 0 ? c->vocab : 0;
    return 0;
}

/* Which layers have a window: by name, or those from max_window_layers on. */
static int read_layers(const reader *r, shd_model_config *c)
{
    const json_t *types = find(r->root, "layer_types");
    int use = 0;
    int64_t first = 28, window = 4096;
    SHD_TRY(read_bool(r, "use_sliding_window", &use));
    SHD_TRY(read_int(r, r->root, "max_window_layers", 0, INT32_MAX, &first));
    if (json_is_null(json_object_get(r->root, "sliding_window"))) {
        window = 0;
    }
    SHD_TRY(read_int(r, r->root, "sliding_window", 1, INT32_MAX, &window));
    if (types != NULL && (!json_is_array(types) || (int64_t)json_array_size(types) != c->n_layer)) {
        return refuse(r, SHD_EINVAL, "layer_types", types,
                      "it must be a list of one name for each layer");
    }
    for (int64_t i = 0; i < c->n_layer; i++) {
        int windowed = use && window > 0 && i >= first;
        if (types != NULL) {
            const json_t *type = json_array_get(types, (size_t)i);
            const char *text = json_is_string(type) ? json_string_value(type) : "";
            windowed = strcmp(text, "sliding_attention") == 0;
            if (!windowed && strcmp(text, "full_attention") != 0) {
                return refuse(r, SHD_EUNSUPPORTED, "layer_types", type,
                              "supported are full_attention and sliding_attention");
            }
        }
        if (windowed && !(use && window > 0)) {
            return refuse(r, SHD_EINVAL, "layer_types", json_array_get(types, (size_t)i),
                          "use_sliding_window and sliding_window do not give a window");
        }
        if (windowed) {
            c->windowed[i / 8] |= (uint8_t)(1 << i % 8);
            c->sliding_window = window;
        }
    }
    return 0;
}

static int read_windows(const reader *r, shd_model_config *c)
{
    if (r->arch == SHD_ARCH_QWEN2 || r->arch == SHD_ARCH_QWEN3) {
        return read_layers(r, c);
    }
    if (r->arch == SHD_ARCH_MISTRAL) {
        c->sliding_window = json_is_null(json_object_get(r->root, "sliding_window")) ? 0 : 4096;
        SHD_TRY(read_int(r, r->root, "sliding_window", 1, INT32_MAX, &c->sliding_window));
        if (c->sliding_window > 0) {
            memset(c->windowed, 0xff, (size_t)(c->n_layer + 7) / 8);
        }
    }
    return 0;
}

static int read_heads(const reader *r, shd_model_config *c)
{
    const json_t *width = find(r->root, "head_dim");
    if (width == NULL && r->arch == SHD_ARCH_QWEN3) {
        c->head_dim = 128;
    } else if (width == NULL && c->d_model % c->n_head != 0) {
        return refuse(r, SHD_EINVAL, "hidden_size", find(r->root, "hidden_size"),
                      "without head_dim it must be a multiple of num_attention_heads");
    }
    SHD_TRY(read_int(r, r->root, "head_dim", 1, SHD_MODEL_MAX_HEAD_DIM, &c->head_dim));
    if (c->head_dim % 2 != 0) {
        return refuse(r, SHD_EINVAL, "head_dim", width,
                      "rotary positions need an even width of heads");
    }
    /* Where it is left out, Llama means one each, others a number of their first model. */
    if (json_object_get(r->root, "num_key_value_heads") == NULL && r->arch != SHD_ARCH_LLAMA) {
        return need_int(r, "num_key_value_heads", 0, &c->n_kv_head);
    }
    SHD_TRY(read_int(r, r->root, "num_key_value_heads", 1, SHD_MODEL_MAX_HEADS, &c->n_kv_head));
    if (c->n_head % c->n_kv_head != 0) {
        return refuse(r, SHD_EINVAL, "num_key_value_heads", find(r->root, "num_key_value_heads"),
                      "num_attention_heads must be a multiple of it");
    }
    return 0;
}

static int read_llama(const reader *r, shd_model_config *c)
{
    int64_t layers = 0, heads = 0, width = 0, inner = 0, context = 0, vocab = 0;
    SHD_TRY(need_int(r, "num_hidden_layers", SHD_MODEL_MAX_LAYERS, &layers));
    SHD_TRY(need_int(r, "num_attention_heads", SHD_MODEL_MAX_HEADS, &heads));
    SHD_TRY(need_int(r, "hidden_size", SHD_MODEL_MAX_WIDTH, &width));
    SHD_TRY(need_int(r, "intermediate_size", SHD_MODEL_MAX_INNER, &inner));
    SHD_TRY(need_int(r, "max_position_embeddings", SHD_MODEL_MAX_CONTEXT, &context));
    SHD_TRY(need_int(r, "vocab_size", SHD_MODEL_MAX_VOCAB, &vocab));
    *c = shd_model_config_llama(layers, heads, width, inner, context, vocab);
    c->arch = r->arch;
    c->norm_eps = 1e-6f;
    c->qk_norm = r->arch == SHD_ARCH_QWEN3;
    c->qkv_bias = r->arch == SHD_ARCH_QWEN2;
    SHD_TRY(read_heads(r, c));
    SHD_TRY(read_float(r, "rms_norm_eps", 0, &c->norm_eps));
    SHD_TRY(read_activation(r, "hidden_act", &c->activation));
    SHD_TRY(read_rope(r, c));
    SHD_TRY(read_pad(r, c));
    if (r->arch == SHD_ARCH_LLAMA || r->arch == SHD_ARCH_QWEN3) {
        SHD_TRY(read_bool(r, "attention_bias", &c->qkv_bias));
        c->o_bias = c->qkv_bias;
    }
    if (r->arch == SHD_ARCH_LLAMA) {
        SHD_TRY(read_bool(r, "mlp_bias", &c->mlp_bias));
    }
    return read_windows(r, c);
}

/* ---- the file ---- */

static int load(const char *file, const char *json, size_t size, size_t flags, json_t **out,
                shd_error *err)
{
    if (size > SHD_HF_CONFIG_MAX_BYTES) {
        return shd_fail(err, SHD_EINVAL, "%s has %zu bytes; at most %d are read", file, size,
                        SHD_HF_CONFIG_MAX_BYTES);
    }
    json_error_t why;
    json_t *root = json_loadb(json, size, flags | JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) {
        char text[SHOWN_MAX + 4];
        return shd_fail(err, SHD_EINVAL, "%s, line %d: %s", file, why.line, shown(text, why.text));
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return shd_fail(err, SHD_EINVAL, "%s holds no object", file);
    }
    *out = root;
    return 0;
}

static int parse(reader *r, shd_model_config *c, shd_hf_info *info)
{
    SHD_TRY(read_arch(r));
    SHD_TRY(check_class(r));
    SHD_TRY(check_keys(r));
    SHD_TRY(r->arch == SHD_ARCH_GPT2 ? read_gpt2(r, c) : read_llama(r, c));
    SHD_TRY(read_float(r, "initializer_range", 1, &c->init_range));
    SHD_TRY(read_bool(r, "tie_word_embeddings", &c->tied));
    SHD_TRY(read_info(r, c->vocab, info));
    return shd_model_check(c, r->err);
}

int shd_hf_config_parse(const char *json, size_t size, shd_model_config *config, shd_hf_info *info,
                        shd_error *err)
{
    shd_hf_info unwanted;
    shd_model_config read = {0};
    json_t *root = NULL;
    SHD_TRY(load(CONFIG, json, size, 0, &root, err));
    reader r = {.file = CONFIG, .root = root, .err = err};
    const int rc = parse(&r, &read, info != NULL ? info : &unwanted);
    json_decref(root);
    if (rc == 0) {
        *config = read;
    }
    return rc;
}

int shd_hf_generation_parse(const char *json, size_t size, int64_t vocab, shd_hf_info *info,
                            shd_error *err)
{
    json_t *root = NULL;
    /* What others sample by may be any number, 10^20 too. */
    SHD_TRY(load("generation_config.json", json, size, JSON_DECODE_INT_AS_REAL, &root, err));
    const reader r = {.file = "generation_config.json", .root = root, .reals = 1, .err = err};
    const int rc = read_eos(&r, vocab, info);
    json_decref(root);
    return rc;
}

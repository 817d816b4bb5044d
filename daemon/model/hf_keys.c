/* The keys of config.json that there may be; see hf_keys.h. Floor F3; pure. */
#include "daemon/model/hf_keys.h"

#include <stddef.h>
#include <string.h>

enum {
    GPT2 = 1 << SHD_ARCH_GPT2,
    LLAMA = 1 << SHD_ARCH_LLAMA,
    MISTRAL = 1 << SHD_ARCH_MISTRAL,
    QWEN2 = 1 << SHD_ARCH_QWEN2,
    QWEN3 = 1 << SHD_ARCH_QWEN3,
    LLAMAS = LLAMA | MISTRAL | QWEN2 | QWEN3,
    ALL = GPT2 | LLAMAS,
};

/* Keys that hf_config.c reads, by architecture. */
static const struct {
    const char *key;
    unsigned archs;
} known[] = {
    {"model_type", ALL},
    {"architectures", ALL},
    {"vocab_size", ALL},
    {"initializer_range", ALL},
    {"tie_word_embeddings", ALL},
    {"bos_token_id", ALL},
    {"eos_token_id", ALL},
    {"pad_token_id", ALL},
    {"dtype", ALL},
    {"torch_dtype", ALL},
    {"n_positions", GPT2},
    {"n_ctx", GPT2},
    {"n_embd", GPT2},
    {"n_layer", GPT2},
    {"n_head", GPT2},
    {"n_inner", GPT2},
    {"activation_function", GPT2},
    {"layer_norm_epsilon", GPT2},
    {"scale_attn_weights", GPT2},
    {"scale_attn_by_inverse_layer_idx", GPT2},
    {"hidden_size", LLAMAS},
    {"intermediate_size", LLAMAS},
    {"num_hidden_layers", LLAMAS},
    {"num_attention_heads", LLAMAS},
    {"num_key_value_heads", LLAMAS},
    {"head_dim", LLAMAS},
    {"hidden_act", LLAMAS},
    {"max_position_embeddings", LLAMAS},
    {"rms_norm_eps", LLAMAS},
    {"rope_theta", LLAMAS},
    {"rope_scaling", LLAMAS},
    {"rope_parameters", LLAMAS},
    {"attention_bias", LLAMA | QWEN3},
    {"mlp_bias", LLAMA},
    {"sliding_window", MISTRAL | QWEN2 | QWEN3},
    {"use_sliding_window", QWEN2 | QWEN3},
    {"max_window_layers", QWEN2 | QWEN3},
    {"layer_types", QWEN2 | QWEN3},
};

/* Keys that have one value here: any other would change the numbers. */
static const struct {
    const char *key;
    shd_hf_only only;
} fixed[] = {
    {"add_cross_attention", SHD_HF_FALSE},
    {"is_encoder_decoder", SHD_HF_FALSE},
    {"tie_encoder_decoder", SHD_HF_FALSE},
    {"rope_interleaved", SHD_HF_FALSE},
    {"use_mrope", SHD_HF_FALSE},
    {"is_llama_config", SHD_HF_TRUE},
    {"chunk_size_feed_forward", SHD_HF_ZERO},
    {"partial_rotary_factor", SHD_HF_ONE},
    {"pruned_heads", SHD_HF_EMPTY},
};

/* Keys that do not change the numbers of training, evaluation or logits: how others run, label or
 * sample the model. Dropout is the job's to choose (--dropout). */
static const char *const harmless[] = {
    /* dropout */
    "attention_dropout",
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "summary_first_dropout",
    /* provenance and form of the file */
    "_name_or_path",
    "name_or_path",
    "transformers_version",
    "_commit_hash",
    "transformers.js_config",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "torchscript",
    "finetuning_task",
    "task_specific_params",
    "tokenizer_class",
    "prefix",
    /* how others execute it: to the same numbers */
    "use_cache",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "gradient_checkpointing",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    "is_decoder",
    "tf_legacy_loss",
    "low_cpu_mem_usage",
    /* other heads */
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    /* tokens and sampling */
    "sep_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    "bad_words_ids",
    "begin_suppress_tokens",
    "suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "remove_invalid_values",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
};

shd_hf_only shd_hf_key(const char *key, shd_arch arch)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].key, key) == 0 && known[i].archs >> arch & 1) {
            return SHD_HF_ANY;
        }
    }
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
        if (strcmp(harmless[i], key) == 0) {
            return SHD_HF_ANY;
        }
    }
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        if (strcmp(fixed[i].key, key) == 0) {
            return fixed[i].only;
        }
    }
    return SHD_HF_UNKNOWN;
}

#include "client/spec_options.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/mem.h"
#include "client/units.h"

#define AT(field) offsetof(shc_spec_args, spec.field)
#define STR(flag, word, field, kind, text)                                                         \
    {                                                                                              \
        .name = flag, .value = word, .type = kind, .at = AT(field), .help = text                   \
    }
#define ONE(flag, field, text)                                                                     \
    {                                                                                              \
        .name = flag, .type = SHC_BOOL, .at = AT(field), .help = text                              \
    }
/* HAS is the field's name in capitals: the oneof that tells whether the field is set. */
#define NUM(flag, word, field, HAS, kind, low, high, text)                                         \
    {                                                                                              \
        .name = flag, .value = word, .type = kind, .at = AT(field), .has = AT(has_##field##_case), \
        .mark = SHARD__V1__JOB_SPEC__HAS_##HAS##_##HAS, .min = low, .max = high, .help = text      \
    }

static const shc_option options[] = {
    STR("name", "NAME", name, SHC_TEXT, "of the job; default: its id"),
    STR("model", "MODEL", model, SHC_PRESET,
        "a Hugging Face directory (what has a slash or is a directory), or a shape with random "
        "weights: gpt-byte-1m|10m, gpt2, gpt2-medium|large|xl, smollm2-135m|360m|1.7b, llama-2-7b, "
        "llama-3.1-8b, llama-3.2-1b|3b, mistral-7b, qwen2.5-0.5b|1.5b, qwen3-0.6b|1.7b"),
    STR("init-from", "SOURCE", init_from, SHC_PRESET,
        "pretrained (default for a directory), random (default for a preset), or another "
        "directory of the same shapes"),
    STR("data", "FILE", data, SHC_FILE,
        "text, JSONL or tokens to train on; without it clients send the batches"),
    STR("data-format", "FORMAT", data_format, SHC_TEXT,
        "auto (default: by the name's ending and the first bytes), text, jsonl, nanogpt, llmc"),
    STR("tokenizer", "SOURCE", tokenizer, SHC_PRESET,
        "bytes, or a tokenizer.json, a tokenizer.model or a directory with one; default: that of "
        "the model's directory"),
    NUM("packing", "on|off", packing, PACKING, SHC_ON_OFF, 0, 0,
        "documents end to end in a sequence (on, the default), or one a sequence"),
    STR("strategy", "NAME", strategy, SHC_TEXT,
        "ddp (no_shard), zero1, zero2, zero3 (full_shard, the default), shard_grad_op, "
        "hybrid_shard (mics), hybrid_shard_zero2, hpz, megatron"),
    {.name = "shard-degrees",
     .value = "P,G,O",
     .type = SHC_U32_LIST,
     .at = AT(shard_degrees),
     .has = AT(n_shard_degrees),
     .min = 1,
     .max = 3,
     .help = "into how many parts parameters, gradients and optimizer state are cut, each dividing "
             "the next and --ranks; instead of --strategy"},
    NUM("shard-group", "K", shard_group, SHARD_GROUP, SHC_U32, 1, 0,
        "hybrid_shard, mics, hybrid_shard_zero2, hpz, megatron: ranks that share one copy of the "
        "parameters; default: those of a node"),
    STR("reshard-after-forward", "yes|no|N", reshard_after_forward, SHC_TEXT,
        "what becomes of gathered parameters until backward: dropped and gathered again (yes, the "
        "default), kept (no), or kept in N parts over N ranks, which are gathered again"),
    NUM("prefetch", "N", prefetch, PREFETCH, SHC_U32, 0, 0,
        "units that are gathered ahead of compute; default 1"),
    NUM("max-gathered", "N", max_gathered, MAX_GATHERED, SHC_U32, 0, 0,
        "units that may be gathered at once; default 0: what --prefetch takes"),
    NUM("bucket-bytes", "SIZE", bucket_bytes, BUCKET_BYTES, SHC_SIZE, 0, 0,
        "gradients that are reduced together; default 0: those of a unit"),
    NUM("overlap", "on|off", overlap, OVERLAP, SHC_ON_OFF, 0, 0,
        "collectives beside compute (on, the default), or in between"),
    NUM("persist-below", "N", persist_below, PERSIST_BELOW, SHC_U64, 0, 0,
        "parameters of fewer elements stay gathered; default 0: none"),
    NUM("ranks", "N", ranks, RANKS, SHC_U32, 1, 0, "world size; default: all ranks of the daemon"),
    NUM("steps", "N", steps, STEPS, SHC_U64, 0, 0,
        "optimizer steps; default 1000, with batches of clients 0: no end"),
    NUM("micro-batch", "N", micro_batch, MICRO_BATCH, SHC_U32, 1, 0,
        "sequences per rank and accumulation step; default 8"),
    NUM("global-batch", "N", global_batch, GLOBAL_BATCH, SHC_U32, 1, 0,
        "sequences per optimizer step; default: ranks (determinism world: reduction-width) x "
        "micro-batch"),
    NUM("seq-len", "N", seq_len, SEQ_LEN, SHC_U32, 1, 0,
        "tokens per sequence; default: the model's context"),
    STR("optimizer", "NAME", optimizer, SHC_TEXT, "adamw (default), adam, sgd, lion"),
    NUM("lr", "RATE", lr, LR, SHC_NUM, 0, 0, "peak learning rate; default 3e-4"),
    NUM("lr-min", "RATE", lr_min, LR_MIN, SHC_NUM, 0, 0,
        "learning rate at the end of the schedule; default lr / 10"),
    STR("schedule", "NAME", schedule, SHC_TEXT,
        "cosine (default), linear, constant, wsd, inverse_sqrt"),
    NUM("warmup", "STEPS", warmup, WARMUP, SHC_U64, 0, 0, "steps of linear warm-up; default 0"),
    NUM("decay-steps", "STEPS", decay_steps, DECAY_STEPS, SHC_U64, 0, 0,
        "wsd: length of the last phase, in which the rate falls; default steps / 10"),
    NUM("weight-decay", "X", weight_decay, WEIGHT_DECAY, SHC_NUM, 0, 0,
        "default 0.1, sgd 0; on norms and biases only with --decay-all"),
    ONE("decay-all", decay_all, "weight decay on norms and biases too"),
    NUM("beta1", "X", beta1, BETA1, SHC_NUM, 0, 1, "default 0.9"),
    NUM("beta2", "X", beta2, BETA2, SHC_NUM, 0, 1, "default 0.95, lion 0.99"),
    NUM("eps", "X", eps, EPS, SHC_NUM, 0, 0, "default 1e-8"),
    NUM("clip", "NORM", clip, CLIP, SHC_NUM, 0, 0, "global gradient norm; default 1; 0: off"),
    NUM("momentum", "X", momentum, MOMENTUM, SHC_NUM, 0, 1, "sgd; default 0.9; 0: none"),
    ONE("nesterov", nesterov, "sgd: Nesterov's momentum"),
    {.name = "freeze",
     .value = "PATTERNS",
     .type = SHC_WORDS,
     .at = AT(freeze),
     .has = AT(n_freeze),
     .help =
         "parameters that are not trained, by name with *, ? and [..] as in file names, such as "
         "'*.mlp.*' or '*.layers.[0-3].*'; a list with commas, and may be given again"},
    NUM("dropout", "P", dropout, DROPOUT, SHC_NUM, 0, 1,
        "gpt2: on embeddings, attention and residual branches; others: on attention; default 0, "
        "also where a checkpoint's config.json has rates of its own"),
    STR("dtype", "TYPE", dtype, SHC_TEXT,
        "of computing and of gathered parameters: fp32 (default), bf16, fp16; masters and moments "
        "are fp32"),
    STR("reduce-dtype", "TYPE", reduce_dtype, SHC_TEXT,
        "of gradients as they are reduced and accumulated: fp32 (default), bf16, fp16"),
    STR("activation-checkpointing", "MODE", activation_checkpointing, SHC_TEXT,
        "none (default), selective (every second block), full: compute activations again in the "
        "backward pass instead of keeping them"),
    NUM("loss-scale", "X", loss_scale, LOSS_SCALE, SHC_NUM, 0, 0,
        "fp16: a fixed scale; default 0: dynamic"),
    NUM("initial-scale-power", "N", initial_scale_power, INITIAL_SCALE_POWER, SHC_U32, 0, 0,
        "fp16: the first scale is 2 to this; default 16"),
    NUM("loss-scale-window", "STEPS", loss_scale_window, LOSS_SCALE_WINDOW, SHC_U32, 1, 0,
        "fp16: good steps before the scale doubles; default 1000"),
    NUM("hysteresis", "N", hysteresis, HYSTERESIS, SHC_U32, 1, 0,
        "fp16: overflows before the scale halves; default 2"),
    NUM("min-loss-scale", "X", min_loss_scale, MIN_LOSS_SCALE, SHC_NUM, 0, 0,
        "fp16: an overflow at this scale fails the job; default 1"),
    STR("offload-optimizer", "TIER", offload_optimizer, SHC_TEXT, "none"),
    STR("offload-params", "TIER", offload_params, SHC_TEXT, "none"),
    STR("determinism", "LEVEL", determinism, SHC_TEXT,
        "same bits for the same job (run), for every strategy too (strategy, the default), for "
        "every power of two of ranks up to --reduction-width too (world)"),
    NUM("reduction-width", "N", reduction_width, REDUCTION_WIDTH, SHC_U32, 1, 0,
        "world: micro-batches that are summed as one tree, a power of two; default: ranks"),
    NUM("seed", "N", seed, SEED, SHC_U64, 0, 0, "default 1"),
    NUM("checkpoint-every", "STEPS", checkpoint_every, CHECKPOINT_EVERY, SHC_U64, 0, 0, "0: never"),
    STR("eval-data", "FILE", eval_data, SHC_FILE,
        "held-out data, with --eval-every; default: the tail of --data"),
    NUM("eval-split", "SHARE", eval_split, EVAL_SPLIT, SHC_NUM, 0, 1,
        "of --data kept for evaluation; default 0.1 when --eval-every is set"),
    NUM("eval-every", "STEPS", eval_every, EVAL_EVERY, SHC_U64, 0, 0, "0: never"),
    NUM("eval-batches", "N", eval_batches, EVAL_BATCHES, SHC_U32, 0, 0,
        "micro-batches per evaluation; default 64; 0: the whole evaluation set"),
    NUM("priority", "N", priority, PRIORITY, SHC_U32, 1, 100,
        "1..100, share of the ranks' steps; default 10"),
    {.name = "file",
     .value = "JSON",
     .type = SHC_FILE,
     .at = offsetof(shc_spec_args, file),
     .help = "read these flags from a JSON object; flags given here override it"},
};

const shc_option_table shc_spec_table = {options, sizeof options / sizeof *options, 0};

void shc_spec_init(shc_spec_args *args)
{
    shard__v1__job_spec__init(&args->spec);
}

/* The line of the file on which `"key"` stands before a colon; 0 when not found (escapes). */
static unsigned line_of(const char *text, const char *key)
{
    const size_t n = strlen(key);
    unsigned line = 1;

    for (const char *p = text; *p; p++) {
        if (*p == '\n')
            line++;
        if (*p != '"' || strncmp(p + 1, key, n) || p[n + 1] != '"')
            continue;
        const char *after = p + n + 2;
        after += strspn(after, " \t\r\n");
        if (*after == ':')
            return line;
    }
    return 0;
}

/* The value as the flag's text, or NULL when it has the wrong kind. Kept. */
static const char *value_text(const shc_option *option, const json_t *value, shc_keep *keep)
{
    shc_buf text = {0};
    const json_t *item;
    size_t i;

    switch (option->type) {
    case SHC_BOOL:
        return json_is_boolean(value) ? json_is_true(value) ? "true" : "false" : NULL;
    case SHC_ON_OFF:
        return json_is_boolean(value) ? json_is_true(value) ? "on" : "off" : NULL;
    case SHC_WORDS:
        if (!json_is_array(value))
            break;
        json_array_foreach(value, i, item)
        {
            if (!json_is_string(item)) {
                shc_buf_fini(&text);
                return NULL;
            }
            shc_buf_printf(&text, "%s%s", i ? "," : "", json_string_value(item));
        }
        return shc_keep_ptr(keep, text.data ? text.data : shc_strdup(""));
    case SHC_U32:
    case SHC_U64:
        return json_is_integer(value)
                   ? shc_keep_ptr(keep, shc_asprintf("%lld", (long long)json_integer_value(value)))
                   : NULL;
    case SHC_NUM:
        return json_is_number(value)
                   ? shc_keep_ptr(keep, shc_asprintf("%.17g", json_number_value(value)))
                   : NULL;
    case SHC_SIZE:
        if (json_is_string(value))
            break;
        return json_is_integer(value)
                   ? shc_keep_ptr(keep, shc_asprintf("%lld", (long long)json_integer_value(value)))
                   : NULL;
    case SHC_U32_LIST:
        if (json_is_string(value))
            return shc_keep_ptr(keep, shc_strdup(json_string_value(value)));
        if (!json_is_array(value) || !json_array_size(value))
            return NULL;
        json_array_foreach(value, i, item)
        {
            if (!json_is_integer(item)) {
                shc_buf_fini(&text);
                return NULL;
            }
            shc_buf_printf(&text, "%s%lld", i ? "," : "", (long long)json_integer_value(item));
        }
        return shc_keep_ptr(keep, text.data);
    default:
        break;
    }
    return json_is_string(value) ? shc_keep_ptr(keep, shc_strdup(json_string_value(value))) : NULL;
}

static const char *kind_wanted(shc_type type)
{
    switch (type) {
    case SHC_BOOL:
    case SHC_ON_OFF:
        return "true or false";
    case SHC_WORDS:
        return "an array of strings";
    case SHC_U32:
    case SHC_U64:
        return "a whole number";
    case SHC_NUM:
        return "a number";
    case SHC_SIZE:
        return "a whole number or a size, such as \"25MB\"";
    case SHC_U32_LIST:
        return "an array of whole numbers";
    default:
        return "a string";
    }
}

static int apply(shc_spec_args *args, const json_t *root, const char *text,
                 const unsigned char *given, shc_keep *keep, shc_buf *message)
{
    const size_t strategy = (size_t)(shc_option_find(&shc_spec_table, "strategy", 8) - options);
    const size_t degrees =
        (size_t)(shc_option_find(&shc_spec_table, "shard-degrees", 13) - options);
    unsigned char seen[sizeof options / sizeof *options] = {0};
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)root, key, value)
    {
        const shc_option *option = shc_option_find(&shc_spec_table, key, strlen(key));
        const unsigned line = line_of(text, key);
        if (line)
            shc_buf_printf(message, "%s:%u: ", args->file, line);
        else
            shc_buf_printf(message, "%s: ", args->file);
        if (!option || option->at == offsetof(shc_spec_args, file)) {
            shc_buf_puts(message, "unknown key \"");
            shc_text_clean(message, key);
            shc_buf_puts(message,
                         "\"; the keys are the flags of submit, see shardctl submit --help");
            return -1;
        }
        const size_t index = (size_t)(option - options);
        if (seen[index]) {
            shc_buf_printf(message, "\"%s\" is given twice, with - and with _; give it once", key);
            return -1;
        }
        seen[index] = 1;
        const char *as_text = value_text(option, value, keep);
        if (!as_text) {
            shc_buf_printf(message, "\"%s\" is not %s; give %s", key, kind_wanted(option->type),
                           kind_wanted(option->type));
            return -1;
        }
        /* Either way of naming the strategy on the command line overrides both in the file. */
        const int overridden = given[index] || (index == strategy && given[degrees]) ||
                               (index == degrees && given[strategy]);
        const int nothing = option->type == SHC_BOOL    ? json_is_false(value)
                            : option->type == SHC_WORDS ? !*as_text
                                                        : 0;
        if (!overridden && !nothing && shc_option_set(option, as_text, args, keep, message))
            return -1;
        shc_buf_clear(message);
    }
    return 0;
}

int shc_spec_read_file(shc_spec_args *args, const unsigned char *given, shc_keep *keep,
                       shc_buf *message)
{
    shc_buf text = {0};
    json_error_t bad;
    char chunk[4096];
    size_t n;
    int rc = -1;

    if (!args->file)
        return 0;
    FILE *file = fopen(args->file, "re");
    if (!file) {
        shc_buf_printf(message, "--file: %s: %s; give a readable file", args->file,
                       strerror(errno));
        return -1;
    }
    while ((n = fread(chunk, 1, sizeof chunk, file)) > 0)
        shc_buf_add(&text, chunk, n);
    fclose(file);

    json_t *root = json_loadb(shc_buf_str(&text), text.len, JSON_REJECT_DUPLICATES, &bad);
    if (!root) {
        shc_buf_printf(message, "%s:%d:%d: ", args->file, bad.line, bad.column);
        shc_text_clean(message, bad.text);
        shc_buf_puts(message, "; correct the JSON");
    } else if (!json_is_object(root)) {
        shc_buf_printf(message, "%s: the file is not a JSON object; write {\"steps\": 100, ...}",
                       args->file);
    } else {
        rc = apply(args, root, shc_buf_str(&text), given, keep, message);
    }
    json_decref(root);
    shc_buf_fini(&text);
    return rc;
}

"""Small Hugging Face checkpoints, the same for the same arguments. Python's standard library alone."""

import json
import os
import random
import struct

END = "<|endoftext|>"
MERGES = ["h e", "t he", "Ġ the", "i n", "e r", "a n", "an d", "Ġ and", "o u", "r e", "Ġ s", "Ġ w", "l l", "o n", "in g"]
SIZES = {"F32": 4, "BF16": 2, "F16": 2}
TORCH = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}

# ---- the tokenizer: byte-level BPE in the layout of GPT-2's tokenizer.json ----


def byte_letters():
    """The printable letter that stands for each byte."""
    keep = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    letters, extra = {}, 0
    for byte in range(256):
        if byte in keep:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + extra)
            extra += 1
    return letters


def tokenizer():
    letters = byte_letters()
    words = sorted(letters.values()) + ["".join(merge.split(" ")) for merge in MERGES]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": len(words), "content": END, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                  "vocab": {word: i for i, word in enumerate(words)}, "merges": MERGES},
    }


VOCAB = 256 + len(MERGES) + 1

# ---- the model ----


def llama_config(**changes):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 24, "intermediate_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 64, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "initializer_range": 0.02, "bos_token_id": VOCAB - 1, "eos_token_id": VOCAB - 1, "torch_dtype": "float32",
    }
    config.update(changes)
    return config


def gpt2_config(**changes):
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 20, "n_layer": 2, "n_head": 2,
        "n_positions": 64, "vocab_size": VOCAB, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "initializer_range": 0.02, "tie_word_embeddings": True, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "bos_token_id": VOCAB - 1, "eos_token_id": VOCAB - 1, "torch_dtype": "float32",
    }
    config.update(changes)
    return config


def shapes(config):
    """Tensor names and shapes, in the order of the files."""
    out = []
    if config["model_type"] == "gpt2":
        width = config["n_embd"]
        out += [("transformer.wte.weight", (config["vocab_size"], width)),
                ("transformer.wpe.weight", (config["n_positions"], width))]
        for i in range(config["n_layer"]):
            at = "transformer.h.%d." % i
            for norm in ("ln_1", "ln_2"):
                out += [(at + norm + ".weight", (width,)), (at + norm + ".bias", (width,))]
            for name, rows, columns in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
                                        ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width)):
                out += [(at + name + ".weight", (rows, columns)), (at + name + ".bias", (columns,))]
        out += [("transformer.ln_f.weight", (width,)), ("transformer.ln_f.bias", (width,))]
        return out
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    out.append(("model.embed_tokens.weight", (config["vocab_size"], width)))
    for i in range(config["num_hidden_layers"]):
        at = "model.layers.%d." % i
        out += [(at + "input_layernorm.weight", (width,)), (at + "mlp.down_proj.weight", (width, inner)),
                (at + "mlp.gate_proj.weight", (inner, width)), (at + "mlp.up_proj.weight", (inner, width)),
                (at + "post_attention_layernorm.weight", (width,)), (at + "self_attn.k_proj.weight", (keys, width)),
                (at + "self_attn.o_proj.weight", (width, queries)), (at + "self_attn.q_proj.weight", (queries, width)),
                (at + "self_attn.v_proj.weight", (keys, width))]
    out.append(("model.norm.weight", (width,)))
    if not config["tie_word_embeddings"]:
        out.append(("lm_head.weight", (config["vocab_size"], width)))
    return out


def pack(values, dtype):
    if dtype == "F32":
        return struct.pack("<%df" % len(values), *values)
    if dtype == "F16":
        return struct.pack("<%de" % len(values), *values)
    words = struct.unpack("<%dI" % len(values), struct.pack("<%df" % len(values), *values))
    return struct.pack("<%dH" % len(values), *((w + 0x7FFF + (w >> 16 & 1)) >> 16 for w in words))


def unpack(data, dtype):
    if dtype == "BF16":
        words = struct.unpack("<%dH" % (len(data) // 2), data)
        return struct.unpack("<%df" % len(words), struct.pack("<%dI" % len(words), *(w << 16 for w in words)))
    return struct.unpack("<%d%s" % (len(data) // SIZES[dtype], "f" if dtype == "F32" else "e"), data)


def make_tensors(config, dtype="F32", seed=1):
    """{name: (dtype, shape, bytes)}. Large enough that logits differ well, norms near 1."""
    rng = random.Random(seed)
    out = {}
    for name, shape in shapes(config):
        n = 1
        for size in shape:
            n *= size
        norm = name.endswith("norm.weight") or ".ln_" in name and name.endswith(".weight")
        values = [(1.0 if norm else 0.0) + rng.uniform(-0.3, 0.3) for _ in range(n)]
        out[name] = (dtype, shape, pack(values, dtype))
    return out


# ---- files ----


def write_safetensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def read_safetensors(path):
    with open(path, "rb") as file:
        raw = file.read()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], tuple(t["shape"]), raw[8 + size + t["data_offsets"][0]:8 + size + t["data_offsets"][1]])
            for name, t in header.items()}


def read(directory):
    """All tensors of a checkpoint, of one file or by its index."""
    index = os.path.join(directory, "model.safetensors.index.json")
    if not os.path.exists(index):
        return read_safetensors(os.path.join(directory, "model.safetensors"))
    with open(index, encoding="utf-8") as file:
        places = json.load(file)["weight_map"]
    out = {}
    for name in sorted(set(places.values())):
        found = read_safetensors(os.path.join(directory, name))
        assert {key for key, where in places.items() if where == name} == set(found), (name, places)
        out.update(found)
    return out


def write_json(directory, name, value):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)


def write(directory, config=None, dtype="F32", shards=1, seed=1, tensors=None, with_tokenizer=True):
    """Makes the directory; gives its tensors."""
    config = dict(config or llama_config(), torch_dtype=TORCH[dtype])
    tensors = make_tensors(config, dtype, seed) if tensors is None else tensors
    os.makedirs(directory)
    os.chmod(directory, 0o755)
    write_json(directory, "config.json", config)
    if with_tokenizer:
        write_json(directory, "tokenizer.json", tokenizer())
        write_json(directory, "tokenizer_config.json",
                   {"tokenizer_class": "GPT2TokenizerFast", "bos_token": END, "eos_token": END, "model_max_length": 64})
    names = list(tensors)
    if shards == 1:
        write_safetensors(os.path.join(directory, "model.safetensors"), tensors)
        return tensors
    places = {}
    for shard in range(shards):
        part = names[shard * len(names) // shards:(shard + 1) * len(names) // shards]
        name = "model-%05d-of-%05d.safetensors" % (shard + 1, shards)
        write_safetensors(os.path.join(directory, name), {key: tensors[key] for key in part})
        places.update({key: name for key in part})
    write_json(directory, "model.safetensors.index.json",
               {"metadata": {"total_size": sum(len(data) for _, _, data in tensors.values())}, "weight_map": places})
    return tensors

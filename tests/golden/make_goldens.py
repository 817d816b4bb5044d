#!/usr/bin/env python3
"""Writes the golden files of this folder: what PyTorch computes for small models, on the CPU.

usage: make_goldens.py [FOLDER [NAME...]]    (default: where this script is, all; needs torch and transformers)

README.md describes the contents and the format. Each run is also made in fp64, to print how far fp32 is from it.
"""

import json
import math
import os
import struct
import sys

import torch
import torch.nn.functional as F
from transformers import (
    AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config,
)

BATCH = 4
STEPS = 20
IGNORE = -100
HYPER = {
    "lr": 3e-3,
    "lr_min": 3e-4,
    "warmup": 5,
    "steps": STEPS,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip": 1.0,
}


def gpt2(n_layer, n_head, n_embd, n_positions, vocab, **more):
    fields = {
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "bos_token_id": 0,
        "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }
    fields.update(more)
    return GPT2Config(
        vocab_size=vocab, n_positions=n_positions, n_embd=n_embd, n_layer=n_layer, n_head=n_head, **fields)


def llama(kind, layers, heads, key_heads, width, inner, context, vocab, **more):
    return kind(
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=key_heads, hidden_size=width,
        intermediate_size=inner, max_position_embeddings=context, vocab_size=vocab, bos_token_id=0, eos_token_id=0,
        attention_dropout=0.0, **more)


LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
# name: configuration, sequence length, share of ignored targets
CONFIGS = {
    "gpt2_a": (gpt2(3, 5, 40, 37, 61), 37, 0.15),
    "gpt2_b": (gpt2(2, 2, 24, 19, 97), 13, 0.0),
    "gpt2_c": (gpt2(1, 3, 33, 29, 256), 29, 0.0),
    "gpt2_d": (gpt2(2, 3, 21, 23, 53, tie_word_embeddings=False, activation_function="gelu", n_inner=50,
                    scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=1e-3), 19, 0.0),
    "gpt2_e": (gpt2(2, 2, 18, 23, 59, scale_attn_weights=False, n_inner=31), 23, 0.1),
    "llama_a": (llama(LlamaConfig, 2, 4, 4, 24, 41, 29, 61, rms_norm_eps=1e-5), 13, 0.0),
    "llama_b": (llama(LlamaConfig, 2, 4, 1, 28, 37, 64, 59, head_dim=10, attention_bias=True, mlp_bias=True,
                      rope_parameters=dict(LLAMA3)), 47, 0.15),
    "llama_c": (llama(LlamaConfig, 2, 6, 3, 24, 35, 40, 67, tie_word_embeddings=True, pad_token_id=2,
                      rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0}), 31, 0.0),
    "smollm2": (llama(LlamaConfig, 2, 3, 1, 18, 49, 64, 71, tie_word_embeddings=True, rms_norm_eps=1e-5,
                      rope_parameters={"rope_type": "default", "rope_theta": 100000.0}), 21, 0.0),
    "mistral": (llama(MistralConfig, 2, 4, 2, 24, 43, 64, 61, sliding_window=5, rms_norm_eps=1e-5), 17, 0.1),
    "qwen2": (llama(Qwen2Config, 3, 4, 1, 24, 33, 64, 53, tie_word_embeddings=True, use_sliding_window=True,
                    sliding_window=4, max_window_layers=1), 19, 0.0),
    "qwen2_b": (llama(Qwen2Config, 1, 6, 3, 24, 39, 64, 57, tie_word_embeddings=False, pad_token_id=0), 11, 0.0),
    "qwen3": (llama(Qwen3Config, 2, 4, 2, 24, 39, 64, 61, head_dim=8, tie_word_embeddings=True), 17, 0.0),
    "qwen3_b": (llama(Qwen3Config, 2, 3, 3, 21, 31, 64, 47, head_dim=12, tie_word_embeddings=False,
                      attention_bias=True), 15, 0.1),
}
# Files that hold the final parameters too.
WITH_FINAL = ("gpt2_b", "gpt2_c", "llama_a", "qwen3")


def learning_rate(step):
    """Step counts from 1."""
    lr, low, warmup = HYPER["lr"], HYPER["lr_min"], HYPER["warmup"]
    if step <= warmup:
        return lr * step / warmup
    x = (step - warmup) / (HYPER["steps"] - warmup)
    return low + (lr - low) * 0.5 * (1 + math.cos(math.pi * x))


def make_model(config, seed):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    model.train()  # no configuration here has dropout
    # Nothing is left at 0 or 1, where a missing term would not show.
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(0.12 * noise)
            elif parameter_name.endswith("bias"):
                parameter.copy_(0.05 * noise)
            else:
                parameter.copy_(1 + 0.1 * noise)
    return model


def make_batches(vocab, length, ignored, seed):
    generator = torch.Generator().manual_seed(seed)
    # Skewed ids, so that some rows of the embedding are hit often and some never.
    uniform = torch.rand((STEPS, BATCH, length + 1), generator=generator)
    ids = (vocab * uniform ** 1.7).to(torch.int64).clamp(max=vocab - 1)
    tokens, targets = ids[:, :, :-1].contiguous(), ids[:, :, 1:].clone()
    targets[torch.rand(targets.shape, generator=generator) < ignored] = IGNORE
    if ignored > 0:
        targets[:, 1, length // 2:] = IGNORE  # a sequence that ends early
    return tokens, targets


def train(model, tokens, targets):
    """Returns gradients of the first step (before clipping) and, per step, loss, norm before clipping, lr."""
    decay = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": HYPER["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        lr=HYPER["lr"], betas=(HYPER["beta1"], HYPER["beta2"]), eps=HYPER["eps"], foreach=False, fused=False,
    )
    gradients, losses, norms, rates = {}, [], [], []
    for step in range(STEPS):
        logits = model(input_ids=tokens[step]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets[step].flatten(), ignore_index=IGNORE)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            gradients = {n: p.grad.detach().clone() for n, p in model.named_parameters()}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), HYPER["clip"], foreach=False)
        rate = learning_rate(step + 1)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm.item())
        rates.append(rate)
    return gradients, losses, norms, rates


def furthest(values, exact):
    """Largest relative distance (2-norm) of a tensor. The bias of keys, which moves at random, is left out."""
    def part(name, tensor):
        if name.endswith("attn.c_attn.bias"):
            width = tensor.numel() // 3
            return torch.cat([tensor[:width], tensor[2 * width:]])
        return tensor
    return max(((part(n, values[n]) - part(n, e)).norm() / part(n, e).norm()).item()
               for n, e in exact.items() if not n.endswith("k_proj.bias"))


def write(path, fields, tensors, texts={}):
    codes = {torch.float32: "f32", torch.float64: "f64", torch.int32: "i32"}
    lines, blobs, offset = ["shardd golden 1"], [], 0
    lines += ["%s %s" % (key, repr(value)) for key, value in fields.items()]
    lines += ["text %s %s" % (key, value) for key, value in texts.items()]
    for name, tensor in tensors.items():
        blob = tensor.detach().contiguous().numpy().tobytes()
        blob += bytes(-len(blob) % 8)
        shape = " ".join(str(n) for n in tensor.shape)
        lines.append("tensor %s %s %d %s %d" % (name, codes[tensor.dtype], tensor.ndim, shape, offset))
        blobs.append(blob)
        offset += len(blob)
    lines.append("data %d" % offset)
    with open(path, "wb") as out:
        out.write(("\n".join(lines) + "\n").encode("ascii"))
        for blob in blobs:
            out.write(blob)


def config_text(config):
    """config.json as save_pretrained writes it, in one line."""
    return json.dumps(json.loads(config.to_json_string()))


def make(name, folder):
    config, length, ignored = CONFIGS[name]
    seed = ord(name[-1]) if name.startswith("gpt2") else sum(map(ord, name))
    model = make_model(config, seed)
    tokens, targets = make_batches(config.vocab_size, length, ignored, seed + 1000)
    initial = {n: p.detach().clone() for n, p in model.named_parameters()}
    with torch.no_grad():
        logits = model(input_ids=tokens[0, :1]).logits[0]
    gradients, losses, norms, rates = train(model, tokens, targets)

    exact = make_model(config, seed).double()
    exact_gradients, exact_losses, _, _ = train(exact, tokens, targets)
    final = {n: p.detach() for n, p in model.named_parameters()}
    print("%s: %d parameters, loss %.4f to %.4f, norm %.2f to %.2f" % (
        name, sum(p.numel() for p in model.parameters()), losses[0], losses[-1], min(norms), max(norms)))
    print("   fp32 against fp64: gradients %.1e, losses %.1e, final parameters %.1e" % (
        furthest(gradients, exact_gradients), max(abs(a - b) / b for a, b in zip(losses, exact_losses)),
        furthest(final, {n: p.detach() for n, p in exact.named_parameters()})))

    fields = {"batch": BATCH, "length": length}
    fields.update(HYPER)
    tensors = {"tokens": tokens.to(torch.int32), "targets": targets.to(torch.int32), "logits": logits}
    tensors.update({"loss": torch.tensor(losses, dtype=torch.float64),
                    "grad_norm": torch.tensor(norms, dtype=torch.float64),
                    "lr": torch.tensor(rates, dtype=torch.float64)})
    parts = [("init", initial), ("grad", gradients)] + [("final", final)] * (name in WITH_FINAL)
    for prefix, values in parts:
        tensors.update({"%s/%s" % (prefix, n): t for n, t in values.items()})
    write(os.path.join(folder, "%s.golden" % name), fields, tensors, {"config": config_text(config)})


# ---- mixed precision: curves of many steps ----

MIXED_STEPS = 100
MIXED_BATCHES = 10
MIXED_LENGTH = 24
MIXED_LR = 1e-3
# What fp16 begins with by default, and a scale that overflows until it has come down. Whether a gradient at the edge of
# overflow is beyond it is decided by rounding, and from then on curves part: the second ends before the first such edge.
SCALING = {
    "fp16": {"steps": 100, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1.0},
    "fp16_overflow": {
        "steps": 20, "initial_scale_power": 24, "loss_scale_window": 15, "hysteresis": 2, "min_loss_scale": 1.0},
}
MIXED = {
    "mixed_gpt2": gpt2(2, 4, 32, 24, 64),
    "mixed_llama": llama(LlamaConfig, 2, 4, 2, 32, 48, 24, 64, tie_word_embeddings=True),
}


def make_learnable(vocab, seed):
    """Batches that are used in turn: a walk whose next token mostly follows from the last."""
    generator = torch.Generator().manual_seed(seed)
    shape = (MIXED_BATCHES, BATCH, MIXED_LENGTH + 1)
    ids = torch.randint(0, vocab, shape, generator=generator)
    follows = torch.rand(shape, generator=generator) < 0.8
    for i in range(1, MIXED_LENGTH + 1):
        ids[:, :, i] = torch.where(follows[:, :, i], (ids[:, :, i - 1] * 5 + 3) % vocab, ids[:, :, i])
    return ids[:, :, :-1].contiguous(), ids[:, :, 1:].contiguous()


class LossScale:
    """Dynamic loss scaling by DeepSpeed's rules (DynamicLossScaler without consecutive hysteresis)."""

    def __init__(self, rules):
        self.rules = rules
        self.scale, self.credit = 2.0 ** rules["initial_scale_power"], rules["hysteresis"]
        self.iteration, self.last_overflow = 0, -1

    def update(self, overflow):
        if overflow:
            if self.credit == 1:
                self.scale = max(self.scale / 2, self.rules["min_loss_scale"])
            else:
                self.credit -= 1
            self.last_overflow = self.iteration
        elif (self.iteration - self.last_overflow) % self.rules["loss_scale_window"] == 0:
            self.credit = self.rules["hysteresis"]
            self.scale *= 2
        self.iteration += 1


def train_mixed(config, seed, tokens, targets, dtype, rules=None, scales=None):
    """FSDP's mixed precision (param_dtype = dtype, reduce_dtype = fp32) as two ranks do it: the parameters are rounded
    from an fp32 master before each step, forward and backward run in dtype, the gradients of the ranks are added in
    fp32, clipping and AdamW work on the master. With `rules` the loss is scaled, a step whose gradient is not
    finite is skipped, and `scales` gets the scale of every step."""
    scaler = LossScale(rules) if rules else None
    master, model = make_model(config, seed), make_model(config, seed).to(dtype)
    shadow = dict(model.named_parameters())
    decay = [p for p in master.parameters() if p.ndim >= 2]
    others = [p for p in master.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": HYPER["weight_decay"]}, {"params": others, "weight_decay": 0.0}],
        lr=MIXED_LR, betas=(HYPER["beta1"], HYPER["beta2"]), eps=HYPER["eps"], foreach=False, fused=False,
    )
    losses, taken, count = [], 0, BATCH * MIXED_LENGTH
    for step in range(rules["steps"] if rules else MIXED_STEPS):
        total = 0.0
        optimizer.zero_grad()
        with torch.no_grad():
            for n, p in master.named_parameters():
                shadow[n].copy_(p)
        for half in (slice(0, BATCH // 2), slice(BATCH // 2, BATCH)):
            ids, want = tokens[step % MIXED_BATCHES, half], targets[step % MIXED_BATCHES, half]
            model.zero_grad()
            logits = model(input_ids=ids).logits
            loss = F.cross_entropy(logits.float().flatten(0, 1), want.flatten(), reduction="sum")
            # A scale is that of the mean loss, but for the tokens' number between one power of two and the next.
            factor = scaler.scale / 2.0 ** math.frexp(count)[1] if scaler else 1 / count
            (loss * factor).backward()
            total += loss.item() / count
            for n, p in master.named_parameters():
                gradient = shadow[n].grad.float()
                if scaler:
                    gradient /= factor * count
                p.grad = gradient if p.grad is None else p.grad + gradient
        norm = torch.nn.utils.clip_grad_norm_(master.parameters(), HYPER["clip"], foreach=False)
        losses.append(total)
        if scaler:
            scales.append(scaler.scale)
            scaler.update(not torch.isfinite(norm))
            if not torch.isfinite(norm):
                continue
        taken += 1
        rate = MIXED_LR * min(1.0, taken / HYPER["warmup"])
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return losses


def make_mixed(name, folder):
    config = MIXED[name]
    seed = sum(map(ord, name))
    tokens, targets = make_learnable(config.vocab_size, seed + 1000)
    initial = {n: p.detach().clone() for n, p in make_model(config, seed).named_parameters()}
    curves = {"loss/" + n: train_mixed(config, seed, tokens, targets, d)
              for n, d in (("fp32", torch.float32), ("bf16", torch.bfloat16))}
    for kind, rules in SCALING.items():
        scales = curves["scale/" + kind] = []
        curves["loss/" + kind] = train_mixed(config, seed, tokens, targets, torch.float16, rules, scales)
    print("%s: loss %.4f to %.4f" % (name, curves["loss/fp32"][0], curves["loss/fp32"][-1]))
    for half in ("bf16", "fp16"):
        apart = [abs(a - b) / b for a, b in zip(curves["loss/" + half], curves["loss/fp32"])]
        print("   %s is within %.2e of fp32, on average %.2e" % (half, max(apart), sum(apart) / len(apart)))
    print("   scales when it overflows:", " ".join("2^%g" % math.log2(s) for s in curves["scale/fp16_overflow"]))
    fields = {"batch": BATCH, "length": MIXED_LENGTH, "batches": MIXED_BATCHES}
    fields.update({k: v for k, v in HYPER.items() if k != "lr_min"})
    fields.update({"lr": MIXED_LR, "steps": MIXED_STEPS})
    for kind, rules in SCALING.items():
        fields.update({"%s_%s" % (kind, key): value for key, value in rules.items()})
    tensors = {"tokens": tokens.to(torch.int32), "targets": targets.to(torch.int32)}
    tensors.update({n: torch.tensor(v, dtype=torch.float64) for n, v in curves.items()})
    tensors.update({"init/" + n: t for n, t in initial.items()})
    write(os.path.join(folder, "%s.golden" % name), fields, tensors, {"config": config_text(config)})


def main():
    assert struct.pack("=i", 1) == struct.pack("<i", 1), "little endian only"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    print("torch", torch.__version__)
    for name in sys.argv[2:] or list(CONFIGS) + list(MIXED):
        (make if name in CONFIGS else make_mixed)(name, folder)


if __name__ == "__main__":
    main()

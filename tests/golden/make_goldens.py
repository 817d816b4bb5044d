#!/usr/bin/env python3
"""Writes the golden files of this folder: what PyTorch computes for small GPT-2 models, in fp32 on the CPU.

usage: make_goldens.py [FOLDER]    (default: where this script is; needs torch and transformers)

README.md describes the contents and the format. Each run is also made in fp64, to print how far fp32 is from it.
"""

import math
import os
import struct
import sys

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

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
# name: n_layer, n_head, n_embd, n_positions, vocab, sequence length, share of ignored targets
CONFIGS = {
    "a": (3, 5, 40, 37, 61, 37, 0.15),
    "b": (2, 2, 24, 19, 97, 13, 0.0),
    "c": (1, 3, 33, 29, 256, 29, 0.0),
}


def learning_rate(step):
    """Step counts from 1."""
    lr, low, warmup = HYPER["lr"], HYPER["lr_min"], HYPER["warmup"]
    if step <= warmup:
        return lr * step / warmup
    x = (step - warmup) / (HYPER["steps"] - warmup)
    return low + (lr - low) * 0.5 * (1 + math.cos(math.pi * x))


def make_model(name, seed):
    n_layer, n_head, n_embd, n_positions, vocab, _, _ = CONFIGS[name]
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab, n_positions=n_positions, n_embd=n_embd, n_layer=n_layer, n_head=n_head,
            activation_function="gelu_new", layer_norm_epsilon=1e-5, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            tie_word_embeddings=True, attn_implementation="eager", use_cache=False, bos_token_id=0, eos_token_id=0,
        )
    )
    assert model.lm_head.weight is model.transformer.wte.weight
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


def make_batches(name, seed):
    _, _, _, _, vocab, length, ignored = CONFIGS[name]
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
    return max(((part(n, values[n]) - part(n, e)).norm() / part(n, e).norm()).item() for n, e in exact.items())


def write(path, fields, tensors):
    codes = {torch.float32: "f32", torch.float64: "f64", torch.int32: "i32"}
    lines, blobs, offset = ["shardd golden 1"], [], 0
    lines += ["%s %s" % (key, repr(value)) for key, value in fields.items()]
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


def make(name, folder):
    n_layer, n_head, n_embd, n_positions, vocab, length, _ = CONFIGS[name]
    seed = ord(name)
    model = make_model(name, seed)
    tokens, targets = make_batches(name, seed + 1000)
    initial = {n: p.detach().clone() for n, p in model.named_parameters()}
    gradients, losses, norms, rates = train(model, tokens, targets)

    exact = make_model(name, seed).double()
    exact_gradients, exact_losses, _, _ = train(exact, tokens, targets)
    final = {n: p.detach() for n, p in model.named_parameters()}
    print("%s: %d parameters, loss %.4f to %.4f, norm %.2f to %.2f" % (
        name, sum(p.numel() for p in model.parameters()), losses[0], losses[-1], min(norms), max(norms)))
    print("   fp32 against fp64: gradients %.1e, losses %.1e, final parameters %.1e" % (
        furthest(gradients, exact_gradients), max(abs(a - b) / b for a, b in zip(losses, exact_losses)),
        furthest(final, {n: p.detach() for n, p in exact.named_parameters()})))

    fields = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd, "n_positions": n_positions, "vocab": vocab,
              "batch": BATCH, "length": length, "layer_norm_eps": 1e-5}
    fields.update(HYPER)
    tensors = {"tokens": tokens.to(torch.int32), "targets": targets.to(torch.int32)}
    tensors.update({"loss": torch.tensor(losses, dtype=torch.float64),
                    "grad_norm": torch.tensor(norms, dtype=torch.float64),
                    "lr": torch.tensor(rates, dtype=torch.float64)})
    for prefix, values in (("init", initial), ("grad", gradients), ("final", final)):
        tensors.update({"%s/%s" % (prefix, n): t for n, t in values.items()})
    write(os.path.join(folder, "gpt2_%s.golden" % name), fields, tensors)


def main():
    assert struct.pack("=i", 1) == struct.pack("<i", 1), "little endian only"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    print("torch", torch.__version__)
    for name in CONFIGS:
        make(name, folder)


if __name__ == "__main__":
    main()

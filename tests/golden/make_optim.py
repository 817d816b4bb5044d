#!/usr/bin/env python3
"""Writes optim.golden: a small GPT-2 trained 20 steps with every optimizer under every schedule, in fp32 on the CPU.

usage: make_optim.py [FOLDER]    (default: where this script is; needs torch and transformers)

Optimizers are those of torch.optim; Lion is written here from the pseudo-code of its paper (Chen et al. 2023, algorithm
2). Rates come from the schedules of transformers. README.md describes the contents.
"""

import os
import sys

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, optimization

from make_goldens import write

BATCH, LENGTH, STEPS, WARMUP, DECAY, VOCAB = 4, 15, 20, 4, 6, 61
CLIP = 1.0
LR_MIN_SHARE = 0.1
# name: optimizer, peak rate, weight decay, its own numbers
OPTIMIZERS = {
    "adamw": ("adamw", 3e-3, 0.1, {"betas": (0.9, 0.95), "eps": 1e-8}),
    "adam": ("adam", 3e-3, 0.01, {"betas": (0.9, 0.95), "eps": 1e-8}),
    "sgd_plain": ("sgd", 0.2, 0.01, {"momentum": 0.0}),
    "sgd_momentum": ("sgd", 0.05, 0.01, {"momentum": 0.9}),
    "sgd_nesterov": ("sgd", 0.05, 0.01, {"momentum": 0.9, "nesterov": True}),
    "lion": ("lion", 1e-3, 0.1, {"betas": (0.9, 0.99)}),
}
SCHEDULES = ["cosine", "linear", "constant", "wsd", "inverse_sqrt"]


class Lion(torch.optim.Optimizer):
    """Algorithm 2: c = b1 m + (1 - b1) g; p -= lr (sign(c) + wd p); m = b2 m + (1 - b2) g."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = b1 * m + (1 - b1) * p.grad
                p.sub_(group["lr"] * (torch.sign(c) + group["weight_decay"] * p))
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def rate_of(schedule):
    """Share of the peak by step, which counts from 1, as transformers gives it at that count."""
    dummy = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    make = {
        "cosine": lambda: optimization.get_cosine_with_min_lr_schedule_with_warmup(
            dummy, WARMUP, STEPS, min_lr_rate=LR_MIN_SHARE),
        "linear": lambda: optimization.get_polynomial_decay_schedule_with_warmup(
            dummy, WARMUP, STEPS, lr_end=LR_MIN_SHARE, power=1.0),
        "constant": lambda: optimization.get_constant_schedule_with_warmup(dummy, WARMUP),
        "wsd": lambda: optimization.get_wsd_schedule(
            dummy, WARMUP, DECAY, num_training_steps=STEPS, min_lr_ratio=LR_MIN_SHARE, decay_type="linear"),
        "inverse_sqrt": lambda: optimization.get_inverse_sqrt_schedule(dummy, WARMUP),
    }[schedule]
    share = make().lr_lambdas[0]
    # The one of wsd warms up from lr_min; here every schedule warms up from 0.
    return lambda step: step / WARMUP if step <= WARMUP else share(step)


def make_model():
    torch.manual_seed(5)
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_positions=17, n_embd=20, n_layer=2, n_head=2, activation_function="gelu_new",
        layer_norm_epsilon=1e-5, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager",
        use_cache=False, bos_token_id=0, eos_token_id=0))
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape)
            p.copy_(0.15 * noise if p.ndim >= 2 else 0.05 * noise if name.endswith("bias") else 1 + 0.1 * noise)
    return model


def make_optimizer(model, kind, lr, weight_decay, own):
    groups = [{"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": weight_decay},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    if kind == "lion":
        return Lion(groups, lr=lr, weight_decay=weight_decay, **own)
    make = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[kind]
    return make(groups, lr=lr, foreach=False, **own)


def train(name, schedule, tokens, targets, dtype=torch.float32):
    kind, lr, weight_decay, own = OPTIMIZERS[name]
    model = make_model().to(dtype)
    optimizer, rate = make_optimizer(model, kind, lr, weight_decay, own), rate_of(schedule)
    losses, rates = [], []
    for step in range(STEPS):
        logits = model(input_ids=tokens[step]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets[step].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=False)
        for group in optimizer.param_groups:
            group["lr"] = lr * rate(step + 1)
        optimizer.step()
        losses.append(loss.item())
        rates.append(lr * rate(step + 1))
    return losses, rates, {n: p.detach() for n, p in model.named_parameters()}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    generator = torch.Generator().manual_seed(77)
    ids = (VOCAB * torch.rand((STEPS, BATCH, LENGTH + 1), generator=generator) ** 1.7).to(torch.int64)
    tokens, targets = ids[:, :, :-1].contiguous(), ids[:, :, 1:].contiguous()
    fields = {"n_layer": 2, "n_head": 2, "n_embd": 20, "n_positions": 17, "vocab": VOCAB, "batch": BATCH,
              "length": LENGTH, "layer_norm_eps": 1e-5, "steps": STEPS, "warmup": WARMUP, "decay_steps": DECAY,
              "clip": CLIP, "lr_min_share": LR_MIN_SHARE}
    tensors = {"tokens": tokens.to(torch.int32), "targets": targets.to(torch.int32)}
    tensors.update({"init/" + n: p.detach() for n, p in make_model().named_parameters()})
    for name, (_, lr, weight_decay, own) in OPTIMIZERS.items():
        fields["lr_" + name] = lr
        fields["weight_decay_" + name] = weight_decay
        for schedule in SCHEDULES:
            losses, rates, final = train(name, schedule, tokens, targets)
            exact, _, _ = train(name, schedule, tokens, targets, torch.float64)
            print("%-12s %-12s loss %.4f to %.4f, fp32 against fp64 %.1e" % (
                name, schedule, losses[0], losses[-1], max(abs(a - b) / b for a, b in zip(losses, exact))))
            tensors["loss/%s/%s" % (name, schedule)] = torch.tensor(losses, dtype=torch.float64)
            tensors["lr/%s/%s" % (name, schedule)] = torch.tensor(rates, dtype=torch.float64)
            if schedule == "wsd":
                tensors.update({"final/%s/%s" % (name, n): p for n, p in final.items()})
    write(os.path.join(folder, "optim.golden"), fields, tensors)


if __name__ == "__main__":
    main()

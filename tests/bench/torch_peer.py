#!/usr/bin/env python3
"""The PyTorch side of the benchmark: trains GPT-2 shapes in eager mode, fp32, on the CPU, as fast as it can.

usage: torch_peer.py --shape NAME [--vocab N] [--threads 2] [--optimizer fused|foreach]
                     [--wait active|passive] [--steps N] [--repetitions N] [--serve]

Prints one JSON line for each repetition: shape, vocab, steps, tokens, seconds, tokens_per_s, loss. With --serve it
does what standard input says, a line each: "step N" (one repetition of N steps), "probe" (GFLOP/s of a fixed matrix
product, for the speed of the machine at this moment); it ends with the input.

A repetition is whole steps: forward, cross-entropy, backward, clipping, AdamW. The batch is made beforehand.
"""

import argparse
import json
import os
import sys
import time

# What the C libraries read at their start. Memory that was touched once is kept, in huge pages: otherwise page faults
# take a third of the time. Whether idle threads spin is a matter of the machine: see --wait.
_ENVIRONMENT = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:"
                      "glibc.malloc.trim_threshold=17179869184",
    "OMP_WAIT_POLICY": "passive" if "passive" in sys.argv else "active",
}
if any(os.environ.get(key) != value for key, value in _ENVIRONMENT.items()):
    os.environ.update(_ENVIRONMENT)
    os.execv(sys.executable, [sys.executable] + sys.argv)

import torch
import torch.nn as nn
import torch.nn.functional as F

# n_layer, n_head, width, context, vocabulary; batch, length
SHAPES = {
    "gpt2": ((12, 12, 768, 1024, 50257), (4, 64)),
    "gpt-byte-10m": ((6, 6, 384, 256, 256), (8, 256)),
    "gpt-byte-1m": ((4, 4, 128, 256, 256), (8, 256)),
}


class Block(nn.Module):
    def __init__(self, width, n_head):
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(batch, length, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, n_layer, n_head, width, context, vocab):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        logits = F.linear(self.ln_f(self.blocks(x)), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, shape, vocab, optimizer):
        dims, (batch, length) = SHAPES[shape]
        self.shape, self.vocab, self.tokens = shape, vocab, batch * length
        torch.manual_seed(1)
        self.model = Model(*dims[:-1], vocab)
        decay = [p for p in self.model.parameters() if p.ndim >= 2]
        others = [p for p in self.model.parameters() if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
            lr=3e-4, betas=(0.9, 0.95), fused=optimizer == "fused", foreach=optimizer == "foreach",
        )
        ids = torch.randint(0, dims[-1], (batch, length + 1))
        self.inputs, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def repetition(self, steps):
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.model(self.inputs, self.targets)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        seconds = time.perf_counter() - start
        return {"shape": self.shape, "vocab": self.vocab, "steps": steps, "tokens": steps * self.tokens,
                "seconds": seconds, "tokens_per_s": steps * self.tokens / seconds, "loss": loss.item()}


def probe():
    a = torch.ones(1024, 1024)
    torch.mm(a, a)
    start = time.perf_counter()
    for _ in range(12):
        torch.mm(a, a)
    return {"gflops": 12 * 2 * 1024**3 / (time.perf_counter() - start) / 1e9}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--vocab", type=int, help="padded vocabulary (default: the shape's own)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--optimizer", choices=("fused", "foreach"), default="fused")
    parser.add_argument("--wait", choices=("active", "passive"), default="active", help="what idle threads do")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    own = SHAPES[args.shape][0][-1]
    if args.vocab is not None and args.vocab < own:
        parser.error("--vocab %d is below the shape's %d" % (args.vocab, own))
    trainer = Trainer(args.shape, args.vocab or own, args.optimizer)
    trainer.repetition(2)  # allocates
    if not args.serve:
        for _ in range(args.repetitions):
            print(json.dumps(trainer.repetition(args.steps)), flush=True)
        return
    print(json.dumps({"ready": True, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words == ["probe"]:
            answer = probe()
        elif len(words) == 2 and words[0] == "step" and words[1].isdigit() and int(words[1]) > 0:
            answer = trainer.repetition(int(words[1]))
        else:
            sys.exit("torch_peer: unknown line: " + line.strip())
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The PyTorch side of the benchmark: trains GPT-2 and Llama shapes in eager mode on the CPU, as fast as it can.

usage: torch_peer.py --shape NAME [--mixed no|autocast|master] [--vocab N] [--threads 2] [--optimizer fused|foreach]
                     [--wait active|passive] [--steps N] [--repetitions N] [--serve]

--mixed: fp32 throughout; bf16 by autocast over fp32 parameters; or, as FSDP's mixed precision does it, a model in bf16
whose optimizer works on fp32 masters.

Prints one JSON line for each repetition: shape, vocab, steps, tokens, seconds, tokens_per_s, loss, cpu_ms_per_step. With --serve it
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

# n_layer, n_head, width, context, vocabulary; batch, length. Llama: n_layer, n_head, kv heads, width, ffn, vocabulary.
SHAPES = {
    "gpt2": ((12, 12, 768, 1024, 50257), (4, 64)),
    "gpt-byte-10m": ((6, 6, 384, 256, 256), (8, 256)),
    "gpt-byte-1m": ((4, 4, 128, 256, 256), (8, 256)),
    "smollm2-135m": ((30, 9, 3, 576, 1536, 49152), (2, 128)),
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


class LlamaBlock(nn.Module):
    def __init__(self, width, n_head, n_kv, ffn):
        super().__init__()
        self.n_head, self.n_kv = n_head, n_kv
        kv = width // n_head * n_kv
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.k, self.v = (nn.Linear(width, n, bias=False) for n in (width, kv, kv))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, ffn, bias=False), nn.Linear(width, ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)

    @staticmethod
    def turn(x, cos, sin):
        low, high = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-high, low), dim=-1) * sin

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        h = self.norm_1(x)
        q = self.q(h).view(batch, length, self.n_head, -1).transpose(1, 2)
        k, v = (f(h).view(batch, length, self.n_kv, -1).transpose(1, 2) for f in (self.k, self.v))
        y = F.scaled_dot_product_attention(self.turn(q, cos, sin), self.turn(k, cos, sin), v, is_causal=True,
                                           enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        h = self.norm_2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, n_layer, n_head, n_kv, width, ffn, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList([LlamaBlock(width, n_head, n_kv, ffn) for _ in range(n_layer)])
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.inv_freq = 1e5 ** (-torch.arange(0, width // n_head, 2) / (width // n_head))
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        angles = torch.outer(torch.arange(tokens.shape[1]), self.inv_freq).repeat(1, 2)
        cos, sin = angles.cos().to(self.wte.weight.dtype), angles.sin().to(self.wte.weight.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, shape, vocab, optimizer, mixed):
        dims, (batch, length) = SHAPES[shape]
        self.shape, self.vocab, self.mixed, self.tokens = shape, vocab, mixed, batch * length
        torch.manual_seed(1)
        self.model = (Model if len(dims) == 5 else Llama)(*dims[:-1], vocab)
        self.masters = list(self.model.parameters())
        if mixed == "master":
            self.masters = [nn.Parameter(p.detach().clone()) for p in self.masters]
            for master in self.masters:
                master.grad = torch.empty_like(master)
            self.model.bfloat16()
        decay = [p for p in self.masters if p.ndim >= 2]
        others = [p for p in self.masters if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
            lr=3e-4, betas=(0.9, 0.95), fused=optimizer == "fused", foreach=optimizer == "foreach",
        )
        ids = torch.randint(0, dims[-1], (batch, length + 1))
        self.inputs, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def repetition(self, steps):
        start, cpu = time.perf_counter(), time.process_time()
        parameters = list(self.model.parameters())
        for _ in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.mixed == "autocast"):
                loss = self.model(self.inputs, self.targets)
            self.model.zero_grad(set_to_none=True)
            loss.backward()
            if self.mixed == "master":
                torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in parameters])
            nn.utils.clip_grad_norm_(self.masters, 1.0)
            self.optimizer.step()
            if self.mixed == "master":
                with torch.no_grad():
                    torch._foreach_copy_(parameters, self.masters)
        seconds = time.perf_counter() - start
        return {"shape": self.shape, "vocab": self.vocab, "steps": steps, "tokens": steps * self.tokens,
                "seconds": seconds, "tokens_per_s": steps * self.tokens / seconds, "loss": loss.item(),
                "cpu_ms_per_step": (time.process_time() - cpu) / steps * 1e3}


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
    parser.add_argument("--mixed", choices=("no", "autocast", "master"), default="no", help="bf16, and how")
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
    trainer = Trainer(args.shape, args.vocab or own, args.optimizer, args.mixed)
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

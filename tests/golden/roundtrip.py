#!/usr/bin/env python3
"""Checkpoints of transformers through the daemon and back: save_pretrained, import, export, from_pretrained.

What is loaded from an export with no step between must be the model that was saved: every tensor to the byte, and the same logits. Every
architecture, tied and untied, in fp32, bf16 and fp16, as one file and in shards; then each exported as the other types, compared with what
transformers makes of the original in that type; then GPT-2's base model, whose names lack their prefix, and an export of random values.

Needs torch and transformers, and root for nothing. usage: roundtrip.py --bin DIR [--keep]   (DIR: with shardd and shardctl)
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import torch
import transformers

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def configs():
    common = dict(vocab_size=61, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=1)
    gpt2 = dict(vocab_size=61, n_positions=64, n_embd=20, n_layer=2, n_head=5, resid_pdrop=0.0, embd_pdrop=0.0,
                attn_pdrop=0.0, bos_token_id=0, eos_token_id=1)
    llama3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    return {
        "gpt2": transformers.GPT2Config(**gpt2),
        "gpt2-untied": transformers.GPT2Config(**gpt2, tie_word_embeddings=False),
        "llama": transformers.LlamaConfig(**common),
        "llama3": transformers.LlamaConfig(**common, rope_parameters=llama3),
        "smollm2": transformers.LlamaConfig(**common, tie_word_embeddings=True),
        "mistral": transformers.MistralConfig(**common, sliding_window=7),
        "qwen2": transformers.Qwen2Config(**common, tie_word_embeddings=True),
        "qwen2-untied": transformers.Qwen2Config(**common),
        "qwen3": transformers.Qwen3Config(**common, head_dim=8, tie_word_embeddings=True),
    }


class Daemon:
    def __init__(self, binaries, directory):
        self.ctl_path = os.path.join(binaries, "shardctl")
        self.socket = os.path.join(directory, "s")
        state = os.path.join(directory, "state")
        os.mkdir(state, 0o700)
        self.log = open(os.path.join(directory, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [os.path.join(binaries, "shardd"), "--config", "/dev/null", "--socket", self.socket, "--state-dir", state,
             "--data-root", directory, "--ranks", "3", "--threads-per-rank", "1", "--memory-per-rank", "4G"],
            stdout=self.log, stderr=self.log)
        for _ in range(200):
            if os.path.exists(self.socket):
                return
            time.sleep(0.05)
        raise SystemExit("the daemon did not start")

    def ctl(self, *args):
        done = subprocess.run([self.ctl_path, "--socket", self.socket, "--json", *map(str, args)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit("shardctl %s: %s" % (" ".join(map(str, args)), done.stderr))
        return [json.loads(line) for line in done.stdout.splitlines()]

    def start(self, name, model, *flags):
        self.ctl("submit", "--detach", "--name", name, "--model", model, "--seq-len", 32, "--micro-batch", 1, *flags)
        while True:
            job = [job for job in self.ctl("jobs") if job["name"] == name][0]
            if job["state"] == "failed":
                raise SystemExit("%s: %s" % (name, job["reason"]))
            if job["state"] == "running":
                return
            time.sleep(0.02)

    def export(self, name, path, *flags):
        return self.ctl("export", name, "--output", path, *flags)[0]

    def end(self, name):
        self.ctl("cancel", name)
        self.ctl("delete", name)


def logits(model):
    ids = torch.arange(2 * 29).reshape(2, 29) % 61
    with torch.no_grad():
        return model(ids).logits


def load(path, kind=transformers.AutoModelForCausalLM, dtype="auto"):
    model, info = kind.from_pretrained(path, dtype=dtype, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            raise SystemExit("%s: %s: %r" % (path, what, info[what]))
    return model.eval()


def same(what, got, wanted):
    ours, theirs = got.state_dict(), wanted.state_dict()
    if set(ours) != set(theirs):
        raise SystemExit("%s: tensors differ: %r" % (what, set(ours) ^ set(theirs)))
    for name, tensor in theirs.items():
        if ours[name].dtype != tensor.dtype or not torch.equal(ours[name], tensor):
            raise SystemExit("%s: tensor %s differs" % (what, name))


def check(what, path, wanted):
    got = load(path)
    same(what, got, wanted)
    if not torch.equal(logits(got), logits(wanted)):
        raise SystemExit("%s: logits differ" % what)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    directory = tempfile.mkdtemp(prefix="shd-roundtrip-")
    daemon = Daemon(args.bin, directory)
    done = 0

    def path(*parts):
        return os.path.join(directory, "-".join(parts))

    try:
        for number, (kind, config) in enumerate(configs().items()):
            for word, dtype in DTYPES.items():
                for shards in (False, True):
                    torch.manual_seed(number)
                    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
                    with torch.no_grad():  # norms and biases are constants at first
                        for parameter in model.parameters():
                            parameter.add_(0.1 * torch.randn_like(parameter))
                    name = "%s-%s-%s" % (kind, word, "shards" if shards else "one")
                    source = path(name)
                    model.save_pretrained(source, max_shard_size=9000 if shards else "5GB")
                    model = load(source)  # its rotary frequencies were never cast
                    flags = ("--max-shard-size", "7000") if shards else ()
                    daemon.start(name, source, "--ranks", 1 + number % 3, "--dtype", word)
                    daemon.export(name, path(name, "out"), *flags)
                    check(name, path(name, "out"), model)
                    done += 1
                    for other, other_dtype in DTYPES.items():
                        if other != word and not shards:
                            daemon.export(name, path(name, other), "--dtype", other)
                            check("%s as %s" % (name, other), path(name, other), load(source, dtype=other_dtype))
                            done += 1
                    daemon.end(name)
        base = transformers.GPT2Model(configs()["gpt2"]).eval()
        base.save_pretrained(path("base"))
        with open(os.path.join(path("base"), "config.json"), "r+", encoding="utf-8") as file:
            config = json.load(file)  # as GPT-2 was published: the whole model by its name, the base's names inside
            config["architectures"] = ["GPT2LMHeadModel"]
            file.seek(0)
            json.dump(config, file)
            file.truncate()
        daemon.start("base", path("base"))
        daemon.export("base", path("base-out"))
        same("base", load(path("base-out"), transformers.GPT2Model), base)
        done += 1
        for preset in ("gpt-byte-1m", "smollm2-135m"):
            daemon.start(preset, preset, "--ranks", 2)
            daemon.export(preset, path(preset), "--max-shard-size", "100MB")
            load(path(preset))
            daemon.end(preset)
            done += 1
    finally:
        daemon.process.terminate()
        status = daemon.process.wait(30)
        if not args.keep:
            shutil.rmtree(directory)
    print("%d round trips, every tensor and logit the same; transformers %s, torch %s" %
          (done, transformers.__version__, torch.__version__))
    return status


if __name__ == "__main__":
    sys.exit(main())

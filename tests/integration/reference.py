#!/usr/bin/env python3
"""Writes reference.json: what transformers makes of the checkpoints of checkpoint.py. Needs torch and transformers.

Losses are those of windows of LENGTH tokens, each predicting the tokens after its first; texts are greedy. Losses of
files are those of the usual sliding windows (LENGTH targets, STRIDE of them new), of a text and of documents apart.
"""

import json
import os
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import checkpoint

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = ("In the beginning there was a word, and the word was \"shard\": one of many.\n\n"
        "  Then there were tabs\tand naïve café letters, 12345 numbers, emoji 🙂🙂, and the end.\n" * 3)
PROMPT = "And then the"
LENGTH = 32
MADE = 24
PENALTY = 1.4
STRIDES = (LENGTH, 20, 7, 1)
DOCUMENTS = [{"text": TEXT[:150]}, {"text": "word"}, {"prompt": TEXT[40:80], "completion": TEXT[80:300]}]


def windows(ids):
    for at in range(0, len(ids) - 1, LENGTH):
        yield ids[at:at + LENGTH + 1]


def losses(model, ids):
    total, count, logprobs = 0.0, 0, []
    for window in windows(ids):
        row = torch.tensor([window[:-1]])
        logits = model(row).logits[0].double()
        found = torch.log_softmax(logits, -1)[range(len(window) - 1), window[1:]]
        logprobs += found.tolist()
        total -= float(found.sum())
        count += len(window) - 1
    return total / count, logprobs


def sliding(model, ids, stride, masked=0):
    """Sum and number, as transformers' documentation computes the perplexity of models of a fixed length: labels that an
    earlier window has counted are -100, and so are those of the first `masked` tokens."""
    total, count, end_before = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + LENGTH + 1, len(ids))
        row = torch.tensor([ids[begin:end]])
        labels = row.clone()
        fresh = end - max(end_before, 1)
        labels[:, :-fresh] = -100
        labels[:, :max(0, masked - begin)] = -100
        found = int((labels[:, 1:] != -100).sum())
        if found:
            logits = model(row).logits.double()
            total += float(torch.nn.functional.cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum"))
        count += found
        end_before = end
        if end == len(ids):
            break
    return total, count


def file_losses(model, tokenizer):
    """As files are tokenized: the end-of-text token stands behind each document."""
    def tokens(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    before = tokenizer("").input_ids
    after = [tokenizer.eos_token_id]
    out = {"text": {}, "documents": {}}
    for stride in STRIDES:
        total, count = sliding(model, before + tokens(TEXT) + after, stride)
        out["text"][stride] = [total / count, count]
        total = count = 0
        for document in DOCUMENTS:
            prompt = before + (tokens(document["prompt"]) if "prompt" in document else [])
            rest = tokens(document.get("completion", document.get("text"))) + after
            found = sliding(model, prompt + rest, stride, len(prompt) if "prompt" in document else 0)
            total, count = total + found[0], count + found[1]
        out["documents"][stride] = [total / count, count]
    return out


def greedy(model, ids, penalty):
    """Token by token; no two likeliest may be so near that rounding could swap them."""
    ids, made = list(ids), []
    for _ in range(MADE):
        logits = model(torch.tensor([ids])).logits[0, -1]
        for seen in set(ids):
            logits[seen] = logits[seen] * penalty if logits[seen] < 0 else logits[seen] / penalty
        best = torch.topk(logits, 2)
        assert best.values[0] - best.values[1] > 2e-4, best
        made.append(int(best.indices[0]))
        ids.append(made[-1])
    return made


def main():
    out = {"text": TEXT, "prompt": PROMPT, "length": LENGTH, "penalty": PENALTY, "documents": DOCUMENTS, "models": {}}
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        for name, config in (("llama", checkpoint.llama_config()), ("gpt2", checkpoint.gpt2_config())):
            directory = os.path.join(scratch, name)
            checkpoint.write(directory, config)
            model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
            tokenizer = AutoTokenizer.from_pretrained(directory)
            ids = tokenizer(TEXT).input_ids
            prompt = tokenizer(PROMPT).input_ids
            loss, logprobs = losses(model, ids)
            made = greedy(model, prompt, 1.0)
            out["ids"], out["prompt_ids"] = ids, prompt
            out["models"][name] = {
                "loss": loss, "files": file_losses(model, tokenizer), "logprobs": logprobs, "greedy": made, "penalized": greedy(model, prompt, PENALTY),
                "greedy_text": tokenizer.decode(prompt + made, clean_up_tokenization_spaces=False)[len(PROMPT):],
            }
    with open(os.path.join(HERE, "reference.json"), "w", encoding="ascii") as file:
        file.write(json.dumps(out, indent=None).replace("], ", "],\n") + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes sampling_golden.json: what the logits processors of transformers make of given logits.

The order is that of its generate(): repetition penalty, temperature, top-k, top-p. Needs torch and transformers.
"""

import json
import os

import torch
from transformers import (
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

CASES = [
    # temperature, top_k, top_p, repetition_penalty
    (1.0, 0, 1.0, 1.0),
    (0.7, 0, 1.0, 1.0),
    (1.5, 7, 1.0, 1.0),
    (1.0, 0, 0.9, 1.0),
    (0.8, 0, 0.5, 1.0),
    (1.0, 11, 0.8, 1.0),
    (1.0, 0, 1.0, 1.3),
    (0.9, 5, 0.95, 1.1),
    (1.2, 0, 0.6, 2.0),
    (1.0, 20, 1.0, 0.5),
    (0.3, 3, 0.3, 1.7),
]


def main():
    torch.manual_seed(3)
    out = []
    for number, (temperature, top_k, top_p, penalty) in enumerate(CASES):
        vocab = 23 + 6 * number
        logits = torch.randn(1, vocab) * 3
        context = torch.randint(0, vocab, (1, 9))
        penalized = RepetitionPenaltyLogitsProcessor(penalty)(context, logits.clone())
        scores = TemperatureLogitsWarper(temperature)(context, penalized.clone())
        if top_k:
            scores = TopKLogitsWarper(top_k)(context, scores)
        if top_p < 1:
            scores = TopPLogitsWarper(top_p)(context, scores)
        out.append({
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": penalty,
            "logits": logits[0].tolist(), "context": context[0].tolist(),
            "probabilities": torch.softmax(scores, -1)[0].tolist(), "greedy": int(penalized.argmax()),
        })
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sampling_golden.json")
    with open(path, "w", encoding="ascii") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in out) + "\n]\n")


if __name__ == "__main__":
    main()

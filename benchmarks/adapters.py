"""Which learning rates suit LoRA adapters: MiniLM on SST-2's training phrases, some to train on.

    python benchmarks/adapters.py 3,8 auto,0.3,1        ε, rates η (auto: the rule's)

A line of JSON for each run: 2,000 phrases to train on, 1,000 others to judge on, both spread over
the training part. No held-out sentence is looked at. A run takes two to three minutes of one core.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from dpdt import data, models, train
from dpdt.models import pretrained
from dpdt.models.settings import ModelSettings

OWN, HELD, EPOCHS, BATCH = 2_000, 1_000, 3, 200
MODEL = ModelSettings(name="minilm", trained="lora", lora_rank=4, lora_alpha=8, length=16)


def part(number: int, first: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """So many phrases at equal distances, and their labels."""
    texts, labels = data.load("sst2").train
    chosen = [first + i * len(texts) // number for i in range(number)]
    return pretrained.encode(MODEL, [texts[i] for i in chosen]), labels[chosen]


if __name__ == "__main__":
    torch.set_num_threads(1)
    _, epsilons, rates = sys.argv
    own, held = part(OWN, 0), part(HELD, 16)  # no phrase is in both
    for epsilon in map(float, epsilons.split(",")):
        for rate in rates.split(","):
            model = models.build(MODEL, data.facts("sst2"), 0)
            start = time.process_time()
            result = train(
                model, own, test=held, epsilon=epsilon, epochs=EPOCHS, batch_size=BATCH,
                lr=rate if rate == "auto" else float(rate),
            )  # fmt: skip
            row = {
                "epsilon": epsilon,
                "lr": round(result.ledger.runs[0].setting.lr, 3),
                "accuracy": round(result.history[-1]["accuracy"], 4),
                "cpu_seconds": round(time.process_time() - start, 1),
            }
            print(json.dumps(row), flush=True)

"""Which learning rates and which noise suit LoRA adapters: MiniLM on SST-2's training phrases.

    python benchmarks/adapters.py 3,8 auto,0.3,1        ε, rates η (auto: the rule's)
    python benchmarks/adapters.py 8 auto --batch 50 --noise independent,correlated --seeds 2

A line of JSON for each run: 2,000 phrases to train on, 1,000 others to judge on, both spread over
the training part. No held-out sentence is looked at. A run takes two to three minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product

import torch

from dpdt import data, models, train
from dpdt.models import pretrained
from dpdt.models.settings import ModelSettings

OWN, HELD, EPOCHS = 2_000, 1_000, 3
MODEL = ModelSettings(name="minilm", trained="lora", lora_rank=4, lora_alpha=8, length=16)
NOISE = {
    "independent": {},
    "correlated": {"sampling": "cyclic-poisson", "noise_bands": "auto"},
}


def part(number: int, first: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """So many phrases at equal distances, and their labels."""
    texts, labels = data.load("sst2").train
    chosen = [first + i * len(texts) // number for i in range(number)]
    return pretrained.encode(MODEL, [texts[i] for i in chosen]), labels[chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("epsilons")
    parser.add_argument("rates")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--noise", default="independent")
    parser.add_argument("--seeds", type=int, default=1, help="that models start from; default 1")
    given = parser.parse_args()
    torch.set_num_threads(1)
    own, held = part(OWN, 0), part(HELD, 16)  # no phrase is in both
    named = (map(float, given.epsilons.split(",")), given.rates.split(","), given.noise.split(","))
    for epsilon, rate, noise, seed in product(*named, range(given.seeds)):
        model = models.build(MODEL, data.facts("sst2"), seed)
        start = time.process_time()
        result = train(
            model, own, test=held, epsilon=epsilon, epochs=EPOCHS, batch_size=given.batch,
            lr=rate if rate == "auto" else float(rate), **NOISE[noise],
        )  # fmt: skip
        row = {
            "epsilon": epsilon,
            "noise": noise,
            "seed": seed,
            "bands": len(result.ledger.header.coefficients),
            "lr": round(result.ledger.runs[0].setting.lr, 3),
            "accuracy": round(result.history[-1]["accuracy"], 4),
            "cpu_seconds": round(time.process_time() - start, 1),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

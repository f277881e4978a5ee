"""How time and memory of a step grow, as ratios to plain SGD on the same model and batch.

One quantity changes at a time: parameters, batch, sequence length, auxiliaries K. Both steps run in
one process and take turns.

    python benchmarks/growth.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from step import CASES, Case, images, measure, minilm, texts, weigh

from dpdt.models.networks import mlp

OUT = Path(__file__).parent / "out" / "growth.json"


def wide(width: int) -> Case:
    return Case(f"mlp 784-{width}-10", lambda: mlp(784, (width,), 10), images(784), 512)


def long(tokens: int) -> Case:
    return Case(f"minilm + lora 16, {tokens} tokens", minilm, lambda n: texts(n, tokens), 16)


SERIES: dict[str, list[tuple[int, Case]]] = {
    "parameters": [(795 * w + 10, wide(w)) for w in (64, 256, 1024)],
    "batch": [(n, replace(CASES["cnn"], batch=n)) for n in (64, 256, 1024)],
    "tokens": [(t, long(t)) for t in (16, 64, 256)],
    "auxiliaries": [(k, replace(CASES["resnet-40"], auxiliaries=k)) for k in (4, 20, 60, 240)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, cases in SERIES.items():
        found[name] = [
            {name: value, **measure(case, options.rounds, False)} for value, case in cases
        ]
    for name, cases in SERIES.items():  # memory after all times, as in step.py
        for (_, case), result in zip(cases, found[name], strict=True):
            weigh(case, False, result)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

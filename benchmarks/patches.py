"""How features of images compare under a head trained by the rule, on training images alone.

    python benchmarks/patches.py mnist 15000 0,1,2 scatter patches patches,patch=8,grid=4

Data set, how many training images are trained on at ε = 3, seeds, and variants: a model with keys
of [model]. `contrast` and `whitening` are constants of `patches`, which no run can set. 1,000 other
training images are public, and others judge, two thirds as many as are trained on. With `length=ℓ`
the head sees no public inputs, and takes its own to be so long; with 0 it knows no length. A line
of JSON for each run, in benchmarks/out/patches.jsonl as well. Runs that are there are left out. No
test image is looked at.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpdt import data, models, train
from dpdt.data import Facts
from dpdt.models import frozen, patches
from dpdt.models.metrics import accuracy
from dpdt.models.settings import ModelSettings

OUT = Path(__file__).parent / "out" / "patches.jsonl"
PUBLIC = 1_000
EPOCHS, RATE, EPSILON = 40, 0.05, 3.0  # RATE: of the examples, in a mini-batch
CONTRAST, WHITENING = patches.CONTRAST, patches.WHITENING  # the package's own


def keys_of(variant: str) -> tuple[str, dict[str, Any]]:
    """A model, and what is given of it."""
    kind, *given = variant.split(",")
    return kind, {key: json.loads(value) for key, value in (g.split("=") for g in given)}


def features(name: str, examples: int, variant: str) -> tuple[Tensor, Tensor]:
    """Of the images that are trained on, of those that judge, and of the public ones, in a row."""
    kind, keys = keys_of(variant)
    keys.pop("length", None)
    patches.CONTRAST = keys.pop("contrast", CONTRAST)
    patches.WHITENING = keys.pop("whitening", WHITENING)
    settings = ModelSettings(name=kind, mirror=keys.pop("mirror", False), **keys)
    x, y = data.load(name).train
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    order = order[: examples + examples * 2 // 3 + PUBLIC]
    x, y = x[order], y[order]
    facts = Facts(examples=examples, shape=tuple(x.shape[1:]), classes=10)
    model: Any = models.build(settings, facts, 0)
    if kind == "patches":
        model.features.learn_(x[-PUBLIC:])
    return frozen.features_once(model, settings, (x, y))


def run(x: Tensor, y: Tensor, examples: int, seed: int, length: float | None) -> float:
    own, held = slice(examples), slice(examples, -PUBLIC)
    torch.manual_seed(seed)
    model = nn.Linear(x.shape[1], 10)
    if length:
        model.input_length = length  # type: ignore[assignment]
    public = x[-PUBLIC:] if length is None else None
    train(
        model, (x[own], y[own]), public=public, epsilon=EPSILON, epochs=EPOCHS,
        batch_size=round(RATE * examples), seed=seed,
    )  # fmt: skip
    found = accuracy(model, (x[held], y[held]))
    assert found is not None
    return round(found, 4)


if __name__ == "__main__":
    torch.set_num_threads(1)
    _, name, number, seeds, *variants = sys.argv
    examples = int(number)
    OUT.parent.mkdir(exist_ok=True)
    done = [json.loads(line) for line in OUT.read_text().splitlines()] if OUT.exists() else []
    there = {(row["data"], row["examples"], row["variant"], row["seed"]) for row in done}
    for variant in variants:
        todo = [s for s in map(int, seeds.split(",")) if (name, examples, variant, s) not in there]
        if not todo:
            continue
        x, y = features(name, examples, variant)
        length = keys_of(variant)[1].get("length")
        for seed in todo:
            row = {"data": name, "examples": examples, "variant": variant, "seed": seed}
            row |= {"features": x.shape[1], "accuracy": run(x, y, examples, seed, length)}
            with OUT.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)

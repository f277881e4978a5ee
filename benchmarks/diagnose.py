"""Time of a diagnosed step, as a ratio to one that is not, on the same model and batch.

Both engines run in one process and take turns, so that whatever else the machine does hits them
alike. Each round gives one ratio; the median over rounds is reported.

    python benchmarks/diagnose.py [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import Decoupled
from dpdt.algorithm.preconditioner import Preconditioner
from dpdt.algorithm.recipe import Recipe
from dpdt.models.loss import default_loss
from dpdt.models.networks import ResNet18


def ratio(
    make: Callable[[], nn.Module], data: Any, size: int, memory: str, name: str, rounds: int
) -> float:
    """`size` examples for each auxiliary, `name` for the preconditioner."""
    number = len(data[0]) // size
    recipe = Recipe(
        auxiliaries=number,
        clip=(1.0,),
        noise=(0.1,),
        lr=0.05,
        memory=memory,
        preconditioner=Preconditioner(name=name, decay=0.99, floor=1e-3),
    )
    engines = [
        Decoupled(
            make(),
            default_loss,
            recipe,
            granularity="model",
            expected=size,
            diagnose=diagnose,
        )
        for diagnose in (False, True)
    ]
    ratios = []
    for step in range(rounds + 1):
        seconds = []
        for engine in engines:
            batch = Batch(step=step, epoch=0, data=data, sizes=(size,) * number)
            began = time.perf_counter()
            engine.step(batch, recipe.at(0))
            seconds.append(time.perf_counter() - began)
        ratios.append(seconds[1] / seconds[0])
    return statistics.median(ratios[1:])  # the first step finds out how to compute


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    flat = torch.randn(1000, 784), torch.randint(0, 10, (1000,))
    some = flat[0][:240], flat[1][:240]
    images = torch.randn(240, 3, 32, 32), some[1]

    def small() -> nn.Module:
        return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def resnet() -> nn.Module:
        return ResNet18(3, 10, width=0.25)

    cases: dict[str, tuple[Any, ...]] = {
        "ResNet-18 at a quarter of its width, K = 10": (resnet, images, 24, "auxiliary", "rmsprop"),
        "the same, K = 40": (resnet, images, 6, "auxiliary", "rmsprop"),
        "the same, K = 40, memory shared": (resnet, images, 6, "shared", "rmsprop"),
        "two layers, K = 40": (small, some, 6, "auxiliary", "rmsprop"),
        "two layers, single examples, memory shared": (small, some, 1, "shared", "identity"),
        "one linear layer, single examples": (
            lambda: nn.Linear(784, 10), flat, 1, "shared", "identity",
        ),
    }  # fmt: skip
    for name, case in cases.items():
        print(json.dumps({"case": name, "ratio": round(ratio(*case, rounds), 1)}), flush=True)


if __name__ == "__main__":
    main()

"""When correlated noise pays: its noise in the model, against independent noise at the same ε.

    python benchmarks/bands.py
    python benchmarks/bands.py --split FILE

The preset cifar10-scatter (50,000 examples, δ = 1e-5, adding or removing one) with other
mini-batches, epochs and ε: the number of bands that `noise_bands = "auto"` takes with sampling
"cyclic-poisson", and what is left of the noise in the model that leaves. Less is better. All of
this is decided before training, so it depends on no data, and needs none.

With --split the training part of Fashion-MNIST is split into an .npz: 45,000 images to train on and
15,000 to judge by, so that nothing is chosen on its test images (docs/noise.md).
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

from dpdt import config, data
from dpdt.bands import error
from dpdt.methods.plan import Plan

REGIMES = ((500, 10), (500, 40), (2500, 40), (10_000, 40))
EPSILONS = (1.0, 3.0, 8.0)


def planned(batch: int, epochs: int, epsilon: float, bands: str) -> Plan:
    told = {
        "train.batch_size": batch,
        "train.epochs": epochs,
        "privacy.epsilon": epsilon,
        "method.sampling": '"cyclic-poisson"',
        "method.noise_bands": bands,
    }
    overrides = tuple(f"{key}={value}" for key, value in told.items())
    return config.plan_of(config.load("cifar10-scatter", overrides))


def spread(plan: Plan) -> float:
    """The noise of the model, in units that both plans share."""
    assert plan.recipe is not None
    return plan.recipe.noise[0] * error(plan.header.coefficients, plan.steps, plan.smoothing)


def split(path: Path) -> None:
    """Write the training part of Fashion-MNIST as a data set of its own."""
    x, y = data.load("fashion-mnist").train
    order = np.random.default_rng(17).permutation(len(y))
    pixels = ((x[:, 0] + 1.0) * 127.5).round().byte().numpy()[order]
    labels = y.numpy()[order]
    train, test = slice(0, 45_000), slice(45_000, None)
    np.savez(
        path, x_train=pixels[train], y_train=labels[train], x_test=pixels[test],
        y_test=labels[test], classes=10,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--split", type=Path, metavar="FILE")
    if (path := parser.parse_args().split) is not None:
        split(path)
        return
    warnings.simplefilter("ignore")
    print("| batch | epochs |" + "".join(f" ε = {epsilon:g} |" for epsilon in EPSILONS))
    print("|---|---|" + "---|" * len(EPSILONS))
    for batch, epochs in REGIMES:
        cells = []
        for epsilon in EPSILONS:
            best = planned(batch, epochs, epsilon, '"auto"')
            left = spread(best) / spread(planned(batch, epochs, epsilon, "1"))
            cells.append(f"{left:.2f} ({best.training.method.noise_bands} bands)")
        print(f"| {batch:,} | {epochs} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

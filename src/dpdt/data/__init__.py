"""Data sets by name. The facts about each are plain numbers, so that accounting needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpdt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is public about a data set."""

    examples: int  # in the training part
    shape: tuple[int, ...]
    classes: int


FACTS = {
    "digits": Facts(examples=1437, shape=(64,), classes=10),
    "cifar10": Facts(examples=50_000, shape=(3, 32, 32), classes=10),
    "cifar100": Facts(examples=50_000, shape=(3, 32, 32), classes=100),
    "imagenet100": Facts(examples=126_689, shape=(3, 224, 224), classes=100),
    "sst2": Facts(examples=67_349, shape=(128,), classes=2),
}


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A training and a test part, each (inputs, labels)."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    users: list[Any] | None = None


def facts(name: str) -> Facts:
    if name not in FACTS:
        raise InputError(f"data.name: must be one of {', '.join(FACTS)}, found {name!r}")
    return FACTS[name]


def load(name: str) -> Examples:
    """Read a data set. Inputs are scaled by public constants, never by statistics of the data."""
    facts(name)
    if name != "digits":
        raise InputError(f"data.name: {name!r} is known to accounting only; it has no reader yet")
    import torch
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = torch.randperm(len(bunch.data), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(bunch.data, dtype=torch.float32)[order] / 16.0  # pixels are 0 … 16
    y = torch.tensor(bunch.target)[order]
    n = FACTS[name].examples
    return Examples(train=(x[:n], y[:n]), test=(x[n:], y[n:]))

"""The two scales of a reproduction, and how its runs are described.

full    the paper's networks, data and lengths: days on a large machine
small   a network of some thousand parameters on scikit-learn's digits, with the paper's K,
        clip, noise and schedules: minutes on two cores, without any data to fetch
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpdt import config
from dpdt.config import Config
from dpdt.methods.dpdt import Dpdt
from dpdt.training.grid import Cell

# The readings of the paper's σ, as factors on the noise of the presets. These read σ as Langevin's
# parameter, σ·√(2/η̂), where η̂ is 0.99/10, that of the end. The others are the noise itself, σ; the
# σ·√(2η̂) of the algorithm's own line; and Langevin's parameter with the η̂ of each step, which is
# 0.99/0.1 at the start. docs/readings.md has more.
STEP_SIZE = 0.99 / 10.0
FOLLOWS = "noise_follows_step"
NOISES = {
    "without_noise": 0.0,
    "noise_as_deviation": math.sqrt(STEP_SIZE / 2.0),
    "noise_literal": STEP_SIZE,
    FOLLOWS: math.sqrt(0.1 / 10.0),
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A data set of the paper, and the preset that stands for it."""

    paper: str  # its name in paper.toml
    title: str
    source: str
    attacks: int = 1  # evaluations of membership inference on each run


@dataclass(frozen=True, kw_only=True)
class Scale:
    name: str
    columns: tuple[Column, ...]
    seeds: int
    auxiliaries: tuple[int, ...]  # the values of K and B in Figure 3b, which are ours
    batches: tuple[int, ...]


SCALES = {
    "small": Scale(
        name="small",
        columns=(Column(paper="cifar10", title="digits for CIFAR-10", source="paper-small"),),
        seeds=3,
        auxiliaries=(10, 20, 40),
        batches=(140, 280, 700),
    ),
    "full": Scale(
        name="full",
        columns=(
            Column(paper="cifar10", title="CIFAR-10", source="cifar10", attacks=3),
            Column(paper="cifar100", title="CIFAR-100", source="cifar100", attacks=5),
            Column(paper="imagenet100", title="ImageNet-100", source="imagenet100"),
            Column(paper="sst2", title="SST-2", source="sst2"),
        ),
        seeds=1,
        auxiliaries=(10, 20, 40, 80),
        batches=(1250, 2500, 5000),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a user asked for: a scale, changes to every configuration, and how many seeds."""

    scale: Scale
    sets: tuple[str, ...] = ()
    seeds: int | None = None

    @property
    def numbers(self) -> range:
        return range(self.seeds or self.scale.seeds)

    def cells(
        self,
        column: Column,
        name: str,
        sets: tuple[str, ...] = (),
        method: str | None = None,
        *,
        diagnose: bool = False,
    ) -> list[Cell]:
        """One run for each seed, all described by a column, a name and changes.

        With `diagnose`, the first keeps what limits it.
        """
        found = []
        for seed in self.numbers:
            own = (*sets, *self.sets, f"train.seed={seed}")
            found.append(
                Cell(
                    folder=f"{column.paper}-{name}-{seed}",
                    config=config.load(column.source, own, method),
                    label=f"{column.title}: {name}, seed {seed}",
                    diagnose=diagnose and seed == 0,
                )
            )
        return found

    def config(self, column: Column, sets: tuple[str, ...] = ()) -> Config:
        """The configuration of a column's own method."""
        return config.load(column.source, (*sets, *self.sets))


def inline(values: Mapping[str, float]) -> str:
    """A table of numbers as TOML on one line."""
    return "{" + ", ".join(f"{key} = {value!r}" for key, value in values.items()) + "}"


def read_as(chosen: Config, reading: str) -> tuple[str, ...]:
    """The changes that make a run of Algorithm 1 read the paper's σ in another way."""
    assert isinstance(chosen.method, Dpdt)
    noise: Any = chosen.method.noise
    factor = NOISES[reading]
    if not factor:
        return ("method.noise=0.0",)
    follows = ("method.noise_schedule=langevin",) if reading == FOLLOWS else ()
    if isinstance(noise, Mapping):
        return (f"method.noise={inline({k: v * factor for k, v in noise.items()})}", *follows)
    return (f"method.noise={noise * factor!r}", *follows)

"""Canaries: training examples that are made to be noticed.

A canary takes the place of a training example. A secret coin decides whether it is in or out. If it
is out, what happens depends on the guarantee. For one about adding or removing examples, the place
stays empty. For one about replacing them, a fixed stand-in takes the place.

mislabelled   the example itself with a wrong label; the stand-in has the right one
noise         a random input with a random label; the stand-in is another
gradient      no example at all, but a pull on one coordinate of what is trained; the stand-in pulls
              the other way. The attack is white-box: the attacker compares that coordinate of the
              released model with a reference run without canaries and noise (audit/canaries.py)

Canaries never change the plan: they are planted after it is made. A pull is as strong as clipping
allows. Where the model's construction bounds gradients, a guarantee may rest on that bound, so a
pull keeps to it. A pull is a linear loss, and the guarantee covers a linear loss with such a
gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.algorithm.batch import tree_map
from dpdt.algorithm.gradients import Loss
from dpdt.data.access import count, take
from dpdt.errors import InputError
from dpdt.methods.plan import Plan
from dpdt.models.loss import default_loss
from dpdt.noise import Randomness

PULL = 1e4  # a gradient canary's pull before clipping, in units of the largest clip
WITHIN = 1.0 - 1e-6  # of a bound on gradients, so that rounding does not exceed it


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which canaries to plant, and where. All of this is public; the coins are not part of it."""

    kind: str
    number: int
    seed: int
    classes: int
    relation: str


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A training set with canaries. `included` is secret until the run has ended."""

    kind: str
    places: np.ndarray  # in the training set
    included: np.ndarray
    data: Any  # the training set as it is trained on
    absent: np.ndarray | None  # places that stay empty
    pulls: Pulls | None  # of gradient canaries
    canaries: Any  # the canaries themselves, (x, label), whether in or out

    @classmethod
    def plant(cls, data: Any, wanted: Wanted) -> Planted:
        """Toss the coins and plant. Positions and canaries depend on the public seed alone."""
        return cls._make(data, wanted, Randomness().coins(wanted.number, 0.5))

    @classmethod
    def again(cls, data: Any, wanted: Wanted, record: dict[str, Any]) -> Planted:
        """The same canaries and coins, from the record that a run has kept."""
        return cls._make(data, wanted, np.array(record["included"], dtype=bool))

    @classmethod
    def _make(cls, data: Any, wanted: Wanted, included: np.ndarray) -> Planted:
        kind, number = wanted.kind, len(included)
        if not isinstance(data, tuple):
            raise InputError(
                "audit.canaries: the data are read from files one by one and cannot be replaced; "
                "use a set that fits the memory"
            )
        if number > count(data) // 2:
            raise InputError(
                f"audit.canaries: must be at most half of the {count(data)} examples, "
                f"found {number}"
            )
        generator = np.random.default_rng((wanted.seed, 8))
        places = np.sort(generator.choice(count(data), number, replace=False))
        real = take(data, torch.from_numpy(places))
        canaries, stand_ins = _pair(kind, real, wanted.classes, generator)
        replaced = wanted.relation == "replace-one"
        inside = torch.from_numpy(included)
        chosen = _where(inside, canaries, stand_ins) if replaced else canaries
        pulls = absent = None
        if kind == "gradient":
            marks = torch.zeros(count(data), dtype=torch.long)
            numbers = torch.arange(1, number + 1)
            marks[places] = torch.where(inside, numbers, -numbers) if replaced else numbers
            pulls = Pulls(marks=marks, number=number, seed=wanted.seed)
        if not replaced:
            absent = np.zeros(count(data), dtype=bool)
            absent[places[~included]] = True
        return cls(
            kind=kind,
            places=places,
            included=included,
            data=_with(data, torch.from_numpy(places), chosen),
            absent=absent,
            pulls=pulls,
            canaries=canaries,
        )

    def record(self) -> dict[str, Any]:
        """What must be kept, privately, to score the canaries later."""
        return {"kind": self.kind, "included": self.included.tolist()}


@dataclass(frozen=True, kw_only=True)
class Pulls:
    """Gradient canaries: which examples pull on a coordinate of θ instead."""

    marks: Tensor  # ±1, ±2, … for the canaries and their stand-ins, 0 for examples
    number: int
    seed: int

    def plant(
        self, learner: nn.Module, data: Any, loss: Loss, plan: Plan
    ) -> tuple[Marked, Any, Loss]:
        """What is trained instead: the learner, data and loss with pulls."""
        if loss is not default_loss:
            raise InputError("audit.canary: 'gradient' is for the library's own loss")
        bounds = plan.problem.bounds
        clip = max(max(setting.clip) for setting, _ in plan.runs)
        strength = PULL * clip if bounds is None else WITHIN * bounds.gradient
        return Marked(learner, self.number, self.seed, strength), (*data, self.marks), marked_loss


def _pair(kind: str, real: Any, classes: int, generator: np.random.Generator) -> tuple[Any, Any]:
    """Canaries and their stand-ins."""
    x, y = real
    if kind == "gradient":
        return real, real  # what they hold does not matter: see Marked
    if kind == "mislabelled":
        shift = torch.from_numpy(generator.integers(1, classes, len(y)))
        return (x, (y + shift) % classes), real
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InputError("audit.canary: 'noise' needs inputs of numbers, not of tokens")
    noise = [torch.from_numpy(generator.standard_normal(x.shape)).to(x) for _ in range(2)]
    labels = [torch.from_numpy(generator.integers(0, classes, len(y))) for _ in range(2)]
    return (noise[0], labels[0]), (noise[1], labels[1])


def _where(inside: Tensor, first: Any, second: Any) -> Any:
    """The first's examples where `inside`, the second's elsewhere."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(inside.view(-1, *[1] * (a.dim() - 1)), a, b)

    return tree_map(choose, first, second)


def _with(data: Any, places: Tensor, chosen: Any) -> Any:
    """A copy of the data with other examples at some places."""
    return tree_map(lambda t, new: t.index_copy(0, places, new.to(t)), data, chosen)


def coordinates(parameters: int, canaries: int, seed: int) -> Tensor:
    """The coordinate of θ that each gradient canary pulls on. No two share one."""
    if canaries > parameters:
        raise InputError(
            f"audit.canaries: a gradient canary needs a parameter of its own, and the model has "
            f"{parameters}, found {canaries}"
        )
    generator = np.random.default_rng((seed, 9))
    return torch.from_numpy(generator.choice(parameters, canaries, replace=False))


class Marked(nn.Module):
    """A learner that also knows each gradient canary's coordinate of θ."""

    def __init__(self, inner: nn.Module, canaries: int, seed: int, strength: float):
        super().__init__()
        self.inner, self.strength = inner, strength
        self.names = [n for n, p in inner.named_parameters() if p.requires_grad]
        size = sum(inner.get_parameter(n).numel() for n in self.names)
        self.coordinates = coordinates(size, canaries, seed)

    def forward(self, x: Any, marks: Tensor | None = None) -> Any:
        """The outputs, and the pulls ±strength·θ_j of canaries ±1, ±2, …; 0 marks an example."""
        if marks is None:
            return self.inner(x)
        # attributes, since they are no nn.Parameters while another θ stands in for them
        parts: list[Any] = [reduce(getattr, n.split("."), self.inner) for n in self.names]
        flat = torch.cat([part.flatten() for part in parts])
        chosen = flat[self.coordinates.to(flat.device)[(marks.abs() - 1).clamp(min=0)]]
        return self.inner(x), self.strength * marks.sign() * chosen


def marked_loss(model: Any, batch: Any) -> Tensor:
    """Cross-entropy of examples, and the pull of canaries. Public examples have no marks."""
    if len(batch) == 2:
        return default_loss(model, batch)
    x, y, marks = batch
    outputs, pull = model(x, marks)
    losses = F.cross_entropy(outputs, y, reduction="none")
    return torch.where(marks == 0, losses, pull).mean()

"""Schedules as data: how a setting changes from epoch to epoch.

A schedule is a factor that multiplies a base value. The factor is constant within an epoch and
never depends on the data. A schedule is written as a name or as a table:

    {kind = "constant"}
    {kind = "steps", epochs = [50, 71], factors = [16, 8, 4]}   16 before epoch 50, 8 before 71, …
    {kind = "exponential", rate = 1.1, every = 3}               times 1.1 every 3 epochs: ρ/γ growth
    {kind = "exponential", floor = 1e-4,                        the appendix's decay
     phases = [{start = 5, stop = 60, every = 3, rate = 0.9}, …]}
    {kind = "two-phase", low = 0.25, ramp = [10, 30]}           0.25, a ramp to 1 over 10 … 30
    "paper"                                                     the paper's own, where it has one

Epochs count from 0. Two readings of the paper are settled here.

1. The method section lets ρ grow (ρ/γ), the appendix lets ρ decay to a floor. Both are
   `exponential`; a preset says which of them it uses.
2. The appendix gives the clipping scale S_t twice: as 8 for 50 ≤ t ≤ 70, and as "8 from epoch 50, 4
   from 70". The first says where each boundary epoch belongs, and is `paper`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from dpdt.errors import InputError


class Schedule(Protocol):
    def factor(self, epoch: int) -> float:
        """The factor in force during `epoch` (from 0)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    def factor(self, epoch: int) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Steps:
    """`factors[i]` from epoch `epochs[i-1]` until before `epochs[i]`."""

    epochs: tuple[int, ...]
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.factors) != len(self.epochs) + 1:
            raise InputError(
                f"factors: {len(self.epochs)} boundaries in epochs need {len(self.epochs) + 1} "
                f"factors, found {len(self.factors)}"
            )
        if list(self.epochs) != sorted(set(self.epochs)):
            raise InputError(f"epochs: must increase, found {list(self.epochs)}")
        if not all(f >= 0 and math.isfinite(f) for f in self.factors):
            raise InputError(f"factors: must be finite and ≥ 0, found {list(self.factors)}")

    def factor(self, epoch: int) -> float:
        return self.factors[sum(epoch >= boundary for boundary in self.epochs)]


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Multiply by `rate` at epochs start, start + every, … up to and including `stop`."""

    rate: float
    every: int
    start: int
    stop: int | None = None

    def __post_init__(self) -> None:
        if not (self.rate > 0 and math.isfinite(self.rate)):
            raise InputError(f"rate: must be positive, found {self.rate}")
        if self.every < 1:
            raise InputError(f"every: must be at least 1 epoch, found {self.every}")

    def count(self, epoch: int) -> int:
        last = epoch if self.stop is None else min(epoch, self.stop)
        return 0 if last < self.start else (last - self.start) // self.every + 1


@dataclass(frozen=True, kw_only=True)
class Exponential:
    phases: tuple[Phase, ...]
    floor: float = 0.0
    ceiling: float = math.inf

    def factor(self, epoch: int) -> float:
        log = sum(phase.count(epoch) * math.log(phase.rate) for phase in self.phases)
        value = math.exp(min(log, 700.0))
        return min(max(value, self.floor), self.ceiling)


@dataclass(frozen=True, kw_only=True)
class TwoPhase:
    """`low` before the ramp, then linear up to 1, then 1 (the paper's noise calibration)."""

    low: float
    ramp: tuple[int, int]

    def __post_init__(self) -> None:
        if not (self.low > 0 and math.isfinite(self.low)):
            raise InputError(f"low: must be positive, found {self.low}")
        if len(self.ramp) != 2 or not 0 <= self.ramp[0] < self.ramp[1]:
            raise InputError(f"ramp: must be [first, last] epoch, found {list(self.ramp)}")

    def factor(self, epoch: int) -> float:
        first, last = self.ramp
        share = min(max((epoch - first) / (last - first), 0.0), 1.0)
        return self.low + (1.0 - self.low) * share


# The appendix's clipping scale S_t and its penalty decay (from 0.1 to a floor of 1e-5).
PAPER_CLIP = Steps(epochs=(50, 71, 81, 101), factors=(16.0, 8.0, 4.0, 2.0, 1.0))
PAPER_PENALTY = Exponential(
    phases=(
        Phase(rate=0.9, every=3, start=5, stop=60),
        Phase(rate=0.9, every=10, start=61, stop=99),
        Phase(rate=0.5, every=25, start=100),
    ),
    floor=1e-4,
)


def parse(value: Any, *, paper: Schedule | None = None) -> Schedule:
    """A schedule from its written form; `paper` is the paper's own, if it has one.

    A complaint about one entry of a table begins with the name of the entry and a colon.
    """
    if isinstance(value, str):
        if value == "constant":
            return Constant()
        if value == "paper" and paper is not None:
            return paper
        known = "'constant'" + ("" if paper is None else " or 'paper'")
        raise InputError(f"must be {known} or a table with a kind, found {value!r}")
    if not isinstance(value, Mapping):
        raise InputError(f"must be a name or a table with a kind, found {value!r}")
    kinds: dict[str, Callable[..., Schedule]] = {
        "constant": Constant,
        "steps": Steps,
        "exponential": _exponential,
        "two-phase": TwoPhase,
    }
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
    kind = options.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(f"kind: must be one of {', '.join(kinds)}, found {kind!r}")
    try:
        return kinds[kind](**options)
    except TypeError as error:
        reason = str(error).split("() ")[-1].replace("__init__", kind)
        raise InputError(f"a {kind!r} schedule does not fit: {reason}") from None


def _exponential(
    *,
    phases: tuple[Mapping[str, Any], ...] | None = None,
    floor: float = 0.0,
    ceiling: float = math.inf,
    **phase: Any,
) -> Exponential:
    tables = ({"start": phase.get("every", 1), **phase},) if phases is None else phases
    return Exponential(phases=tuple(Phase(**t) for t in tables), floor=floor, ceiling=ceiling)


def grows(schedule: Schedule, epochs: int) -> bool:
    """Whether the factor ever increases from one epoch to the next."""
    values = [schedule.factor(epoch) for epoch in range(epochs)]
    return any(b > a for a, b in pairwise(values))

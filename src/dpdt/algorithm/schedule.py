"""Schedules as data: how a setting changes during a run.

A schedule is a factor that multiplies a base value. The factor never depends on the data. It is
constant within an epoch, unless the table says unit = "step": then everything in it counts steps
instead of epochs. A schedule is written as a name or as a table:

    {kind = "constant"}
    {kind = "steps", epochs = [50, 71], factors = [16, 8, 4]}   16 before epoch 50, 8 before 71, …
    {kind = "exponential", rate = 1.1, every = 3}               times 1.1 every 3 epochs: ρ/γ growth
    {kind = "exponential", floor = 1e-4,                        the appendix's decay
     phases = [{start = 5, stop = 60, every = 3, rate = 0.9}, …]}
    {kind = "two-phase", low = 0.25, ramp = [10, 30]}           0.25, a ramp to 1 over 10 … 30
    "paper"                                                     the paper's own, where it has one
    {kind = "paper", over = 20}                                 the same, of 200 epochs, within 20
    {kind = "exponential", rate = 1.1, every = 30, unit = "step"}

Epochs and steps count from 0. The paper's own schedules are at the end. docs/readings.md says how
the paper is read, and what else it could mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from dpdt.errors import InputError

PAPER_EPOCHS = 200  # of the paper's own schedules


class Schedule(Protocol):
    def factor(self, epoch: int, step: int = 0) -> float:
        """The factor in force at a step of an epoch (both from 0; steps from the run's start)."""
        ...


@dataclass(frozen=True, kw_only=True)
class ByStep:
    """A schedule whose epochs are steps."""

    schedule: Schedule

    def factor(self, epoch: int, step: int = 0) -> float:
        return self.schedule.factor(step)


@dataclass(frozen=True, kw_only=True)
class Within:
    """A schedule made for `whole` epochs (or steps), brought to `over` of them."""

    schedule: Schedule
    whole: int
    over: int

    def __post_init__(self) -> None:
        if not (isinstance(self.over, int) and self.over >= 1):
            raise InputError(f"over: must be a whole number from 1, found {self.over!r}")

    def factor(self, epoch: int, step: int = 0) -> float:
        return self.schedule.factor(epoch * self.whole // self.over)


@dataclass(frozen=True, kw_only=True)
class Root:
    """The square root of another schedule's factor."""

    schedule: Schedule

    def factor(self, epoch: int, step: int = 0) -> float:
        return math.sqrt(self.schedule.factor(epoch, step))


@dataclass(frozen=True, kw_only=True)
class Constant:
    def factor(self, epoch: int, step: int = 0) -> float:
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

    def factor(self, epoch: int, step: int = 0) -> float:
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

    def factor(self, epoch: int, step: int = 0) -> float:
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

    def factor(self, epoch: int, step: int = 0) -> float:
        first, last = self.ramp
        share = min(max((epoch - first) / (last - first), 0.0), 1.0)
        return self.low + (1.0 - self.low) * share


def parse(value: Any, *, named: Mapping[str, Schedule] | None = None) -> Schedule:
    """A schedule from its written form. `named` are the paper's own, of PAPER_EPOCHS epochs.

    A complaint about one entry of a table begins with the name of the entry and a colon.
    """
    known = {"constant": Constant(), **(named or {})}
    if isinstance(value, str):
        if value in known:
            return known[value]
        words = " or ".join(repr(name) for name in known)
        raise InputError(f"must be {words} or a table with a kind, found {value!r}")
    if not isinstance(value, Mapping):
        raise InputError(f"must be a name or a table with a kind, found {value!r}")
    kinds: dict[str, Callable[..., Schedule]] = {
        **{name: partial(_within, schedule) for name, schedule in known.items()},
        "constant": Constant,
        "steps": Steps,
        "exponential": _exponential,
        "two-phase": TwoPhase,
    }
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
    kind, unit = options.pop("kind", None), options.pop("unit", "epoch")
    if unit not in ("epoch", "step"):
        raise InputError(f"unit: must be 'epoch' or 'step', found {unit!r}")
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(f"kind: must be one of {', '.join(kinds)}, found {kind!r}")
    try:
        found = kinds[kind](**options)
    except TypeError as error:
        reason = str(error).split("() ")[-1].replace("__init__", kind)
        raise InputError(f"a {kind!r} schedule does not fit: {reason}") from None
    return ByStep(schedule=found) if unit == "step" else found


def _within(schedule: Schedule, *, over: int = PAPER_EPOCHS) -> Schedule:
    return Within(schedule=schedule, whole=PAPER_EPOCHS, over=over)


def _exponential(
    *,
    phases: tuple[Mapping[str, Any], ...] | None = None,
    floor: float = 0.0,
    ceiling: float = math.inf,
    **phase: Any,
) -> Exponential:
    tables = ({"start": phase.get("every", 1), **phase},) if phases is None else phases
    return Exponential(phases=tuple(Phase(**t) for t in tables), floor=floor, ceiling=ceiling)


def factors(schedule: Schedule, epochs: int, batches: int) -> list[float]:
    """The factors that a run meets, in order: for every epoch, or for every step."""
    if isinstance(schedule, ByStep):
        return [schedule.factor(step // batches, step) for step in range(epochs * batches)]
    return [schedule.factor(epoch) for epoch in range(epochs)]


# The appendix's clipping scale S_t. It is given twice: as 8 for 50 ≤ t ≤ 70, and as "8 from epoch
# 50, 4 from 70". The first says where each boundary epoch belongs.
PAPER_CLIP = Steps(epochs=(50, 71, 81, 101), factors=(16.0, 8.0, 4.0, 2.0, 1.0))


def paper_penalty(base: float, *, grows: bool) -> Exponential:
    """The appendix's timetable of ρ from a base value.

    The paper's stage 3 divides ρ by γ, so ρ grows, up to the table's 10. The appendix says that ρ
    "decays by γ", down to 1e-5. The end is a value of ρ, whatever the base.
    """
    slow, fast = (1 / 0.9, 2.0) if grows else (0.9, 0.5)
    return Exponential(
        phases=(
            Phase(rate=slow, every=3, start=5, stop=60),
            Phase(rate=slow, every=10, start=61, stop=99),
            Phase(rate=fast, every=25, start=100),
        ),
        floor=0.0 if grows else 1e-5 / base,
        ceiling=10.0 / base if grows else math.inf,
    )

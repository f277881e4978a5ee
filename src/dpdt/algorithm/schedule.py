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

A run is never written out step by step: `stretches` goes from change to change.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dpdt.errors import InputError

PAPER_EPOCHS = 200  # of the paper's own schedules
MOST = 20_000  # changes in a run: each is a setting in memory, and a line of the ledger
LARGEST = 700.0  # the logarithm of the largest factor


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


class Schedule(Protocol):
    def factor(self, epoch: int, step: int = 0) -> float:
        """The factor in force at a step of an epoch (both from 0; steps from the run's start)."""
        ...

    def until(self, epoch: int) -> float:
        """The next epoch at which the factor may be another; infinite if there is none."""
        ...


@dataclass(frozen=True, kw_only=True)
class ByStep:
    """A schedule whose epochs are steps."""

    schedule: Schedule

    def factor(self, epoch: int, step: int = 0) -> float:
        return self.schedule.factor(step)

    def until(self, epoch: int) -> float:
        return self.schedule.until(epoch)


@dataclass(frozen=True, kw_only=True)
class Within:
    """A schedule made for `whole` epochs (or steps), brought to `over` of them."""

    schedule: Schedule
    whole: int
    over: int

    def __post_init__(self) -> None:
        if not (is_whole(self.over) and self.over >= 1):
            raise InputError(f"over: must be a whole number from 1, found {self.over!r}")

    def factor(self, epoch: int, step: int = 0) -> float:
        return self.schedule.factor(epoch * self.whole // self.over)

    def until(self, epoch: int) -> float:
        change = self.schedule.until(epoch * self.whole // self.over)
        return change if math.isinf(change) else -(-change * self.over // self.whole)


@dataclass(frozen=True, kw_only=True)
class Root:
    """The square root of another schedule's factor."""

    schedule: Schedule

    def factor(self, epoch: int, step: int = 0) -> float:
        return math.sqrt(self.schedule.factor(epoch, step))

    def until(self, epoch: int) -> float:
        return self.schedule.until(epoch)


@dataclass(frozen=True, kw_only=True)
class Constant:
    def factor(self, epoch: int, step: int = 0) -> float:
        return 1.0

    def until(self, epoch: int) -> float:
        return math.inf


@dataclass(frozen=True, kw_only=True)
class Steps:
    """`factors[i]` from epoch `epochs[i-1]` until before `epochs[i]`."""

    epochs: tuple[int, ...]
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (isinstance(self.epochs, tuple) and all(map(is_whole, self.epochs))):
            raise InputError(f"epochs: must be a list of whole numbers, found {self.epochs!r}")
        if not (isinstance(self.factors, tuple) and all(map(is_number, self.factors))):
            raise InputError(f"factors: must be a list of numbers, found {self.factors!r}")
        if len(self.factors) != len(self.epochs) + 1:
            raise InputError(
                f"factors: {len(self.epochs)} boundaries in epochs need {len(self.epochs) + 1} "
                f"factors, found {len(self.factors)}"
            )
        if list(self.epochs) != sorted(set(self.epochs)):
            raise InputError(f"epochs: must increase, found {list(self.epochs)}")
        if not all(f >= 0 for f in self.factors):
            raise InputError(f"factors: must be finite and ≥ 0, found {list(self.factors)}")

    def factor(self, epoch: int, step: int = 0) -> float:
        return self.factors[bisect_right(self.epochs, epoch)]

    def until(self, epoch: int) -> float:
        passed = bisect_right(self.epochs, epoch)
        return self.epochs[passed] if passed < len(self.epochs) else math.inf


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Multiply by `rate` at epochs start, start + every, … up to and including `stop`."""

    rate: float
    every: int
    start: int
    stop: int | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.rate) and self.rate > 0):
            raise InputError(f"rate: must be positive, found {self.rate!r}")
        if not (is_whole(self.every) and self.every >= 1):
            raise InputError(f"every: must be at least 1 epoch, found {self.every!r}")
        for name in ("start", "stop"):
            value = getattr(self, name)
            if not (is_whole(value) or (name == "stop" and value is None)):
                raise InputError(f"{name}: must be a whole number, found {value!r}")

    def count(self, epoch: int) -> int:
        last = epoch if self.stop is None else min(epoch, self.stop)
        return 0 if last < self.start else (last - self.start) // self.every + 1

    def until(self, epoch: int) -> float:
        change = self.start + self.count(epoch) * self.every
        return math.inf if self.stop is not None and change > self.stop else change


@dataclass(frozen=True, kw_only=True)
class Exponential:
    phases: tuple[Phase, ...]
    floor: float = 0.0
    ceiling: float = math.inf

    def factor(self, epoch: int, step: int = 0) -> float:
        value = math.exp(min(self._log(epoch), LARGEST))
        return min(max(value, self.floor), self.ceiling)

    def until(self, epoch: int) -> float:
        """Never, once the factor has reached an end and all phases to come lead further there."""
        to_come = [phase for phase in self.phases if phase.until(epoch) < math.inf]
        log = self._log(epoch)
        value = math.exp(min(log, LARGEST))
        top = log >= LARGEST or value >= self.ceiling
        bottom = value <= self.floor or value == 0.0
        if top and all(phase.rate >= 1 for phase in to_come):
            return math.inf
        if bottom and all(phase.rate <= 1 for phase in to_come):
            return math.inf
        return min((phase.until(epoch) for phase in to_come), default=math.inf)

    def _log(self, epoch: int) -> float:
        return sum(phase.count(epoch) * math.log(phase.rate) for phase in self.phases)


@dataclass(frozen=True, kw_only=True)
class TwoPhase:
    """`low` before the ramp, then linear up to 1, then 1 (the paper's noise calibration)."""

    low: float
    ramp: tuple[int, int]

    def __post_init__(self) -> None:
        if not (is_number(self.low) and self.low > 0):
            raise InputError(f"low: must be positive, found {self.low!r}")
        epochs = isinstance(self.ramp, tuple) and all(map(is_whole, self.ramp))
        if not epochs or len(self.ramp) != 2 or not 0 <= self.ramp[0] < self.ramp[1]:
            raise InputError(f"ramp: must be [first, last] epoch, found {self.ramp!r}")

    def factor(self, epoch: int, step: int = 0) -> float:
        first, last = self.ramp
        share = min(max((epoch - first) / (last - first), 0.0), 1.0)
        return self.low + (1.0 - self.low) * share

    def until(self, epoch: int) -> float:
        first, last = self.ramp
        return math.inf if epoch >= last else max(epoch, first) + 1


def stretches(
    schedules: Mapping[str, Schedule], epochs: int, batches: int
) -> Iterator[tuple[int, int]]:
    """The steps of a run from change to change of any schedule: the first step, and how many.

    Schedules come under their keys in [method]. Neighbours may still have the same factors.
    """
    step, total, found = 0, epochs * batches, 0
    while step < total:
        changes = {key: _until(schedule, step, batches) for key, schedule in schedules.items()}
        key = min(changes, key=lambda k: changes[k])
        if found == MOST:
            raise InputError(
                f"method.{key}: changes more than {MOST:,} times within {total:,} steps, and a run "
                "keeps a record of each change; let it change less often, or train for fewer epochs"
            )
        end = int(min(total, changes[key]))
        yield step, end - step
        step, found = end, found + 1


def _until(schedule: Schedule, step: int, batches: int) -> float:
    """The next step at which a factor may be another."""
    if isinstance(schedule, ByStep):
        return schedule.until(step)
    return schedule.until(step // batches) * batches


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

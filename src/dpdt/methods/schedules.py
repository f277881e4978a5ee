"""Schedules as the configuration writes them: by key, with the key in every complaint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from dpdt.algorithm.parse import parse
from dpdt.algorithm.schedule import PAPER_CLIP, ByStep, Root, Schedule, paper_penalty, stretches
from dpdt.errors import InputError

LANGEVIN = "langevin"


def schedule_of(key: str, value: Any, base: float = 1.0) -> Schedule:
    """The schedule that stands under `method.key`, for a value that starts at `base`."""
    try:
        return parse(value, named=_named(key, base))
    except InputError as error:
        part = str(error).partition(": ")[0].isidentifier()  # "kind: must be one of …"
        raise InputError(f"method.{key}{'.' if part else ': '}{error}") from None


def _named(key: str, base: float) -> Mapping[str, Schedule]:
    """The paper's own schedules for a key. S_t may scale the noise as well as the clip."""
    if key == "penalty_schedule":
        return {
            "paper": paper_penalty(base, grows=True),
            "paper-decay": paper_penalty(base, grows=False),
        }
    return {"paper": PAPER_CLIP}


def langevin(penalty: Schedule) -> Schedule:
    """The schedule of the noise that keeps σ, as Langevin's parameter, constant.

    Langevin dynamics add a variance of 2η̂σ² to θ. The noise is added before the step of size η̂, so
    its deviation is σ·√(2/η̂), and η̂ is η_θ/ρ. So the noise follows the root of ρ.
    """
    if isinstance(penalty, ByStep):
        return ByStep(schedule=Root(schedule=penalty.schedule))
    return Root(schedule=penalty)


def grows(schedule: Schedule, epochs: int, batches: int) -> bool:
    """Whether the factor of the clip ever increases during a run."""
    found = factors("clip_schedule", schedule, epochs, batches)
    return any(b > a for a, b in pairwise(f for _, f in found))


def refuse_vanishing(schedule: Schedule, epochs: int, batches: int) -> None:
    """Refuse a schedule of ρ that reaches 0: a step on θ has size η_θ/ρ."""
    for step, factor in factors("penalty_schedule", schedule, epochs, batches):
        if not factor > 0:
            by_step = isinstance(schedule, ByStep)
            place = f"step {step}" if by_step else f"epoch {step // batches}"
            raise InputError(
                f"method.penalty_schedule: must stay above 0, found 0 in {place}, counted from 0"
            )


def factors(key: str, schedule: Schedule, epochs: int, batches: int) -> Iterator[tuple[int, float]]:
    """The factors that a run meets, in order, each with the step from which it holds."""
    for step, _ in stretches({key: schedule}, epochs, batches):
        yield step, schedule.factor(step // batches, step)

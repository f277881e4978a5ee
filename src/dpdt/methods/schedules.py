"""Schedules as the configuration writes them: by key, with the key in every complaint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dpdt.algorithm.schedule import PAPER_CLIP, PAPER_PENALTY, Schedule, parse
from dpdt.errors import InputError

PAPER: dict[str, Schedule] = {"clip_schedule": PAPER_CLIP, "penalty_schedule": PAPER_PENALTY}


def schedule_of(key: str, value: Any) -> Schedule:
    """The schedule that stands under `method.key`."""
    try:
        return parse(value, paper=PAPER.get(key))
    except InputError as error:
        part = str(error).partition(": ")[0].isidentifier()  # "kind: must be one of …"
        raise InputError(f"method.{key}{'.' if part else ': '}{error}") from None


def refuse_vanishing(schedules: Iterable[Schedule], epochs: int) -> None:
    """Refuse schedules of ρ that reach 0: a step on θ has size η_θ/ρ."""
    for schedule in schedules:
        for epoch in range(epochs):
            if not schedule.factor(epoch) > 0:
                raise InputError(
                    f"method.penalty_schedule: must stay above 0, found 0 in epoch {epoch}, "
                    "counted from 0"
                )

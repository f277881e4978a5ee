"""Schedules from their written form (schedule.py has what they look like)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dpdt.algorithm.schedule import (
    PAPER_EPOCHS,
    ByStep,
    Constant,
    Exponential,
    Phase,
    Schedule,
    Steps,
    TwoPhase,
    Within,
    is_number,
)
from dpdt.errors import InputError, meant, one_of


def parse(value: Any, *, named: Mapping[str, Schedule] | None = None) -> Schedule:
    """A schedule from its written form. `named` are the paper's own, of PAPER_EPOCHS epochs.

    A complaint about one entry of a table begins with the name of the entry and a colon.
    """
    known = {"constant": Constant(), **(named or {})}
    if isinstance(value, str):
        if value in known:
            return known[value]
        words = " or ".join(repr(name) for name in known)
        said = f"must be {words} or a table with a kind, found {value!r}"
        raise InputError(f"{said}{meant(value, known)}")
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
        raise InputError(f"kind: {one_of(kind, kinds)}")
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
    if not (isinstance(tables, tuple) and all(isinstance(t, Mapping) for t in tables)):
        raise InputError(f"phases: must be a list of tables, found {phases!r}")
    for name, value in (("floor", floor), ("ceiling", ceiling)):
        if not (is_number(value) or value == math.inf) or value < 0:
            raise InputError(f"{name}: must be a number from 0, found {value!r}")
    return Exponential(phases=tuple(Phase(**t) for t in tables), floor=floor, ceiling=ceiling)

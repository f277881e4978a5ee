"""The steps that a ledger or a state has recorded, to compare them, and those to come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dpdt.ledger import Ledger, Setting, Stretch
from dpdt.methods.plan import Plan


def runs_of(state: dict[str, Any]) -> list[Stretch]:
    """What a state's run had recorded."""

    def setting(values: dict[str, Any]) -> Setting:
        given: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return Setting(**given)

    return [Stretch(setting=setting(s), steps=n, start=start) for s, n, start in state["ledger"]]


def steps_of(runs: Iterable[Stretch]) -> list[tuple[int, Setting]]:
    """Every recorded step, with its number in the plan."""
    return [(run.start + i, run.setting) for run in runs for i in range(run.steps)]


def begins_with(runs: list[Stretch], first: list[Stretch]) -> bool:
    """Whether a ledger begins with the steps of another."""
    mine, theirs = steps_of(runs), steps_of(first)
    return mine[: len(theirs)] == theirs


def continued(plan: Plan, recorded: Ledger, state: dict[str, Any] | None, *, exact: bool) -> Ledger:
    """The ledger that a run will have at its end, if it goes on from a state, or begins.

    A run that goes on exactly does not record again what is recorded.
    """
    first = state["engine"]["steps"] if state else 0
    first = max(first, recorded.reached) if exact else first
    whole, start = replace(recorded, runs=list(recorded.runs), closed=True), 0
    for setting, steps in plan.runs:
        begin, start = max(start, first), start + steps
        if begin < start:
            whole.append(setting, start - begin, begin)
    return whole

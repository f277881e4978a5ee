"""The steps that a ledger or a state has recorded, to compare them, and those to come.

They are compared as runs of equal steps, as a ledger has them, not step by step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from dpdt.errors import InputError
from dpdt.ledger import Ledger, LedgerWriter, Setting, Stretch
from dpdt.methods.plan import Plan


def runs_of(state: dict[str, Any]) -> list[Stretch]:
    """What a state's run had recorded."""

    def setting(values: dict[str, Any]) -> Setting:
        given: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return Setting(**given)

    return [Stretch(setting=setting(s), steps=n, start=start) for s, n, start in state["ledger"]]


def number_of(runs: Iterable[Stretch]) -> int:
    """How many steps there are."""
    return sum(run.steps for run in runs)


def between(runs: Iterable[Stretch], first: int, last: int) -> list[Stretch]:
    """The recorded steps from place `first` to before `last`, in as few runs as can be."""
    found: list[Stretch] = []
    place = 0  # of the run's first step among all
    for run in runs:
        skipped = max(0, first - place)
        steps = min(run.steps, last - place) - skipped
        start, place = run.start + skipped, place + run.steps
        if steps <= 0:
            continue
        before = found[-1] if found else None
        if before and before.setting == run.setting and before.start + before.steps == start:
            found[-1] = replace(before, steps=before.steps + steps)
        else:
            found.append(Stretch(setting=run.setting, steps=steps, start=start))
    return found


def begins_with(runs: list[Stretch], first: list[Stretch]) -> bool:
    """Whether a ledger begins with the steps of another."""
    number = number_of(first)
    return between(runs, 0, number) == between(first, 0, number)


def refuse_unplanned(
    runs: list[Stretch], since: list[Stretch], position: int, plan: Sequence[tuple[Setting, int]]
) -> None:
    """Refuse a ledger that is not what a run would do: all of it, and `since` the checkpoint."""
    if not (_consecutive(since, position) and _as_planned(since, plan)):
        raise InputError("the ledger does not go on as the run would after the checkpoint")
    if not _as_planned(runs, plan):
        raise InputError("the ledger has other settings than the run would have now")


def _consecutive(runs: Iterable[Stretch], place: int) -> bool:
    """Whether the steps are numbered one after the other, from `place` on."""
    for run in runs:
        if run.start != place:
            return False
        place += run.steps
    return True


def _as_planned(runs: Iterable[Stretch], plan: Sequence[tuple[Setting, int]]) -> bool:
    """Whether every step has the setting that a plan, runs of equal steps, has for its number."""
    ends = list(accumulate(number for _, number in plan))
    for run in runs:
        place, part = run.start, bisect_right(ends, run.start)
        while place < run.start + run.steps:
            if part == len(ends) or plan[part][0] != run.setting:
                return False
            place, part = ends[part], part + 1
    return True


def end_early(writer: LedgerWriter, plan: Plan, taken: int, place: int) -> None:
    """Record what is left of a plan, from `place` on, if a run ends before its last step.

    What a run has shown may decide when it ends. A bound for the steps that were taken does not
    allow for that, and one for all that were planned does. It must not rest on later steps that
    hide earlier ones, since those are not taken: so the model was shown on the way.
    """
    if taken < plan.steps:
        writer.export(f"the model after {taken} of {plan.steps} steps, when the run was ended")
        writer.adopt(between(plan.ledger().runs, place, plan.steps))


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

"""What one data set has paid in all: every run on it, together.

Runs on the same data are those whose seals share an identity, of content or of name (seal.py). A
run whose seal does not open may be on any data, and counts to all of them. Runs that were never
released count too, since results that were looked at have been used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR
from pathlib import Path
from typing import Any

from dpdt import seal
from dpdt.accounting import Total, account_together, check_delta
from dpdt.accounting.guarantee import RELATIONS, short, shown
from dpdt.errors import ArgumentError
from dpdt.ledger import Ledger
from dpdt.releasing.found import Found, distinct, found_below

DELTA = 1e-5  # if no run says which δ it was meant for


@dataclass(frozen=True, kw_only=True)
class Data:
    """One data set: its runs, and what they cost together. `id` is nothing if no seal opens."""

    id: str | None
    runs: tuple[Found, ...]
    total: Total
    unopened: int  # runs that may be on these data or on others

    @property
    def epsilon(self) -> float:
        return self.total.epsilon

    @property
    def private(self) -> int:
        """How many runs guarantee something."""
        return sum(not why for why in self.total.reasons)

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "names": self.names,
            "runs": [
                {
                    "path": str(run.path),
                    "epsilon": _finite(epsilon),
                    "closed": run.ledger.closed,
                    "released": run.released,
                    "why": why or None,
                }
                for run, epsilon, why in self._rows
            ],
            "delta": self.total.delta,
            "unit": self.total.unit,
            "relation": self.total.relation,
            "epsilon": _finite(self.epsilon),
            "bounded_epsilon": _finite(self.total.bounded),
            "how": self.total.how,
            "notes": self.notes(),
        }

    @property
    def names(self) -> list[str]:
        """What configurations call the data."""
        return sorted({run.name for run in self.runs if run.name})

    @property
    def _rows(self) -> list[tuple[Found, float, str]]:
        return list(zip(self.runs, self.total.each, self.total.reasons, strict=True))

    def table(self, number: int) -> str:
        """The runs, each with its own ε, and the total."""
        what = [f"data {number}", *self.names, *([f"id {self.id}"] if self.id else [])]
        width = max(len(str(run.path)) for run in self.runs)
        lines = [" · ".join(what)]
        for run, epsilon, why in self._rows:
            state = "released" if run.released else "closed" if run.ledger.closed else "not closed"
            alone = f"{run.path!s:{width}}  ε ≤ {shown(epsilon, ROUND_CEILING):9} {state}"
            lines.append(f"  {alone}" + (f" · {why}" if why else ""))
        lines.append(f"  total: {self.words()}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes())])

    def words(self) -> str:
        """The total in one line."""
        total, without = self.total, len(self.runs) - self.private
        where = f"at δ = {short(total.delta)} ({RELATIONS[total.relation]} {total.unit})"
        if not without:
            return f"ε ≤ {shown(total.epsilon, ROUND_CEILING)} {where}; {total.how}"
        runs = f"{without} run{'s' * (without > 1)} without privacy"
        if not self.private:
            return f"ε = ∞: {runs}"
        bounded = f"ε ≤ {shown(total.bounded, ROUND_CEILING)} {where}; {total.how}"
        return f"ε = ∞, by {runs}; the other {self.private}: {bounded}"

    def notes(self) -> list[str]:
        """What a reader of the total should know."""
        found, units = [], self.total.units
        if self.unopened:
            found.append(
                f"{_runs(self.unopened)} of unknown data, since this key does not open the seal: "
                "counted to all data"
            )
        if self.total.unit == "user" and len(self.runs) > 1:
            found.append("users are taken to be the same in all runs")
        if left := sum(not (run.ledger.closed or run.ledger.tuned) for run in self.runs):
            found.append(
                f"{_runs(left)} not closed: counted as far as the ledger goes, and no further"
            )
        if len(units) > 1:
            found.append(
                f"runs protect different units ({', '.join(units)}), so the total is for one "
                "example, which each of them covers"
            )
            if "example" in units:
                found.append(
                    "for a whole user or shard there is no total: some runs protect single "
                    "examples only"
                )
        return found


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What every data set has paid. δ is what was asked for; without it, each has its own."""

    delta: float | None
    data: tuple[Data, ...]

    def exceeds(self, limit: float) -> bool:
        """Whether any data set has paid more than the limit."""
        return any(data.epsilon > limit for data in self.data)

    def as_json(self, limit: float | None = None) -> dict[str, Any]:
        return {
            "delta": self.delta,
            "limit": limit,
            "data": [data.as_json() for data in self.data],
        }

    def table(self, limit: float | None = None) -> str:
        """A paragraph for each data set, with what a limit leaves."""
        parts = []
        for number, data in enumerate(self.data, start=1):
            left = "" if limit is None else f"\n  limit: {_left(limit, data.epsilon)}"
            parts.append(data.table(number) + left)
        return "\n\n".join(parts)

    def lines(self) -> list[str]:
        """One line for each data set: what all its runs cost together, for a table of results."""
        return [
            f"all {_runs(len(data.runs))} together: {data.words()}; the table was chosen from all "
            "of them"
            for data in self.data
        ]


def budget(folders: Sequence[Path], delta: float | None = None) -> Budget:
    """What every data set has paid by the runs and releases below some folders.

    Without δ it is, for each data set, the smallest that any of its runs was meant for: an ε at a
    smaller δ also holds at a larger one.
    """
    groups, unopened = _groups(found_below(folders))
    if unopened and not groups:
        groups = [(frozenset(), [])]
    data = []
    for ids, mine in groups:
        runs = (*mine, *unopened)
        total = account_together([run.ledger for run in runs], _delta(runs, delta))
        name = min(ids).hex()[:8] if ids else None
        data.append(Data(id=name, runs=runs, total=total, unopened=len(unopened)))
    return Budget(delta=delta, data=tuple(data))


Group = tuple[frozenset[bytes], list[Found]]  # identities, and the runs that have any of them


def _groups(found: Sequence[Found]) -> tuple[list[Group], list[Found]]:
    """Runs that belong together, and those whose seal does not open."""
    key, unopened = seal.own_key(), []
    groups: list[Group] = []
    for run in found:
        ids = seal.opened(key, run.ledger.data)
        if ids is None:
            unopened.append(run)
            continue
        same = [group for group in groups if not ids.isdisjoint(group[0])]
        groups = [group for group in groups if ids.isdisjoint(group[0])]
        runs = [one for _, mine in same for one in mine]
        groups.append((ids.union(*(group[0] for group in same)), [*runs, run]))
    return groups, unopened


def _delta(found: Sequence[Found], given: float | None) -> float:
    known = [run.delta for run in found if run.delta is not None]
    delta = min(known, default=DELTA) if given is None else given
    headers = [run.ledger.header for run in found]
    number, what = max(((h.examples, h.counted) for h in headers), default=(1, "examples"))
    check_delta(delta, number, what, allow_large=given is None)
    return delta


def refuse_beyond(
    limit: float,
    ledger: Ledger,
    folders: Sequence[Path],
    *,
    delta: float,
    what: str = "run",
    own: Path | None = None,
) -> None:
    """Refuse what would bring the data of a ledger beyond a limit.

    Everything on the same data below the folders counts, and this run once, wherever else it is.
    Runs that may go on count with all their steps. The ledger says all of what is in the folder
    `own`.
    """
    check_limit(limit)
    found = found_below([folder for folder in folders if folder.exists()])
    ends = [end for one in found for end in one.at_the_end()]
    others = [one for one in ends if own is None or not _same(one.path, own)]
    found = distinct([*others, Found(path=Path(), ledger=ledger, delta=delta)])
    groups, unopened = _groups(found)
    for _, mine in groups:
        if any(run.ledger.data == ledger.data for run in mine):
            found = [*mine, *unopened]
    chosen = _delta(found, None)
    total = account_together([run.ledger for run in found], chosen)
    if total.epsilon <= limit:
        return
    others = [run for run in found if run.ledger is not ledger]
    before = account_together([run.ledger for run in others], chosen)
    going = ", ".join(str(run.path) for run in others if run.goes_on)
    raise ArgumentError(
        "limit",
        f"with this {what} the data will have paid ε = {shown(total.epsilon, ROUND_CEILING)} at δ "
        f"= {short(chosen)} ({RELATIONS[total.relation]} {total.unit}), of which "
        f"{_runs(len(others))} before it paid {shown(before.epsilon, ROUND_CEILING)}"
        + (f", with {going} to the end, since it may go on" if going else "")
        + f"; the limit is {limit:g}",
    )


def around(path: Path) -> list[Path]:
    """The folder that a run goes into, as its path says and as it really is."""
    return [Path(os.path.abspath(path)).parent, path.resolve().parent]


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def check_limit(limit: float) -> None:
    """Refuse a limit that is none."""
    if not 0.0 < limit < math.inf:
        raise ArgumentError("limit", f"must be a positive number, found {limit}")


def _left(limit: float, epsilon: float) -> str:
    if epsilon > limit:
        return f"{limit:g} is exceeded"
    return f"{limit:g}, of which {shown(limit - epsilon, ROUND_FLOOR)} is left"


def _runs(number: int) -> str:
    return f"{number} run{'s' * (number != 1)}"


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None

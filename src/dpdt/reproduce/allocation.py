"""Table 2 and Figure 3a: the privacy budget split over conv, norm and linear blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpdt import config
from dpdt.accounting.allocate import BOOSTS, MODES
from dpdt.methods.allocation import allocated
from dpdt.reproduce.attacks import ATTACK_HEADS, attacked, check
from dpdt.reproduce.printed import printed
from dpdt.reproduce.rows import (
    LIMIT_HEADS,
    LOST_HEADS,
    NOISE_HEADS,
    RUN_HEADS,
    controls,
    limits,
    lost,
    of_runs,
    plain,
)
from dpdt.reproduce.scale import Asked, Column, inline
from dpdt.reproduce.table import Head, Table
from dpdt.training.grid import Cell, Results

NAME, TITLE = "allocation", "Table 2: budget allocation over kinds of block"
SWEEP, SWEEP_TITLE = "allocation-sweep", "Figure 3a: accuracy over the boost r of one kind"
KINDS = ("conv", "norm", "linear")
BOOST = 1.5  # of Table 2: the one that gives its shares
_SPLIT = (
    Head(key="data", title="data"),
    Head(key="mode", title="mode"),
    Head(key="kind", title="boosted"),
    Head(key="boost", title="r", form="number"),
    Head(key="shares", title="conv:norm:linear"),
)
HEADS = (
    *_SPLIT,
    Head(key="paper_epsilon", title="paper ε", form="number"),
    Head(key="paper_accuracy", title="paper %", form="percent"),
    Head(key="paper_attack", title="paper MIA %", form="percent"),
    *RUN_HEADS,
    *ATTACK_HEADS,
    *NOISE_HEADS,
    *LOST_HEADS,
    *LIMIT_HEADS,
)
SWEEP_HEADS = (*_SPLIT, *RUN_HEADS, NOISE_HEADS[0])
NOTES = (
    "The kinds that are not boosted stay at their values in the equal baseline, so ε rises with r. "
    "dpdt allocate --hold keeps it.",
    "The equal baseline is one set of runs for both modes. Without noise, all rows that change "
    "noise alone are the same runs.",
    'The paper\'s "MIA %" agrees with the AUC of its Table 5. AUC needs no threshold. For "attack '
    '%" thresholds are learnt on members and others that are not judged.',
)
SWEEP_NOTES = (
    "The paper prints no numbers for this figure. One seed. Table 2 has the other readings of σ.",
    *NOTES[:2],
)


@dataclass(frozen=True, kw_only=True)
class Split:
    """One way to split the budget, with the runs that show it."""

    column: Column
    mode: str
    kind: str | None
    boost: float
    shares: str
    runs: list[Cell]
    others: dict[str, list[Cell]]

    @property
    def row(self) -> dict[str, Any]:
        return {
            "data": self.column.title,
            "mode": self.mode,
            "kind": self.kind or "equal",
            "boost": self.boost,
            "shares": self.shares,
        }


def _split(asked: Asked, column: Column, mode: str, kind: str | None, boost: float) -> Split:
    plan = config.plan_of(asked.config(column))
    found = allocated(plan, mode=mode, kind=kind, boost=boost)
    sets = (f"method.clip={inline(found.clip)}", f"method.noise={inline(found.noise)}")
    name = "allocation-equal" if kind is None else f"allocation-{mode}-{kind}-{boost:g}"
    quiet = "allocation-equal-without_noise" if mode == "noise" else None
    return Split(
        column=column,
        mode=mode,
        kind=kind,
        boost=boost,
        shares=":".join(str(found.shares[k]) for k in KINDS if k in found.shares),
        runs=asked.cells(column, name, sets, diagnose=boost in (1.0, BOOST)),
        others=controls(asked, column, name, sets, quiet=quiet),
    )


def _every(asked: Asked, columns: Iterable[Column], boosts: Iterable[float]) -> list[Split]:
    return [
        _split(asked, column, mode, kind, boost)
        for column in columns
        for mode in MODES
        for kind, boost in [(None, 1.0), *((k, b) for k in KINDS for b in boosts)]
    ]


def splits(asked: Asked) -> list[Split]:
    """The rows of Table 2."""
    return _every(asked, [c for c in asked.scale.columns if printed(NAME, c.paper)], [BOOST])


def sweep_splits(asked: Asked) -> list[Split]:
    """The points of Figure 3a, which is about the first data set, with one seed."""
    found = _every(
        replace(asked, seeds=1), asked.scale.columns[:1], [b for b in BOOSTS if b != 1.0]
    )
    quiet = "without_noise"
    return [replace(split, others={quiet: split.others[quiet]}) for split in found]


def _cells(found: list[Split]) -> list[Cell]:
    return [
        cell
        for split in found
        for cell in [*split.runs, *(c for more in split.others.values() for c in more)]
    ]


def cells(asked: Asked) -> list[Cell]:
    found = splits(asked)
    columns = list(dict.fromkeys(split.column for split in found))
    check(asked, columns)
    return [*(cell for c in columns for cell in plain(asked, c)), *_cells(found)]


def sweep_cells(asked: Asked) -> list[Cell]:
    return _cells(sweep_splits(asked))


def _numbers(results: Results, split: Split) -> dict[str, Any]:
    others = {k: of_runs(results, more)["accuracy"] for k, more in split.others.items()}
    return {**split.row, **of_runs(results, split.runs), **others}


def table(asked: Asked, results: Results, out: Path) -> Table:
    found = splits(asked)
    attacks = attacked([(s.column, s.runs) for s in found], out, thresholds="own")
    rows: list[dict[str, Any]] = []
    for split, attack in zip(found, attacks, strict=True):
        numbers = printed(NAME, split.column.paper, split.mode, split.kind or "equal")
        row = _numbers(results, split)
        rows.append(
            {
                **row,
                **lost(results, row, plain(asked, split.column)),
                **attack,
                **limits(out, split.runs),
                "paper_epsilon": numbers["epsilon"],
                "paper_accuracy": numbers["accuracy"] / 100,
                "paper_attack": numbers["attack"] / 100,
                "paper_interval": numbers["interval"] / 100,
            }
        )
    return Table(name=NAME, title=TITLE, heads=HEADS, rows=rows, notes=NOTES)


def sweep_table(asked: Asked, results: Results, out: Path) -> Table:
    rows = [_numbers(results, split) for split in sweep_splits(asked)]
    return Table(name=SWEEP, title=SWEEP_TITLE, heads=SWEEP_HEADS, rows=rows, notes=SWEEP_NOTES)


def draw(found: Table, path: Path) -> None:
    from dpdt.report.reproduction import bars

    rows = [{**row, "row": f"{row['mode']} {row['kind']}"} for row in found.rows]
    bars(rows, path, ours="accuracy", spread="spread", paper="paper_accuracy", label="accuracy")


def sweep_draw(found: Table, path: Path) -> None:
    from dpdt.report.reproduction import sweep

    sweep(found.rows, path)

"""The published algorithm under every reading of the paper that changes training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from dpdt.reproduce.scale import Asked, Column
from dpdt.reproduce.table import Head, Table
from dpdt.training.grid import Cell, Results

NAME, TITLE = "readings", "DP-DT as published, under each reading of the paper (docs/readings.md)"
HEADS = (
    Head(key="data", title="data"),
    Head(key="row", title="reading"),
    *RUN_HEADS,
    NOISE_HEADS[0],
    *LOST_HEADS,
    *LIMIT_HEADS,
)
NOTES = (
    'The first row is the preset. Its other readings of σ are in "main-results".',
    '"Lost to noise" is the difference to the same runs without noise. "Lost to bounds" is the '
    "difference from these to plain training.",
    "Clipped, step bound and noise/signal are from the last tenth, after S_t has fallen to 1.",
)
CONSTANT = "method.penalty_schedule=constant"
READINGS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dpdt": ("the preset: ρ grows from 0.1 to 10", ()),
    "rho-10": ("ρ = 10, constant", ("method.penalty=10.0", CONSTANT)),
    "rho-0.1": ("ρ = 0.1, constant", (CONSTANT,)),
    "rho-decay": ("ρ decays from 0.1 to 1e-5", ("method.penalty_schedule=paper-decay",)),
    "scaled-noise": ("S_t scales σ too", ("method.noise_schedule={}",)),
    "inverse-v": ("V = 1/v", ("method.preconditioner_power=1.0",)),
    "channel-norm": ("each channel normalised by itself", ("model.norm=channel",)),
    "lr-1e-3": ("η = 1e-3", ("method.lr=1e-3",)),
}


def _rows(asked: Asked) -> list[tuple[Column, str, list[Cell], list[Cell]]]:
    """Every row: its column, name, runs, and the same runs without noise."""
    found = []
    for column in asked.scale.columns[:1]:
        length = asked.config(column).train.epochs
        timetable = f'{{kind = "paper", over = {length}}}'
        decay = f'{{kind = "paper-decay", over = {length}}}'
        for name, (_, texts) in READINGS.items():
            sets = tuple(t.replace("{}", timetable).replace("paper-decay", decay) for t in texts)
            own = name if name == "dpdt" else f"dpdt-{name}"
            runs = asked.cells(column, own, sets, diagnose=True)
            quiet = controls(asked, column, own, sets)["without_noise"]
            found.append((column, name, runs, quiet))
    return found


def cells(asked: Asked) -> list[Cell]:
    best = plain(asked, asked.scale.columns[0])
    return [*best, *(c for _, _, runs, quiet in _rows(asked) for c in [*runs, *quiet])]


def table(asked: Asked, results: Results, out: Path) -> Table:
    rows: list[dict[str, Any]] = [
        {
            "data": column.title,
            "row": READINGS[name][0],
            "reading": name,
            **of_runs(results, runs),
            "without_noise": of_runs(results, quiet)["accuracy"],
            **limits(out, runs),
        }
        for column, name, runs, quiet in _rows(asked)
    ]
    best = plain(asked, asked.scale.columns[0])
    rows = [row | lost(results, row, best) for row in rows]
    return Table(name=NAME, title=TITLE, heads=HEADS, rows=rows, notes=NOTES)


def draw(found: Table, path: Path) -> None:
    from dpdt.report.reproduction import bars

    bars(found.rows, path, ours="accuracy", spread="spread", label="accuracy")

"""Figure 3b: accuracy against the claimed ε, epoch by epoch, for several K and B."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dpdt.reproduce.rows import NOISE_HEADS, RUN_HEADS, controls, of_runs
from dpdt.reproduce.scale import Asked, Column
from dpdt.reproduce.table import Head, Table
from dpdt.runs import Run
from dpdt.training.grid import Cell, Results

NAME = "auxiliaries-and-batches"
TITLE = "Figure 3b: the number of auxiliaries K and the size of mini-batches B"
HEADS = (
    Head(key="data", title="data"),
    Head(key="auxiliaries", title="K", form="number"),
    Head(key="batch_size", title="B", form="number"),
    *RUN_HEADS,
    *NOISE_HEADS,
)
NOTES = (
    "The paper prints no numbers for this figure, and no values of K and B: these are ours.",
    "One seed. Everything else, clip and noise above all, is as in the main experiment.",
    "The figure shows accuracy against the claimed ε after each epoch, both as means over a "
    "sliding window of a tenth of the epochs.",
)


def _rows(asked: Asked) -> list[tuple[Column, int, int, list[Cell], dict[str, list[Cell]]]]:
    found, one = [], replace(asked, seeds=1)
    for column in asked.scale.columns[:2]:  # those that the figure is about
        for auxiliaries in asked.scale.auxiliaries:
            for batch in asked.scale.batches:
                sets = (f"method.auxiliaries={auxiliaries}", f"train.batch_size={batch}")
                name = f"dpdt-K{auxiliaries}-B{batch}"
                runs, others = one.cells(column, name, sets), controls(one, column, name, sets)
                found.append((column, auxiliaries, batch, runs, others))
    return found


def cells(asked: Asked) -> list[Cell]:
    return [
        cell
        for _, _, _, runs, others in _rows(asked)
        for cell in [*runs, *(c for more in others.values() for c in more)]
    ]


def table(asked: Asked, results: Results, out: Path) -> Table:
    rows: list[dict[str, Any]] = []
    for column, auxiliaries, batch, runs, others in _rows(asked):
        rows.append(
            {
                "data": column.title,
                "auxiliaries": auxiliaries,
                "batch_size": batch,
                **of_runs(results, runs),
                **{k: of_runs(results, more)["accuracy"] for k, more in others.items()},
                "epochs": [
                    {"accuracy": r["accuracy"], "claimed": r["claimed"]}
                    for r in Run(out / runs[0].folder).private_metrics()
                ],
            }
        )
    return Table(name=NAME, title=TITLE, heads=HEADS, rows=rows, notes=NOTES)


def draw(found: Table, path: Path) -> None:
    from dpdt.report.reproduction import trajectories

    trajectories(found.rows, path)

"""Table 1: all methods on all data sets; DP-DT at the paper's noise and at an equal proven ε."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from dpdt.reproduce.scale import Asked, Column
from dpdt.reproduce.table import Head, Table
from dpdt.training.grid import Cell, Results

NAME, TITLE = "main-results", "Table 1: privacy and accuracy across data sets and methods"
HEADS = (
    Head(key="data", title="data"),
    Head(key="row", title="method"),
    Head(key="paper_epsilon", title="paper ε", form="number"),
    Head(key="paper_accuracy", title="paper %", form="percent"),
    *RUN_HEADS,
    *NOISE_HEADS,
    *LOST_HEADS,
    *LIMIT_HEADS,
)
NAMES = {
    "plain": "without privacy",
    "dpsgd": "DP-SGD, automatic clipping",
    "pate": "PATE",
    "gep": "GEP",
    "dpdt": "DP-DT, the paper's noise",
    "dpdt-proven": "DP-DT, at DP-SGD's proven ε",
}


def groups(asked: Asked) -> list[tuple[Column, str, list[Cell], dict[str, list[Cell]]]]:
    """Every row: its column, name, runs, and the same runs with other noise."""
    found = []
    for column in asked.scale.columns:
        numbers = printed(NAME, column.paper)
        for method in (m for m in numbers if m != "dpdt"):
            target = numbers[method].get("epsilon")
            sets = () if target is None else (f"privacy.epsilon={target}",)
            runs = asked.cells(column, method, sets, method)
            quiet = {}
            if method in ("dpsgd", "gep"):
                same = asked.cells(column, f"{method}-without_noise", ("method.noise=0.0",), method)
                quiet = {"without_noise": same}
            found.append((column, method, runs, quiet))
        others = controls(asked, column, "dpdt")
        found.append((column, "dpdt", asked.cells(column, "dpdt", diagnose=True), others))
        equal = (f"privacy.epsilon={numbers['dpsgd']['epsilon']}",)
        runs = asked.cells(column, "dpdt-proven", equal, diagnose=True)
        quiet = {"without_noise": others["without_noise"]}
        found.append((column, "dpdt-proven", runs, quiet))
    return found


def cells(asked: Asked) -> list[Cell]:
    return [
        cell
        for _, _, runs, others in groups(asked)
        for cell in [*runs, *(c for more in others.values() for c in more)]
    ]


def table(asked: Asked, results: Results, out: Path) -> Table:
    rows: list[dict[str, Any]] = []
    for column, name, runs, others in groups(asked):
        numbers = printed(NAME, column.paper).get(name, {})
        row = {
            "data": column.title,
            "row": NAMES[name],
            "method": name,
            "paper_epsilon": numbers.get("epsilon"),
            "paper_accuracy": numbers.get("accuracy") and numbers["accuracy"] / 100,
            **of_runs(results, runs),
            **limits(out, runs),
            **{k: of_runs(results, more)["accuracy"] for k, more in others.items()},
        }
        best = plain(asked, column)
        rows.append(row | (lost(results, row, best) if "without_noise" in row else {}))
    return Table(name=NAME, title=TITLE, heads=HEADS, rows=rows)


def draw(found: Table, path: Path) -> None:
    from dpdt.report.reproduction import bars

    bars(
        found.rows, path, ours="accuracy", spread="spread", paper="paper_accuracy", label="accuracy"
    )

"""The paper's tables and figures by name, each from one command, beside the printed numbers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from dpdt.errors import ArgumentError, one_of
from dpdt.reproduce import allocation, auxiliaries, main_results, membership, privacy, readings
from dpdt.reproduce.scale import SCALES, Asked
from dpdt.reproduce.table import Table
from dpdt.training import grid
from dpdt.training.grid import Cell, Results


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A table or figure of the paper.

    `cells` are the runs that it needs, `table` reads what they came to, `draw` draws the table.
    `minutes` is how long the small scale takes on two cores.
    """

    name: str
    title: str
    minutes: int
    cells: Callable[[Asked], list[Cell]]
    table: Callable[[Asked, Results, Path], Table]
    draw: Callable[[Table, Path], None]


def _of(module: ModuleType, minutes: int) -> Reproduction:
    return Reproduction(
        name=module.NAME,
        title=module.TITLE,
        minutes=minutes,
        cells=module.cells,
        table=module.table,
        draw=module.draw,
    )


REPRODUCTIONS = {
    found.name: found
    for found in (
        _of(main_results, 12),
        _of(allocation, 15),
        Reproduction(
            name=allocation.SWEEP,
            title=allocation.SWEEP_TITLE,
            minutes=8,
            cells=allocation.sweep_cells,
            table=allocation.sweep_table,
            draw=allocation.sweep_draw,
        ),
        _of(auxiliaries, 7),
        _of(membership, 8),
        _of(privacy, 1),
        _of(readings, 12),
    )
}


def reproduce(
    name: str,
    asked: Asked,
    out: Path,
    *,
    command: str,
    on_done: Callable[[int, int], None] = lambda done, of: None,
    jobs: int | None = None,
) -> Table:
    """Make the runs of a table or figure that are not there yet, and write it.

    Runs go to out/runs, which all reproductions share; the table and its figure to out/NAME.
    `on_done` hears how many runs are there, and of how many.
    """
    if name not in REPRODUCTIONS:
        raise ArgumentError("name", one_of(name, REPRODUCTIONS))
    chosen, began = REPRODUCTIONS[name], time.perf_counter()
    todo = list({cell.folder: cell for cell in chosen.cells(asked)}.values())
    runs = out / "runs"
    results = grid.make_on_all_cores(
        todo, runs, on_done=lambda done: on_done(done, len(todo)), jobs=jobs
    )
    facts = {
        "command": command,
        "scale": asked.scale.name,
        "runs": len(todo),
        "cores": os.cpu_count(),
        "run_seconds": round(sum(r["seconds"] for r in results.values())),
    }
    table = chosen.table(asked, results, runs)
    facts["seeds"] = max((row.get("seeds", 0) for row in table.rows), default=0)
    facts["seconds"] = round(time.perf_counter() - began)
    table = replace(table, facts=facts)
    table.write(out / name)
    chosen.draw(table, out / name / "figure.png")
    return table


__all__ = ["REPRODUCTIONS", "SCALES", "Asked", "Reproduction", "Table", "reproduce"]

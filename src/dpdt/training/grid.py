"""Many runs, each with its folder. Those that are there already are not made again."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from dpdt import models
from dpdt.config import Config
from dpdt.data import Examples
from dpdt.errors import InputError
from dpdt.runs import Run
from dpdt.runs.place import is_run
from dpdt.training import pool
from dpdt.training.run import load, run


class Interrupted(Exception):
    """The user asked to stop; finished runs are kept."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run to make: where, how, and what a reader calls it."""

    folder: str
    config: Config
    label: str
    diagnose: bool = False  # also keep what the convergence theory speaks of


Results = dict[str, dict[str, Any]]  # what each run came to, by its folder


def make(
    cells: Sequence[Cell],
    out: Path,
    *,
    announce: Callable[[str], None],
    show_progress: bool = False,
) -> Results:
    """Make every run that is not there yet, one after the other."""
    maker = _Maker(out)
    for number, cell in enumerate(cells, start=1):
        if Run(out / cell.folder).result() is None:
            announce(f"{number}/{len(cells)} {cell.label}")
            if not maker.make(cell, show_progress):
                raise Interrupted
    return _results(cells, out)


def make_on_all_cores(
    cells: Sequence[Cell], out: Path, *, on_done: Callable[[int], None], jobs: int | None = None
) -> Results:
    """The same, with a process for each core. `on_done` hears how many runs are there."""
    left = [cell for cell in cells if Run(out / cell.folder).result() is None]
    done = len(cells) - len(left)
    on_done(done)
    arguments = [(out, cell) for cell in left]
    try:
        for finished in pool.each(_make, arguments, jobs=jobs):
            if not finished:
                raise Interrupted
            done += 1
            on_done(done)
    except KeyboardInterrupt:  # every process has heard it too, and left a checkpoint
        raise Interrupted from None
    return _results(cells, out)


def _results(cells: Sequence[Cell], out: Path) -> Results:
    found = {}
    for cell in cells:
        folder = Run(out / cell.folder)
        _refuse_others(folder, cell.config)
        found[cell.folder] = folder.result() or {}
    return found


_MAKERS: dict[Path, _Maker] = {}  # of a worker process


def _make(out: Path, cell: Cell) -> bool:
    return _MAKERS.setdefault(out, _Maker(out)).make(cell, False)


class AtHand:
    """Examples that were loaded for one run, and serve the next too."""

    def __init__(self) -> None:
        self._found: tuple[Any, Examples] | None = None

    def of(self, settings: Config) -> Examples:
        """The examples of a configuration."""
        key = (settings.data, settings.model, settings.train.augment)
        if self._found is None or self._found[0] != key:
            self._found = (key, load(settings))
        return self._found[1]


class _Maker:
    """Makes runs below a folder."""

    def __init__(self, out: Path):
        self.out, self._examples = out, AtHand()

    def make(self, cell: Cell, show_progress: bool) -> bool:
        """Make a run, or go on with it; whether it was finished."""
        folder, settings = Run(self.out / cell.folder), cell.config
        resume = _can_go_on(folder, settings)
        if is_run(folder.path) and not resume:
            _refuse_others(folder, settings)
            _set_aside(folder.path)
        _forget_peak()
        outcome = run(
            settings,
            folder.path,
            show_progress=show_progress,
            diagnose=cell.diagnose,
            examples=self._examples.of(settings),
            resume=resume,
            kept=lambda done: folder.write_result({**done.as_json(), "peak_memory_mb": _peak()}),
        )
        return outcome.finished


def refuse_other_metrics(config: Config) -> None:
    """Refuse to compare runs that are not judged by accuracy."""
    task = models.task(config.model, config.data.facts())
    if task.metric != "accuracy":
        raise InputError(
            f"model.task: runs are compared by accuracy, and {task.name} is judged by "
            f"{task.metric}; train them one by one"
        )


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Runs that differ by their seed: mean and standard deviation of accuracy, the largest ε."""
    accuracies = [r["accuracy"] for r in records]
    found = [(r["privacy"]["proven"] or {}).get("epsilon") for r in records]
    proven = [e for e in found if e is not None]
    claimed = [
        g["epsilon"]
        for r in records
        for g in r["privacy"]["guarantees"]
        if g["accountant"] == "paper"
    ]
    return {
        "accuracy_mean": fmean(accuracies),
        "accuracy_spread": stdev(accuracies) if len(accuracies) > 1 else None,
        "seeds": len(records),
        "proven_epsilon": max(proven) if len(proven) == len(found) else None,
        "relation": records[0]["privacy"]["relation"],
        "claimed_epsilon": max((c for c in claimed if c is not None), default=None),
        "seconds": fmean(r["seconds"] for r in records),
        "peak_memory_mb": max(r["peak_memory_mb"] for r in records),
    }


def _refuse_others(folder: Run, settings: Config) -> None:
    if settings.as_tables() != folder.config.as_tables():
        raise InputError(f"{folder.path}: was run with other settings; choose a new folder")
    if folder.result() is None and folder.ledger().closed:
        raise InputError(
            f"{folder.path}: is a finished run that no comparison made; choose a new folder, or "
            "move it away"
        )


def _set_aside(folder: Path) -> None:
    """Keep what an interrupted run left, its ledger above all: what was spent stays known."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.interrupted-{number}")).exists():
        number += 1
    folder.rename(aside)


def _can_go_on(folder: Run, settings: Config) -> bool:
    """Whether an interrupted run of the same settings has a checkpoint."""
    if not (is_run(folder.path) and folder.has_checkpoint):
        return False
    return settings.as_tables() == folder.config.as_tables()


def _forget_peak() -> None:
    """Start measuring peak memory anew, where the system can, without what earlier runs left."""
    gc.collect()  # a run's model and step refer to each other, and may hold gigabytes
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Peak memory of this process in MB, data included."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

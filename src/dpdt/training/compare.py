"""Methods side by side on the same data, at the same proven ε. Each cell is a run with a folder."""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from dpdt import config
from dpdt.config import Config
from dpdt.data import Examples
from dpdt.errors import ArgumentError, InputError
from dpdt.methods import METHODS
from dpdt.runs import Run, is_run
from dpdt.training.run import load, run


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run to make: a method at a target ε (none for plain training) with a seed."""

    method: str
    epsilon: float | None
    seed: int

    @property
    def folder(self) -> str:
        target = "" if self.epsilon is None else f"-{self.epsilon:g}"
        return f"{self.method}{target}-{self.seed}"


class Interrupted(Exception):
    """The user asked to stop; finished cells are kept."""


def cells(
    chosen: Config, methods: Sequence[str], epsilons: Sequence[float], seeds: int
) -> list[Cell]:
    """All runs of a comparison; without methods, those that the data allow."""
    if not methods:
        methods = [m for m, c in METHODS.items() if chosen.data.public or not c.needs_public]
    for method in methods:
        if method not in METHODS:
            raise ArgumentError("methods", f"must be among {', '.join(METHODS)}, found {method!r}")
        if METHODS[method].needs_public and not chosen.data.public:
            raise InputError(f"data.public: {method} needs public examples; give their number")
    return [
        Cell(method=method, epsilon=epsilon, seed=seed)
        for method in methods
        for epsilon in (epsilons if METHODS[method].private else [None])
        for seed in range(seeds)
    ]


def compare(
    source: str,
    overrides: tuple[str, ...],
    todo: Sequence[Cell],
    out: Path,
    *,
    announce: Callable[[str], None],
    show_progress: bool,
) -> list[dict[str, Any]]:
    """Make every run that is not there yet; the rows of the table."""
    chosen = {cell: _configuration(source, overrides, cell) for cell in todo}  # all checked first
    results: dict[Cell, dict[str, Any]] = {}
    at_hand: tuple[Any, Examples] | None = None
    for number, cell in enumerate(todo, start=1):
        folder, settings = Run(out / cell.folder), chosen[cell]
        if folder.result() is None:
            resume = _can_go_on(folder, settings)
            if is_run(folder.path) and not resume:
                _refuse_others(folder, settings)
                _set_aside(folder.path)
            target = "" if cell.epsilon is None else f" at ε = {cell.epsilon:g}"
            announce(f"{number}/{len(todo)} {cell.method}{target}, seed {cell.seed}")
            key = (settings.data, settings.model, settings.train.augment)
            if at_hand is None or at_hand[0] != key:
                at_hand = (key, load(settings))
            _forget_peak()
            outcome = run(
                settings,
                folder.path,
                show_progress=show_progress,
                examples=at_hand[1],
                resume=resume,
            )
            if not outcome.finished:
                raise Interrupted
            record = {**outcome.as_json(), "peak_memory_mb": _peak()}
            folder.write_result(record)
        _refuse_others(folder, settings)
        results[cell] = folder.result() or {}
    return rows(results)


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


def _configuration(source: str, overrides: tuple[str, ...], cell: Cell) -> Config:
    extra: tuple[str, ...] = (f"train.seed={cell.seed}",)
    if cell.epsilon is not None:
        extra += (f"privacy.epsilon={cell.epsilon}",)
    return config.load(source, (*overrides, *extra), cell.method)


def rows(results: dict[Cell, dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each method and target: mean and standard deviation over seeds."""
    groups: dict[tuple[str, float | None], list[dict[str, Any]]] = {}
    for cell, record in results.items():
        groups.setdefault((cell.method, cell.epsilon), []).append(record)
    table = []
    for (method, epsilon), records in groups.items():
        accuracies = [r["accuracy"] for r in records]
        found = [(r["privacy"]["proven"] or {}).get("epsilon") for r in records]
        proven = [e for e in found if e is not None]
        claimed = [
            g["epsilon"]
            for r in records
            for g in r["privacy"]["guarantees"]
            if g["accountant"] == "paper"
        ]
        table.append(
            {
                "method": method,
                "target_epsilon": epsilon,
                "accuracy_mean": fmean(accuracies),
                "accuracy_spread": stdev(accuracies) if len(accuracies) > 1 else None,
                "seeds": len(records),
                "proven_epsilon": max(proven) if len(proven) == len(found) else None,
                "claimed_epsilon": max((c for c in claimed if c is not None), default=None),
                "seconds": fmean(r["seconds"] for r in records),
                "peak_memory_mb": max(r["peak_memory_mb"] for r in records),
            }
        )
    return table


def _forget_peak() -> None:
    """Start measuring peak memory anew, where the system can."""
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

"""Methods side by side on the same data, at the same proven ε. Each cell is a run with a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpdt import config
from dpdt.config import Config
from dpdt.errors import ArgumentError, InputError, one_of
from dpdt.methods import METHODS
from dpdt.training import grid


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

    @property
    def label(self) -> str:
        target = "" if self.epsilon is None else f" at ε = {self.epsilon:g}"
        return f"{self.method}{target}, seed {self.seed}"


def cells(
    chosen: Config, methods: Sequence[str], epsilons: Sequence[float], seeds: int
) -> list[Cell]:
    """All runs of a comparison; without methods, those that the data allow."""
    grid.refuse_other_metrics(chosen)
    if not methods:
        methods = [m for m, c in METHODS.items() if chosen.data.public or not c.needs_public]
    for method in methods:
        if method not in METHODS:
            raise ArgumentError("methods", one_of(method, METHODS))
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
    chosen = [  # all are checked before the first begins
        grid.Cell(
            folder=cell.folder,
            config=_configuration(source, overrides, cell),
            label=cell.label,
        )
        for cell in todo
    ]
    results = grid.make(chosen, out, announce=announce, show_progress=show_progress)
    return rows({cell: results[cell.folder] for cell in todo})


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
    return [
        {"method": method, "target_epsilon": epsilon, **grid.summary(records)}
        for (method, epsilon), records in groups.items()
    ]

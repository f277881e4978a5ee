"""What runs come to in a row of a table, and the runs that a row is read against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpdt.algorithm.diagnostics import summary as summary_of
from dpdt.reproduce.scale import NOISES, Asked, Column, read_as
from dpdt.reproduce.table import Head
from dpdt.runs import Run
from dpdt.training.grid import Cell, Results, summary

RUN_HEADS = (
    Head(key="claimed_epsilon", title="claimed ε", form="claimed"),
    Head(key="proven_epsilon", title="proven ε", form="proven"),
    Head(key="accuracy", title="accuracy %", form="percent"),
    Head(key="spread", title="±", form="percent"),
)
NOISE_HEADS = (
    Head(key="without_noise", title="no noise %", form="percent"),
    Head(key="noise_as_deviation", title="σ as deviation %", form="percent"),
    Head(key="noise_literal", title="σ literal %", form="percent"),
    Head(key="noise_follows_step", title="σ follows η̂ %", form="percent"),
)


LIMIT_HEADS = (
    Head(key="clipped", title="clipped %", form="percent"),
    Head(key="step_bound", title="step bound %", form="percent"),
    Head(key="noise_to_signal", title="noise/signal", form="number"),
)


def limits(out: Path, runs: Sequence[Cell]) -> dict[str, Any]:
    """What limits the first run of a row, if it was diagnosed."""
    records = Run(out / runs[0].folder).diagnostics() if runs[0].diagnose else []
    if not records:
        return {}
    found = summary_of(records)
    return {
        "clipped": found.clipped,
        "step_bound": found.step_bound,
        "noise_to_signal": found.noise_to_signal and float(f"{found.noise_to_signal:.2g}"),
    }


LOST_HEADS = (
    Head(key="lost_to_noise", title="lost to noise", form="percent"),
    Head(key="lost_to_bounds", title="lost to bounds", form="percent"),
)


def plain(asked: Asked, column: Column) -> list[Cell]:
    """Plain training, which rows of DP-DT are read against."""
    return asked.cells(column, "plain", (), "plain")


def lost(results: Results, row: dict[str, Any], best: Sequence[Cell]) -> dict[str, float]:
    """What is lost to noise, and what to the step bound and clipping, in accuracy.

    The first is the difference to the same runs without noise, the second that from these to plain
    training. Where a row is limited by the noise, the first is the larger.
    """
    quiet = row["without_noise"]
    return {
        "lost_to_noise": quiet - row["accuracy"],
        "lost_to_bounds": of_runs(results, best)["accuracy"] - quiet,
    }


def of_runs(results: Results, runs: Sequence[Cell]) -> dict[str, Any]:
    """Mean accuracy over seeds, its standard deviation, and the largest ε."""
    found = summary([results[cell.folder] for cell in runs])
    return {
        "accuracy": found["accuracy_mean"],
        "spread": found["accuracy_spread"],
        "seeds": found["seeds"],
        "claimed_epsilon": found["claimed_epsilon"],
        "proven_epsilon": found["proven_epsilon"],
        "relation": results[runs[0].folder]["privacy"]["relation"],
        "seconds": found["seconds"],
    }


def controls(
    asked: Asked, column: Column, name: str, sets: tuple[str, ...] = (), *, quiet: str | None = None
) -> dict[str, list[Cell]]:
    """The same runs without noise, and with the other readings of the paper's σ.

    `quiet` names the runs without noise, where several rows share them.
    """
    chosen = asked.config(column, sets)
    return {
        reading: asked.cells(
            column,
            quiet if quiet and reading == "without_noise" else f"{name}-{reading}",
            (*sets, *read_as(chosen, reading)),
        )
        for reading in NOISES
    }

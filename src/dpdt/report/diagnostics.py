"""A figure of a run's diagnostics over its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpdt.report.style import legend, new_figure, save

# A panel each: its title, whether its axis is logarithmic, and its curves.
PANELS: tuple[tuple[str, bool, dict[str, str]], ...] = (
    (
        "what limits the step",
        True,
        {
            "share_cut": "share clipped",
            "share_step_bound": "share of blocks at the step bound",
            "noise_to_signal": "noise/signal",
        },
    ),
    (
        "loss and Lagrangian",
        False,
        {
            "lagrangian": "augmented Lagrangian",
            "lyapunov": "Lyapunov function, without its tail",
            "reset_gap": "reset gap",
        },
    ),
    (
        "a step's changes and their bounds",
        False,
        {
            "global_change": "h + r by the step on θ",
            "global_bound": "its bound",
            "lyapunov_change": "Lyapunov function",
            "lyapunov_bound": "its bound",
        },
    ),
    (
        "distances",
        True,
        {
            "gradient_deviation": "gradient deviation ζ",
            "consensus_residual": "‖θ_k − θ‖",
            "clipping_bias": "clipping bias κ",
        },
    ),
)


def draw(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Every quantity over the steps. What does not exist for the run's memory has no curve."""
    figure, panels = new_figure(columns=len(PANELS))
    steps = [record["step"] for record in records]
    for axes, (title, logarithmic, curves) in zip(panels, PANELS, strict=True):
        for name, label in curves.items():
            values = [number(record[name], positive=logarithmic) for record in records]
            if any(math.isfinite(value) for value in values):
                axes.plot(steps, values, label=label, marker="." if len(steps) == 1 else "")
        axes.set(xlabel="steps", title=title, yscale="log" if logarithmic else "linear")
        legend(axes)
    figure.suptitle("Private: depends on the training data")
    save(figure, path)


def number(value: float | None, *, positive: bool) -> float:
    """The value, or NaN if it does not exist or has no place on a logarithmic axis."""
    return math.nan if value is None or (positive and value <= 0.0) else value

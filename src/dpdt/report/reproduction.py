"""Figures of the reproductions: bars beside the paper's, a sweep, and paths over epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpdt.report.style import GREY, HIGHER, legend_of_all, new_figure, save

Rows = list[dict[str, Any]]


def bars(
    rows: Rows,
    path: Path,
    *,
    ours: str,
    spread: str,
    label: str,
    paper: str | None = None,
    better: str = "higher",
) -> None:
    """A panel for each data set: ours with their spread, and the paper's numbers if there are."""
    panels = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = new_figure(columns=len(panels))
    for panel, name in zip(np.atleast_1d(axes), panels, strict=True):
        mine = [row for row in rows if row["data"] == name]
        places = np.arange(len(mine))
        own, around = ([_percent(r[k]) for r in mine] for k in (ours, spread))
        if paper is not None:
            theirs = [_percent(r[paper]) for r in mine]
            grey = {"color": "lightgrey", "label": "the paper's, on its own data"}
            panel.barh(places - 0.2, theirs, 0.4, **grey)
        panel.barh(places + 0.2, own, 0.4, xerr=around, capsize=3, label="this run")
        if "without_noise" in mine[-1]:
            quiet = [_percent(r.get("without_noise")) or np.nan for r in mine]
            panel.plot(quiet, places + 0.2, "k|", markersize=12, label="without noise")
        panel.set_yticks(places, [r["row"] for r in mine])
        panel.invert_yaxis()
        panel.set(xlabel=f"{label} in per cent ({better} is better)", title=name)
    legend_of_all(figure, axes)
    save(figure, path)


def _percent(value: float | None) -> float:
    return 0.0 if value is None else 100.0 * value


def sweep(rows: Rows, path: Path) -> None:
    """Accuracy over r for each boosted kind, a panel for each mode; the baseline is dashed."""
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    figure, axes = new_figure(columns=len(modes))
    for panel, mode in zip(np.atleast_1d(axes), modes, strict=True):
        mine = [row for row in rows if row["mode"] == mode]
        equal = next(row for row in mine if row["kind"] == "equal")
        panel.axhline(100 * equal["accuracy"], color=GREY, ls="--", label="equal")
        for kind in dict.fromkeys(r["kind"] for r in mine if r["kind"] != "equal"):
            points = sorted((r["boost"], r["accuracy"]) for r in mine if r["kind"] == kind)
            points = sorted([*points, (1.0, equal["accuracy"])])
            panel.plot([b for b, _ in points], [100 * a for _, a in points], "o-", label=kind)
        panel.set(
            xlabel="r, the boost of one kind (more is less noise)",
            ylabel=f"accuracy in per cent ({HIGHER})",
            title=f"mode {mode}",
        )
    legend_of_all(figure, axes)
    save(figure, path)


def trajectories(rows: Rows, path: Path) -> None:
    """Accuracy against the claimed ε over epochs, smoothed; to the right ε is smaller."""
    panels = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = new_figure(columns=len(panels))
    for panel, name in zip(np.atleast_1d(axes), panels, strict=True):
        for row in (r for r in rows if r["data"] == name):
            epochs = [e for e in row["epochs"] if e["claimed"] and e["accuracy"] is not None]
            width = max(1, len(epochs) // 10)
            claimed, accuracy = (
                smoothed([e[key] for e in epochs], width) for key in ("claimed", "accuracy")
            )
            label = f"K = {row['auxiliaries']}, B = {row['batch_size']}"
            panel.plot(claimed, 100 * accuracy, ".-", ms=3, lw=1, label=label)
        panel.invert_xaxis()
        panel.set(
            xlabel="claimed ε, which does not hold (to the right is less)",
            ylabel=f"accuracy in per cent ({HIGHER})",
            title=name,
        )
    legend_of_all(figure, axes)
    save(figure, path)


def smoothed(values: list[float], width: int) -> np.ndarray:
    """Means over a sliding window of some values."""
    return np.convolve(values, np.ones(width) / width, mode="valid")

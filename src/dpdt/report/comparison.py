"""The trade-off between privacy and accuracy, as a table and a picture."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_HALF_EVEN
from pathlib import Path
from typing import Any

from dpdt.accounting.guarantee import RELATIONS, shown
from dpdt.report.style import GREY, HIGHER, SMALLER, legend, new_figure, save


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    lines = [
        f"{'method':8} {'target ε':>8} {'accuracy':>18} {'proven ε':>9} {'claimed ε':>9} "
        f"{'seconds':>8} {'peak MB':>8}"
    ]
    for row in rows:
        spread = row["accuracy_spread"]
        accuracy = f"{row['accuracy_mean']:.4f}" + ("" if spread is None else f" ± {spread:.4f}")
        lines.append(
            f"{row['method']:8} {_number(row['target_epsilon'], '-'):>8} {accuracy:>18} "
            f"{_number(row['proven_epsilon'], '∞', ROUND_CEILING):>9} "
            f"{_number(row['claimed_epsilon'], '-'):>9} "
            f"{row['seconds']:8.1f} {row['peak_memory_mb']:8d}"
        )
    relations = {r["method"]: r["relation"] for r in rows if r["proven_epsilon"] is not None}
    if len(set(relations.values())) > 1:
        told = ", ".join(f"{name} {RELATIONS[found]}" for name, found in relations.items())
        lines.append(f"proven ε are not for the same change of the data: {told}")
    return "\n".join(lines)


def _number(x: float | None, otherwise: str, rounding: str = ROUND_HALF_EVEN) -> str:
    return otherwise if x is None else shown(x, rounding)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy over proven ε, a line for each method; at one target ε a point for each."""
    figure, axes = new_figure()
    if len({row["target_epsilon"] for row in rows} - {None}) > 1:
        _over_epsilon(rows, axes)
    else:
        _by_method(rows, axes)
    axes.set_ylabel(f"accuracy on held-out examples ({HIGHER})")
    legend(axes)
    save(figure, path)


def _over_epsilon(rows: list[dict[str, Any]], axes: Any) -> None:
    """Draw a line for each method. Plain training is a level."""
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        known = [row for row in mine if row["proven_epsilon"] is not None]
        if not known:
            axes.axhline(mine[0]["accuracy_mean"], color=GREY, linestyle=":", label=method)
            continue
        axes.errorbar(
            [row["proven_epsilon"] for row in known],
            [row["accuracy_mean"] for row in known],
            [row["accuracy_spread"] or 0.0 for row in known],
            marker="o",
            capsize=3,
            label=method,
        )
    axes.set(xscale="log", xlabel=f"{SMALLER} · proven ε")


def _by_method(rows: list[dict[str, Any]], axes: Any) -> None:
    """Draw a point for each method, with its ε below it. An axis of equal ε would say nothing."""
    places = range(len(rows))
    for place, row in zip(places, rows, strict=True):
        axes.errorbar(
            place, row["accuracy_mean"], row["accuracy_spread"] or 0.0, marker="o", capsize=3
        )
    proven = (_number(row["proven_epsilon"], "∞", ROUND_CEILING) for row in rows)
    names = [f"{row['method']}\nε ≤ {e}" for row, e in zip(rows, proven, strict=True)]
    axes.set_xticks(places, names)
    axes.set(xlim=(-0.5, len(rows) - 0.5), xlabel="method · proven ε")

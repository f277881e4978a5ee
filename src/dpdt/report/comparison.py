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
    """Accuracy over proven ε, with a line for each method. Plain training is a level."""
    figure, axes = new_figure()
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
    axes.set_ylabel(f"accuracy on held-out examples ({HIGHER})")
    legend(axes)
    save(figure, path)

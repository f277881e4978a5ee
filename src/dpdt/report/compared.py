"""Charts of several runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_FLOOR
from typing import Any

from dpdt.accounting.guarantee import short, shown
from dpdt.report.charts import CATEGORIES, Chart, layout_of, literal, relation, scale_of, up
from dpdt.report.facts import Facts
from dpdt.report.style import COLOURS, SMALLER

LOOKS = (("proven", "circle", 0), ("claimed", "diamond-open", 1), ("measured", "triangle-right", 2))


def epsilons(runs: Sequence[Facts]) -> Chart:
    """Every ε of every run."""
    names = [literal(run.name) for run in runs]
    found = [
        {"proven": _finite(r), "claimed": r.privacy.claimed, "measured": _measured(r)} for r in runs
    ]
    traces: list[dict[str, Any]] = []
    toggles = []
    for kind, look, colour in LOOKS:
        values = [f[kind] for f in found]
        if any(v is not None for v in values):
            toggles.append((len(traces), kind, colour, False))
            mark = {"symbol": look, "size": 13, "color": COLOURS[colour],
                    "line": {"width": 2, "color": COLOURS[colour]}}  # fmt: skip
            traces.append({"x": values, "y": names, "mode": "markers", "marker": mark,
                           "name": kind, "cliponaxis": False,
                           "hovertemplate": f"%{{y}}<br>{kind} ε: %{{x:.4g}}<extra></extra>",
                           })  # fmt: skip
    axis, _, _ = scale_of([v for f in found for v in f.values() if v is not None])
    layout = layout_of(f"{SMALLER} · ε", "", height=110 + 44 * len(runs))
    layout["xaxis"] |= axis
    layout["yaxis"] |= CATEGORIES
    rows = [_row(run) for run in runs]
    return Chart(
        key="epsilons",
        title="ε of all runs",
        alt="; ".join(f"{run.name}: proven {row[1]}" for run, row in zip(runs, rows, strict=True)),
        note="Proven ε are upper bounds, measured ones lower bounds. A claim bounds nothing "
        "unless its conditions hold.",
        traces=traces,
        layout=layout,
        columns=["run", "proven ε", "claimed ε", "method", "epochs", "about", "δ"],
        rows=rows,
        toggles=toggles,
    )


def comparable(runs: Sequence[Facts]) -> str:
    """Whether the ε are about the same thing."""
    proven = [run.privacy.proven for run in runs]
    about = {(relation(g), g.delta) for g in proven if g is not None}
    if len(about) < 2:
        return "All ε are for the same change of the data and the same δ."
    told = "; ".join(f"{change}, δ = {short(delta)}" for change, delta in sorted(about))
    return f"These ε are not for the same thing, and must not be compared directly: {told}."


def trade_off(runs: Sequence[Facts]) -> Chart | None:
    """Accuracy over proven ε, which is private."""
    known = [r for r in runs if r.private and r.private.accuracy is not None and _finite(r)]
    if len(known) < 2:
        return None
    x = [_finite(r) for r in known]
    y = [r.private.accuracy for r in known if r.private]
    names = [literal(r.name) for r in known]
    points = {"x": x, "y": y, "text": names, "mode": "markers+text", "textposition": "top center",
              "cliponaxis": False, "marker": {"size": 12, "color": COLOURS[0]},
              "hovertemplate": "%{text}<br>proven ε %{x:.4g}<br>accuracy %{y:.2%}<extra></extra>",
              }  # fmt: skip
    layout = layout_of(f"{SMALLER} · proven ε", "accuracy")
    layout["yaxis"] |= {"tickformat": ".0%"}
    layout["margin"] = {**layout["margin"], "t": 36, "r": 40}
    rows = [[r.name, up(e), f"{a:.2%}"] for r, e, a in zip(known, x, y, strict=True) if e]
    return Chart(
        key="tradeoff",
        title="Accuracy over proven ε",
        alt="; ".join(f"{name}: accuracy {a} at ε ≤ {e}" for name, e, a in rows),
        note="Up and to the left is better.",
        traces=[points],
        layout=layout,
        columns=["run", "proven ε", "accuracy"],
        rows=rows,
    )


def _row(run: Facts) -> list[str]:
    proven, claimed = run.privacy.proven, run.privacy.claimed
    header = run.ledger.header
    return [
        run.name,
        f"≤ {up(proven.epsilon)}" if proven and proven.applies else "nothing is proven",
        "–" if claimed is None else shown(claimed),
        header.method,
        f"{run.privacy.epochs:.4g}",
        relation(proven) if proven else "–",
        short(run.privacy.delta),
    ]


def _finite(run: Facts) -> float | None:
    return run.privacy.epsilon if math.isfinite(run.privacy.epsilon) else None


def _measured(run: Facts) -> float | None:
    return run.privacy.measured.epsilon if run.privacy.measured else None


def measured_words(run: Facts) -> str:
    """The measured bound in words."""
    m = run.privacy.measured
    return (
        ""
        if m is None
        else f"ε ≥ {shown(m.epsilon, ROUND_FLOOR)} with {m.confidence:.0%} confidence ({m.how})"
    )

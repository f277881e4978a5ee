"""Charts of several runs side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_FLOOR
from typing import Any

from dpdt.accounting.guarantee import short, shown
from dpdt.report.charts import CATEGORIES, Chart, layout_of, literal, narrow, relation, scale_of, up
from dpdt.report.facts import Facts
from dpdt.report.style import COLOURS, HIGHER, SMALLER

LOOKS = (("proven", "circle", 0), ("claimed", "diamond-open", 1), ("measured", "triangle-right", 2))


def epsilons(runs: Sequence[Facts]) -> Chart:
    """Every ε of every run."""
    names, places = [literal(run.name) for run in runs], [str(i) for i in range(len(runs))]
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
            traces.append({"x": values, "y": places, "mode": "markers", "marker": mark,
                           "name": kind, "cliponaxis": False, "text": names,
                           "hovertemplate": f"%{{text}}<br>{kind} ε: %{{x:.4g}}<extra></extra>",
                           })  # fmt: skip
    axis, _, _ = scale_of([v for f in found for v in f.values() if v is not None])
    layout = layout_of(f"{SMALLER} · ε", "", height=110 + 44 * len(runs))
    layout["xaxis"] |= axis
    layout["yaxis"] |= CATEGORIES
    layout["yaxis"] |= {"tickvals": places, "ticktext": [narrow(run.name) for run in runs]}
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
    """Accuracy over proven ε, a colour for each method.

    Accuracy is private, unless a certificate has published it.
    """
    points = [(run, _finite(run), _accuracy(run)) for run in runs]
    known = [(run, e, a) for run, e, a in points if e is not None and a is not None]
    if len(known) < 2:
        return None
    methods = list(dict.fromkeys(run.ledger.header.method for run, _, _ in known))
    traces: list[dict[str, Any]] = []
    for number, method in enumerate(methods):
        mine = [each for each in known if each[0].ledger.header.method == method]
        traces.append({"x": [e for _, e, _ in mine], "y": [a for _, _, a in mine],
                       "text": [narrow(run.name) for run, _, _ in mine], "name": method,
                       "mode": "markers+text", "textposition": "top center", "cliponaxis": False,
                       "marker": {"size": 12, "color": COLOURS[number % len(COLOURS)]},
                       "hovertemplate": f"%{{text}}, {method}<br>proven ε %{{x:.4g}}<br>"
                       "accuracy %{y:.2%}<extra></extra>"})  # fmt: skip
    layout = layout_of(f"{SMALLER} · proven ε", f"accuracy ({HIGHER})")
    layout["xaxis"] |= scale_of([e for _, e, _ in known])[0]
    layout["yaxis"] |= {"tickformat": ".2~%"}
    layout["margin"] = {**layout["margin"], "t": 60, "r": 40}
    rows = [[run.name, run.ledger.header.method, up(e), f"{a:.2%}"] for run, e, a in known]
    return Chart(
        key="tradeoff",
        title="Accuracy over proven ε",
        alt="; ".join(f"{name}, {method}: accuracy {a} at ε ≤ {e}" for name, method, e, a in rows),
        note="Up and to the left is better."
        + ("" if known[0][0].private else " These results were published with the models."),
        traces=traces,
        layout=layout,
        columns=["run", "method", "proven ε", "accuracy"],
        rows=rows,
        toggles=[(i, name, i % len(COLOURS), False) for i, name in enumerate(methods)],
    )


def _accuracy(run: Facts) -> float | None:
    """What a page may say of it: all if it is private, else what a certificate says."""
    if run.private:
        return run.private.accuracy
    published = ((run.released or {}).get("certificate") or {}).get("accuracy")
    return published["value"] if published else None


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

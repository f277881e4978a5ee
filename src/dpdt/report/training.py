"""Charts of what depends on the training data: by epoch, and by step where a run was diagnosed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpdt.report.charts import Chart, layout_of
from dpdt.report.diagnostics import PANELS, number
from dpdt.report.facts import Facts, Private, is_number
from dpdt.report.style import COLOURS
from dpdt.tasks import METRICS

STEPS = 400  # that a chart shows at most


def charts(facts: Facts) -> list[Chart]:
    """All of them; none without `private`."""
    seen = facts.private
    if seen is None:
        return []
    found = [_by_epoch(seen, name) for name in (*METRICS, "loss")]
    return [chart for chart in (*found, *_by_step(seen.steps)) if chart is not None]


def _by_epoch(seen: Private, name: str) -> Chart | None:
    points = [(r["epoch"], r[name]) for r in seen.epochs if is_number(r[name])]
    if not points:
        return None
    share = name.endswith("accuracy")
    digits, words = ".2%" if share else ".4g", name.replace("_", " ")
    where = "training" if name == "loss" else "held-out"
    better = "Higher" if share else "Lower"
    line = {"x": [p[0] for p in points], "y": [p[1] for p in points], "mode": "lines+markers",
            "marker": {"size": 4}, "line": {"color": COLOURS[0], "width": 2},
            "hovertemplate": f"epoch %{{x}}: %{{y:{digits}}}<extra></extra>"}  # fmt: skip
    layout = layout_of("epochs", words, height=280)
    layout["yaxis"] |= {"tickformat": ".0%"} if share else {}
    end = f"{points[-1][1]:{digits}}"
    return Chart(
        key=name, title=f"{words.capitalize()} by epoch",
        alt=f"{words} by epoch, {end} in the end.",
        note=f"On {where} examples. {better} is better.", traces=[line], layout=layout,
        columns=["epoch", words], rows=[[str(e), f"{v:{digits}}"] for e, v in points],
    )  # fmt: skip


def _by_step(records: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The quantities of the convergence theory (docs/diagnostics.md)."""
    records = records[:: -(-len(records) // STEPS) or 1]
    steps, found = [record["step"] for record in records], []
    for title, logarithmic, curves in PANELS:
        values = [
            (label, [_shown(record.get(name), logarithmic) for record in records])
            for name, label in curves.items()
        ]
        known = [(label, y) for label, y in values if any(v is not None for v in y)]
        if not known:
            continue
        names = [label for label, _ in known]
        traces = [
            {"x": steps, "y": y, "name": label, "mode": "lines+markers", "marker": {"size": 3},
             "line": {"color": COLOURS[n], "width": 2}, "showlegend": False,
             "hovertemplate": f"{label}, step %{{x}}: %{{y:.4g}}<extra></extra>"}
            for n, (label, y) in enumerate(known)
        ]  # fmt: skip
        layout = layout_of("steps", title, height=280)
        layout["yaxis"] |= {"type": "log"} if logarithmic else {}
        rows = [
            [str(step), *("–" if y[i] is None else f"{y[i]:.4g}" for _, y in known)]
            for i, step in enumerate(steps)
        ]
        found.append(Chart(
            key=title.replace(" ", "-").replace("'", ""), title=title.capitalize(),
            alt=f"{', '.join(names)} by step.",
            note="Of the convergence theory, as docs/diagnostics.md says.", traces=traces,
            layout=layout, columns=["step", *names], rows=rows,
            toggles=[(n, label, n, False) for n, label in enumerate(names)],
        ))  # fmt: skip
    return found


def _shown(value: float | None, logarithmic: bool) -> float | None:
    """JSON has no NaN."""
    found = number(value, positive=logarithmic)
    return found if is_number(found) else None

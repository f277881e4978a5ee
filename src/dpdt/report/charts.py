"""Charts of a page: what Plotly draws, the same in words, and the same as a table."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR
from typing import Any

import numpy as np

from dpdt.accounting.guarantee import RELATIONS, Guarantee, Privacy, short, shown
from dpdt.report.attacker import Pairs, most_found, percent
from dpdt.report.facts import Facts
from dpdt.report.style import COLOURS, GREY, LOWER, SMALLER, number_of

CATEGORIES = {"type": "category", "autorange": "reversed", "showgrid": False}
RATES = tuple(float(r) for r in np.geomspace(1e-4, 1.0, 81))
TOLD_RATES = (1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.5)
SPREAD = 20.0  # beyond this ratio an axis is logarithmic
LONGEST = 40  # characters of a name
NARROW = 14  # those of a line of it beside an axis


@dataclass(frozen=True, kw_only=True)
class Chart:
    """`key` tells charts of one run apart. A toggle is a curve's number, name and look."""

    key: str
    title: str
    alt: str
    note: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    columns: list[str]
    rows: list[list[str]]
    toggles: list[tuple[int, str, int, bool]] = field(default_factory=list)


def literal(text: str) -> str:
    """A text that Plotly shows as it is: no tags, no templates."""
    text = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
    return html.escape(text).replace("%", "&#37;")


def narrow(text: str) -> str:
    """A name beside an axis, in short lines: on a phone there is room for no more."""
    lines = textwrap.wrap(text, NARROW, break_on_hyphens=True, max_lines=3, placeholder="…")
    return "<br>".join(literal(line) for line in lines)


def headline(facts: Facts) -> Chart:
    """The proven, claimed and measured ε on one axis."""
    privacy = facts.privacy
    proven = privacy.proven if math.isfinite(privacy.epsilon) else None
    found: list[tuple[str, str, float, str, str]] = []
    if proven:
        word = "proven" if privacy.closed else "so far"
        found.append((word, f"ε ≤ {up(proven.epsilon)}", proven.epsilon, "triangle-left", "0"))
    if privacy.claimed is not None:
        valid = any(g.valid for g in privacy.guarantees if g.accountant == "paper")
        look = "diamond" if valid else "diamond-open"
        found.append(("claimed", f"ε = {shown(privacy.claimed)}", privacy.claimed, look, "1"))
    if privacy.measured:
        least = privacy.measured.epsilon
        found.append(("measured", f"ε ≥ {shown(least, ROUND_FLOOR)}", least, "triangle-right", "2"))
    axis, least, most = scale_of([epsilon for _, _, epsilon, _, _ in found])
    traces = []
    for word, told, epsilon, look, colour in found:
        place, paint = f"{word}<br>{told}", COLOURS[int(colour)]
        if word != "claimed":
            ends = [least, epsilon] if look == "triangle-left" else [epsilon, most]
            line = {"color": paint, "width": 8}
            traces.append({"x": ends, "y": [place] * 2, "mode": "lines", "line": line,
                           "opacity": 0.35, "hoverinfo": "skip"})  # fmt: skip
        mark = {"symbol": look, "size": 15, "color": paint, "line": {"width": 2, "color": paint}}
        traces.append({"x": [epsilon], "y": [place], "mode": "markers", "marker": mark,
                       "cliponaxis": False,
                       "hovertemplate": f"{word}: {told}<extra></extra>"})  # fmt: skip
    said = "; ".join(f"{word} {told}" for word, told, _, _, _ in found) or "no ε at all"
    layout = layout_of(
        f"{SMALLER} · ε at δ = {short(privacy.delta)}", "", height=80 + 48 * len(found)
    )
    layout["xaxis"] |= axis
    layout["yaxis"] |= CATEGORIES
    hidden = "" if facts.private else " An ε that an audit has measured is private, and left out."
    return Chart(
        key="headline",
        title="The ε of this run on one axis",
        alt=f"Every ε of the run on one axis: {said}.",
        note="A proven ε is an upper bound, a measured one a lower bound: the truth lies between. "
        f"A claim whose conditions fail (open mark) bounds nothing.{hidden}",
        traces=traces,
        layout=layout,
        columns=["kind", "ε"],
        rows=[[word, told] for word, told, _, _, _ in found],
    )


def epochs(facts: Facts) -> Chart | None:
    """ε over the epochs of a run, for each accountant that has a number."""
    return None if facts.curves is None else over_epochs(facts.curves, facts.privacy)


def over_epochs(curves: dict[str, Any], privacy: Privacy) -> Chart | None:
    """ε over epochs. An accountant has its colour wherever it appears. None: there is no curve."""
    at, names = curves["epochs"], [n for n in curves if n != "epochs"]
    by_name = {g.accountant: g for g in privacy.guarantees}
    traces, toggles = [], []
    for number, name in enumerate(names):
        valid, colour = by_name[name].valid, number_of(name)
        line = {"color": COLOURS[colour], "width": 2.5, "dash": "solid" if valid else "dash"}
        traces.append({"x": at, "y": curves[name], "mode": "lines+markers", "line": line,
                       "marker": {"size": 5}, "name": name,
                       "hovertemplate": f"{name}<br>epoch %{{x}}: ε = %{{y:.4g}}<extra></extra>",
                       })  # fmt: skip
        told = name if valid else f"{name} (claimed, not valid)"
        toggles.append((number, told, colour, not valid))
    if not names:
        return None
    layout = layout_of("epochs", f"ε at δ = {short(privacy.delta)} · {LOWER}")
    ends = [e for e in (curves[n][-1] for n in names) if e]
    wide = bool(ends) and max(ends) / min(ends) > SPREAD
    layout["yaxis"] |= {"type": "log", "nticks": 6} if wide else {"rangemode": "tozero"}
    cells = {n: [_or_none(e, by_name[n].valid) for e in curves[n]] for n in names}
    last = "; ".join(f"{n} {cells[n][-1]}" for n in names)
    return Chart(
        key="epochs",
        title="ε over epochs",
        alt=f"ε of each accountant over {at[-1]} epochs, in the end: {last}.",
        note="Lower is more private. Solid lines are bounds that hold. Dashed lines are claims "
        "whose conditions fail.",
        traces=traces,
        layout=layout,
        columns=["epoch", *names],
        rows=[[str(e), *(cells[n][i] for n in names)] for i, e in enumerate(at)],
        toggles=toggles,
    )


def attacker(runs: Sequence[tuple[str, Pairs]]) -> Chart | None:
    """The most that any attack finds, over its false positives. One curve a run."""
    known = [(name, pairs) for name, pairs in runs if pairs]
    if not known:
        return None
    traces, toggles = [], []
    for number, (name, pairs) in enumerate(known):
        line = {"color": COLOURS[number % len(COLOURS)], "width": 2.5}
        label = literal(name)
        traces.append({"x": RATES, "y": [most_found(pairs, r) for r in RATES], "mode": "lines",
                       "line": line, "name": label,
                       "hovertemplate": f"{label}<br>false positives %{{x:.2%}}<br>true "
                       "positives at most %{y:.2%}<extra></extra>"})  # fmt: skip
        toggles.append((number, name, number % len(COLOURS), False))
    traces.append({"x": RATES, "y": RATES, "mode": "lines", "name": "blind guessing",
                   "line": {"color": GREY, "width": 2, "dash": "dot"},
                   "hoverinfo": "skip"})  # fmt: skip
    toggles.append((len(known), "blind guessing", len(COLOURS), True))
    layout = layout_of("false positives", "true positives, at most")
    layout["xaxis"] |= {"type": "log", "tickformat": "~%", "dtick": 1}
    layout["yaxis"] |= {"tickformat": ".0%", "range": [0, 1.02]}
    one = "; ".join(f"{name} {percent(most_found(p, 0.01))} %" for name, p in known)
    return Chart(
        key="attacker",
        title="What an attacker can do at most",
        alt=f"Upper bounds on the true positives of any attack. At 1 % false positives: {one}.",
        note="True positives are records that an attack finds, false positives those that it "
        "wrongly accuses. Lower is more private. Below a curve is what attacks may reach; above "
        "it is what none can. Blind guessing is the floor.",
        traces=traces,
        layout=layout,
        columns=["false positives", *(name for name, _ in known)],
        rows=[
            [f"{100 * r:g} %", *(f"≤ {percent(most_found(p, r))} %" for _, p in known)]
            for r in TOLD_RATES
        ],
        toggles=toggles,
    )


def kinds(facts: Facts) -> Chart | None:
    """The share of the privacy budget that each kind of block takes."""
    if not facts.kinds:
        return None
    names, shares = [k.name for k in facts.kinds], [k.share for k in facts.kinds]
    bars = {"type": "bar", "orientation": "h", "x": shares, "y": [literal(n) for n in names],
            "marker": {"color": COLOURS[0]},
            "hovertemplate": "%{y}: %{x:.1%}<extra></extra>"}  # fmt: skip
    layout = layout_of("share of the budget", "", height=110 + 40 * len(names))
    layout["xaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    layout["yaxis"] |= CATEGORIES
    return Chart(
        key="kinds",
        title="Budget by kind of layer",
        alt="; ".join(f"{n} takes {s:.1%}" for n, s in zip(names, shares, strict=True)) + ".",
        note="Shares of (C/σ)², summed over blocks and steps: that is what composition adds up.",
        traces=[bars],
        layout=layout,
        columns=["kind", "blocks", "parameters", "share"],
        rows=[
            [k.name, str(k.blocks), f"{k.parameters:,}".replace(",", " "), f"{k.share:.1%}"]
            for k in facts.kinds
        ],
    )


def scale_of(values: Sequence[float]) -> tuple[dict[str, Any], float, float]:
    """An axis on which all values have a place, and its ends."""
    most, least = max(values, default=1.0) or 1.0, min(values, default=1.0)
    if least > 0.0 and most / least > SPREAD:
        low, high = least / 2.0, most * 2.0
        return {"type": "log", "range": [math.log10(low), math.log10(high)]}, low, high
    return {"range": [0.0, 1.15 * most]}, 0.0, 1.15 * most


def layout_of(x: str, y: str, height: int = 340) -> dict[str, Any]:
    clear = "rgba(0,0,0,0)"
    axis = {"automargin": True, "fixedrange": True, "zeroline": False,
            "ticks": "outside", "ticklen": 6, "tickcolor": clear}  # fmt: skip
    return {
        "height": height,
        "autosize": True,
        "margin": {"l": 8, "r": 16, "t": 12, "b": 8},
        "paper_bgcolor": clear,
        "plot_bgcolor": clear,
        "showlegend": False,
        "dragmode": False,
        "hovermode": "closest",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hoverlabel": {"bgcolor": "#20262d", "bordercolor": "#8a94a0", "font": {"color": "#fff"}},
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
    }


def up(epsilon: float) -> str:
    """An upper bound, rounded up."""
    return shown(epsilon, ROUND_CEILING)


def _or_none(epsilon: float | None, bound: bool) -> str:
    """A bound is rounded up, a claim to the nearest."""
    return "–" if epsilon is None else up(epsilon) if bound else shown(epsilon)


def relation(g: Guarantee) -> str:
    """Which change of the data a guarantee is about."""
    return f"{RELATIONS[g.relation]} {g.unit}"

"""Figures of ε over epochs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpdt.accounting import ACCOUNTANTS
from dpdt.accounting.paper import leak, mixture
from dpdt.errors import InputError
from dpdt.ledger import Ledger, Setting
from dpdt.report.style import COLOURS, GREY, LOWER, colour_of, legend, new_figure, save

POINTS = 40  # epochs at which curves are computed


def first_epochs(ledger: Ledger, epochs: int) -> Ledger:
    """The ledger as it stood after some epochs."""
    left, runs = epochs * ledger.header.batches, []
    for run in ledger.runs:
        if left > 0:
            runs.append(replace(run, steps=min(run.steps, left)))
        left -= run.steps
    return replace(ledger, runs=runs)


def over_epochs(ledger: Ledger, delta: float, points: int = POINTS) -> dict[str, Any]:
    """ε of every accountant after some epochs: {"epochs", accountant: [ε or None]}."""
    total = math.ceil(ledger.epochs)
    if total < 1:
        raise InputError("the run has no steps to draw")
    epochs = list(range(1, total + 1))
    if total > points:
        epochs = sorted({round(e) for e in np.geomspace(1, total, points)})
    curves: dict[str, Any] = {"epochs": epochs}
    for accountant in ACCOUNTANTS:
        values = [accountant.guarantee(first_epochs(ledger, e), delta).epsilon for e in epochs]
        if any(math.isfinite(v) for v in values):
            curves[accountant.name] = [v if math.isfinite(v) else None for v in values]
    return curves


def draw_over_epochs(ledger: Ledger, delta: float, path: Path) -> None:
    """Every accountant in one picture. Valid bounds are solid, claims are dashed."""
    figure, axes = new_figure()
    curves = over_epochs(ledger, delta)
    for accountant in ACCOUNTANTS:
        if accountant.name in curves:
            valid = accountant.guarantee(ledger, delta).valid
            axes.plot(
                curves["epochs"],
                [math.nan if v is None else v for v in curves[accountant.name]],
                "-" if valid else "--",
                color=colour_of(accountant.name),
                label=accountant.name + ("" if valid else " (claimed, not valid)"),
            )
    axes.set(xscale="log", yscale="log", xlabel="epochs", ylabel=f"ε at δ = {delta:g} ({LOWER})")
    legend(axes)
    save(figure, path)


# The parameters under the paper's figure of privacy over epochs: sensitivity S_g, mini-batches of
# b of n examples, L_F, L_T = 1, η̂ and α. A mean of b contributions has sensitivity S_g/b. The
# paper gives neither the noise nor its growth: σ and GROWTH are ours, chosen to show the shapes.
SENSITIVITY, BATCH, EXAMPLES, L_F, STEP, ALPHA = 1.0, 100, 2500, 0.98, 0.05, 10.0
BATCHES, SIGMA, GROWTH = EXAMPLES // BATCH, 0.04, 1.05


def _paper_settings(epochs: int, adaptive: bool) -> list[Setting]:
    """Constant noise, or noise that grows every epoch ("adaptive")."""
    return [
        Setting(
            clip=(SENSITIVITY,),
            noise=(SIGMA * (GROWTH**epoch if adaptive else 1.0),),
            penalty=(1.0 - L_F) / STEP,
            lr=STEP,
            global_lr=1.0 - L_F,
            step_size=STEP,
            contraction=1.0,
        )
        for epoch in range(epochs)
    ]


def paper_leaks(epochs: int, adaptive: bool) -> np.ndarray:
    """a(m0) of the paper's example after some epochs."""
    settings = _paper_settings(epochs, adaptive)
    values = tuple((s.clip[0], s.noise[0]) for s in settings)
    return leak(settings, [BATCHES] * epochs, values, BATCH, BATCHES)


def paper_losses(epochs: int, adaptive: bool) -> list[float]:
    """ε_E(α) of the paper's example for E = 1 … epochs."""
    order = np.array([ALPHA])
    return [float(mixture(paper_leaks(e, adaptive), order)[0]) for e in range(1, epochs + 1)]


def paper_contributions(epochs: int, adaptive: bool) -> list[float]:
    """The part of each epoch l in ε_E(α), averaged over m0."""
    settings = _paper_settings(epochs, adaptive)
    parts = []
    for chosen in range(epochs):
        values = tuple(
            (s.clip[0] if epoch == chosen else 0.0, s.noise[0]) for epoch, s in enumerate(settings)
        )
        a = leak(settings, [BATCHES] * epochs, values, BATCH, BATCHES)
        parts.append(ALPHA * float(a.mean()))
    return parts


def draw_paper(path: Path, epochs: int = 60, fixed: int = 20) -> None:
    """The paper's two panels: ε_E over E, and each epoch's part for E = 20."""
    figure, (left, right) = new_figure(columns=2)
    for adaptive, name in ((False, "constant noise"), (True, "adaptive noise")):
        left.plot(range(1, epochs + 1), paper_losses(epochs, adaptive), label=name)
        right.plot(range(1, fixed + 1), paper_contributions(fixed, adaptive), label=name)
    left.axvline(fixed, color=GREY, lw=0.8)
    told = f"claimed ε_E(α), α = {ALPHA:g} ({LOWER})"
    left.set(xlabel="E", ylabel=told, title="claimed loss over epochs")
    right.set(xlabel="l", yscale="log", title=f"part of epoch l, E = {fixed}")
    noise = right.twinx()
    noise.grid(False)
    for adaptive in (False, True):
        squares = [s.noise[0] ** 2 for s in _paper_settings(fixed, adaptive)]
        noise.plot(range(1, fixed + 1), squares, ":", lw=1, color=COLOURS[adaptive])
    noise.set_ylabel("noise variance (dotted)")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
        legend(axes)
    figure.suptitle("The paper's bound, which does not hold for a run with resets")
    save(figure, path)

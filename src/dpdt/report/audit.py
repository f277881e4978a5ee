"""What attacks found, as tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpdt.accounting.guarantee import shown
from dpdt.report.style import GREY, LOWER, colour_of, legend, new_figure, save

if TYPE_CHECKING:
    from dpdt.audit.run import Curves, Report
    from dpdt.audit.worst_case import Case


LEARNT = {  # on what the thresholds of metric attacks were
    "own": "Thresholds were learnt on one half of the examples and judged on the other.",
    "shadow": "Metric attacks learnt thresholds on a shadow model, and judged other examples.",
}


def table(report: Report) -> str:
    """The attacks on a run, then what they say of its guarantees."""
    lines = [f"{'attack':28} {'AUC':>22} {'accuracy':>22} {'TPR at 1% FPR':>14}"]
    for a in report.attacks:
        lines.append(
            f"{a.attack:28} {_interval(a.auc, a.auc_interval):>22} "
            f"{_interval(a.accuracy, a.accuracy_interval):>22} {a.tpr_at_1e_2_fpr:14.4f}"
        )
    lines += ["", LEARNT[report.thresholds], "", str(report.privacy), "", verdict(report)]
    return "\n".join(lines)


def _interval(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"


def verdict(report: Report) -> str:
    """What the attacks mean for the run's guarantees, in a sentence or two."""
    one = report.one_run
    guesses = None if one is None else (one.right, one.guesses)
    return verdict_of(guesses, report.refuted, report.claims_refuted)


def verdict_of(
    guesses: tuple[int, int] | None, refuted: Sequence[str], claims_refuted: Sequence[str]
) -> str:
    """The same from what an audit left: right guesses and all, None without canaries."""
    if guesses is None:
        return (
            "No bound on ε was measured: the run has no canaries. Train one with "
            "audit.canaries = 500 in the configuration."
        )
    guessed = f"{guesses[0]} of {guesses[1]} guesses were right"
    if refuted:
        return (
            f"REFUTED: {', '.join(refuted)} cannot be true ({guessed}). "
            "The implementation or the proof is wrong."
        )
    also = f" It refutes {', '.join(claims_refuted)}." if claims_refuted else ""
    return f"Every valid guarantee survives ({guessed}).{also}"


def draw(curves: Curves, path: Path) -> None:
    """ROC curves on logarithmic axes, where the low false positive rates can be seen."""
    figure, axes = new_figure()
    for name, (members, others) in curves.items():
        thresholds = np.unique(np.concatenate([members, others]))[::-1]
        found, wrong = (
            1 - np.searchsorted(np.sort(s), thresholds, "left") / len(s) for s in (members, others)
        )
        axes.plot(np.append(wrong, 1), np.append(found, 1), label=name)
    line = np.geomspace(1e-4, 1, 50)
    axes.plot(line, line, ":", color=GREY, label="guessing")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(1e-4, 1),
        ylim=(1e-4, 1),
        xlabel="false positive rate",
        ylabel=f"true positive rate ({LOWER})",
    )
    legend(axes)
    save(figure, path)


def worst_case_table(cases: list[Case]) -> str:
    """Every memory at its last epoch: what was measured, and every accountant with its verdict."""
    lines = []
    for case in _last(cases):
        lines.append(
            f"memory {case.memory}, K = {case.auxiliaries}, {case.epochs} epochs: "
            f"measured μ ≥ {shown(case.measured.mu, ROUND_FLOOR)}, "
            f"ε ≥ {shown(case.measured.epsilon, ROUND_FLOOR)}"
        )
        for g in case.as_json()["accountants"]:
            mu = "" if g["mu"] is None else f"μ = {shown(g['mu'], ROUND_CEILING)}"
            status = "valid" if g["valid"] else "claimed"
            number = f"ε = {shown(g['epsilon'], ROUND_CEILING):10} {mu:13}"
            lines.append(f"  {g['accountant']:26} {number} {status:7} {g['verdict']}")
    return "\n".join(lines)


def _last(cases: list[Case]) -> list[Case]:
    return list({case.memory: case for case in cases}.values())


def draw_worst_case(cases: list[Case], path: Path) -> None:
    """ε over epochs for each memory: claims are flat, measured ε rises, proven ε is above both."""
    memories = list(dict.fromkeys(case.memory for case in cases))
    figure, panels = new_figure(columns=len(memories))
    for axes, memory in zip(np.atleast_1d(panels), memories, strict=True):
        mine = [case for case in cases if case.memory == memory]
        epochs = [case.epochs for case in mine]
        for g in mine[-1].privacy.guarantees:
            if g.epsilon == float("inf") or g.accountant == "paper-per-block":
                continue
            values = [
                next(h.epsilon for h in c.privacy.guarantees if h.accountant == g.accountant)
                for c in mine
            ]
            style = "-" if g.valid else "--"
            label = g.accountant + ("" if g.valid else " (claimed)")
            axes.plot(epochs, values, style, color=colour_of(g.accountant), label=label)
        measured = [c.measured.epsilon or np.nan for c in mine]  # 0 has no place on this axis
        axes.plot(epochs, measured, "o-", color=GREY, label="measured")
        axes.set(xscale="log", yscale="log", xlabel="epochs", title=f"memory {memory}")
        axes.set_ylabel(f"ε ({LOWER})")
        legend(axes)
    save(figure, path)

"""What a diagnosed run says of itself: a record for each step, and a summary in words (no torch).

The records hold the quantities of the paper's convergence analysis and what limits a step. How they
are computed is in theory.py and observed.py. Everything here depends on the data and is private.

θ is the model before a step, θ' after it. K is the number of auxiliaries, ρ the penalty, η̂ the
effective step size, C the clip, σ the noise, d the number of parameters, r the regularizer, L the
smoothness of the loss ℓ, and τ the floor of the preconditioner (1 for the identity).

Two readings of the paper are settled here.

1. The noise adds η̂dσ² in the lemma on the step on θ, but η̂²dσ² in the lemma on the Lyapunov
   function. η̂dσ² is what the proof gives: −⟨z, θ' − θ⟩ ≤ η̂‖z‖² in expectation. It is the right
   one, and is used for both. Without a regularizer it makes the first lemma an equality, so that
   η̂²dσ² is too little wherever η̂ < 1.
2. The clipping bias is κ = π − π̂. The lemma on the dual ascent adds ⟨κ, θ_k − θ⟩, but its proof
   takes κ for π̂ − π. What clipping really adds is −⟨κ, θ_k − θ⟩, and that is recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dpdt.errors import InputError
from dpdt.ledger import Setting

BOUND = 0.9  # a mean contribution of this share of C has reached the bound on the step


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """One step. None: the quantity does not exist for this memory, or the step has none."""

    lagrangian: float  # augmented Lagrangian after stage 1: at θ, θ_k and the new multipliers
    consensus_residual: float  # root mean square of ‖θ_k − θ‖
    clipping_bias: float | None  # largest ‖κ‖ of a block. Memory none: no multiplier to clip
    path_length: float  # Σ ‖θ' − θ‖ so far
    share_cut: float  # share of auxiliaries and blocks whose learning rate was cut
    smoothness: float  # the estimate of L
    lr_limit: float  # 2τ/(L + 5ρ + 2)
    lr_condition: bool  # η < lr_limit
    global_lr_condition: bool  # η_θ < 1
    looked: int  # auxiliaries that were looked at for the next, and for descent_held
    gradient_deviation: float  # ζ: largest ‖∇ℓ_k(θ) − mean_k ∇ℓ_k(θ)‖ of those looked at
    gradient_deviation_rms: float  # its root mean square over all auxiliaries
    # Memory shared: the lemma is about one rate for gradient and multiplier, and there are two.
    descent_constant: float | None  # smallest c = τ/η_k − (L + ρ)/2, with the η_k really used
    descent_held: float | None  # share looked at for which the local descent lemma's bound held
    dual_ascent: float  # (1/K) Σ ρ‖θ_k − θ‖², what the multipliers' update adds
    dual_bias: float | None  # −(1/K) Σ ⟨κ, θ_k − θ⟩, what clipping them adds. None as above
    global_change: float  # of h + r by the step on θ
    global_bound: float  # −(1/η̂ − ρ/2)‖θ' − θ‖² + η̂dσ², which the former keeps to on average
    reset_gap: float  # G: what setting θ_k = θ' adds to the Lagrangian
    lyapunov: float  # Φ̃ after the reset, but for its tail sum: ℓ(θ') + r(θ')
    lyapunov_change: float | None  # of Φ̃, the tail's ζ²/(2 min c) included. None unless c > 0
    lyapunov_bound: float | None  # what the change keeps to on average
    lyapunov_fell: bool | None
    share_step_bound: float  # share of blocks with ‖mean contribution‖ ≥ 0.9 C
    noise_to_signal: float | None  # √(Σ dσ²) / ‖mean contribution‖. None: it is 0


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What limited a run, as means over the last tenth of its steps."""

    clipped: float  # share of contributions whose learning rate was cut
    step_bound: float  # share of blocks that moved as far as they may
    noise_to_signal: float | None  # None: there was no signal at all
    steps: int  # that the means are over
    of: int  # steps of the run

    def words(self) -> str:
        """A sentence. What noise costs in the end, no step can tell: a run without it does."""
        ratio = "∞" if self.noise_to_signal is None else f"{self.noise_to_signal:.2g}"
        return (
            f"clipped {self.clipped:.0%}, step bound reached in {self.step_bound:.0%}, "
            f"noise/signal {ratio} (means over the last {self.steps} of {self.of} steps). What the "
            "noise costs in the end, the same run with method.noise = 0 tells."
        )


def summary(records: Sequence[Mapping[str, Any]]) -> Summary:
    """What limited a run, from its records (`dpdt.runs.Run.diagnostics`)."""
    if not records:
        raise InputError("the run has no diagnostics; dpdt train --diagnose makes them")
    last = records[-math.ceil(len(records) / 10) :]
    ratios = [r["noise_to_signal"] for r in last if r["noise_to_signal"] is not None]
    return Summary(
        clipped=_mean([r["share_cut"] for r in last]),
        step_bound=_mean([r["share_step_bound"] for r in last]),
        noise_to_signal=_mean(ratios) if ratios else None,
        steps=len(last),
        of=len(records),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def conditions(
    records: Sequence[Mapping[str, Any]], settings: Sequence[Setting], memory: str
) -> str:
    """A sentence on which conditions of the paper's limit theorem fail for a run.

    `settings` are those of the run's steps in order. Equal ones need not be repeated.
    """
    failing = []
    slow = _mean([float(not r["lr_condition"]) for r in records])
    if slow:
        limit = min(r["lr_limit"] for r in records)
        lr = max(s.lr for s in settings)
        failing.append(
            f"η < 2τ/(L + 5ρ + 2) (fails in {slow:.0%} of the steps: η is {lr:.2g}, the limit "
            f"comes down to {limit:.2g})"
        )
    if not all(r["global_lr_condition"] for r in records):
        failing.append(f"η_θ < 1 (it is {max(s.global_lr for s in settings):g})")
    if not _grows([s.penalties or (s.penalty,) for s in settings]):
        failing.append("ρ grows geometrically (it does not, so the noise is not summable)")
    if any(b > a for s, t in pairwise(settings) for a, b in zip(s.clip, t.clip, strict=True)):
        failing.append("the clip never grows")
    if memory != "auxiliary":
        failing.append(f"every auxiliary keeps its own multiplier (memory is {memory!r})")
    if not failing:
        return "No condition of the paper's limit theorem that can be checked fails."
    return f"Conditions of the paper's limit theorem that fail: {'; '.join(failing)}."


def _grows(values: Sequence[tuple[float, ...]]) -> bool:
    """Whether no entry ever falls, and all are larger in the end."""
    falls = any(b < a for s, t in pairwise(values) for a, b in zip(s, t, strict=True))
    return not falls and all(b > a for a, b in zip(values[0], values[-1], strict=True))

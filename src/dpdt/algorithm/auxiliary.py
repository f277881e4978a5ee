"""Stage 1: from an auxiliary's gradient to its bounded contribution and its new multiplier.

An auxiliary k has a gradient g, of its micro-batch at θ, a multiplier π and a preconditioner V. C
is the clipping threshold, ρ the penalty, η the cap on the learning rate. In every block:

    π̂ = π · C / max(C, ‖π‖)                                             `clip_`
    p = V (g + π + weight decay · θ)
    η_k = the largest value in [0, η] with ‖2ρη_k p − π̂‖ ≤ C             `adaptive_rate`
    u = η_k p,   π ← π̂ − ρu                                             `move_`
    contribution ∇h = 2ρu − π̂                                           `contribution_`

Where no multiplier is kept (π = 0) the last lines become one: ∇h = clip_C(2ρηV g).
`scaled_` computes 2ρηV g. Where contributions are summed (mechanism.py), they are made
finite and bounded, ‖∇h‖ ≤ C, whatever was computed here.

Buffers are [rows, parameters]; a row is an auxiliary. Norms and rates are [rows, blocks] in
float64. A trailing underscore means that a function works in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpdt.algorithm.layout import Layout
from dpdt.algorithm.observed import Seen
from dpdt.algorithm.preconditioner import Preconditioner


@dataclass
class Tally:
    """What a step saw. Private: it depends on the data."""

    nonfinite: int = 0  # contributions replaced by 0
    seen: Seen | None = None  # what the convergence theory asks for, if it was looked for

    def add(self, other: Tally) -> None:
        self.nonfinite += other.nonfinite
        if other.seen is not None:
            self.seen = other.seen if self.seen is None else self.seen + other.seen


# (which auxiliaries, their gradients, a buffer like these) → their contributions, and what was seen
Contribute = Callable[[slice, Tensor, Tensor], tuple[Tensor, Tally]]


def clip_(layout: Layout, x: Tensor, norms: Tensor, clip: Tensor) -> Tensor:
    """x ← x · C / max(C, ‖x‖) for every row and block, given the norms. Returns the factors."""
    factors = torch.where(norms > clip, clip / norms, 1.0)
    if bool((norms > clip).any()):
        layout.scale_(x, factors)
    return factors


def adaptive_rate(
    cap: float, penalty: Tensor, clip: Tensor, pp: Tensor, hp: Tensor, hh: Tensor
) -> Tensor:
    """The largest η_k in [0, cap] with ‖2ρη_k p − π̂‖ ≤ C, from pp = ‖p‖², hp = ⟨π̂,p⟩, hh = ‖π̂‖².

    It is the positive root of a quadratic. For hp < 0 the form that does not cancel is used.
    """
    room = (clip.square() - hh).clamp_min(0.0)
    root = (hp.square() + pp * room).clamp_min(0.0).sqrt()
    rate = torch.where(hp < 0, room / (root - hp), (hp + root) / pp) / (2.0 * penalty)
    return torch.where(pp == 0, cap, rate.clamp(0.0, cap))


def move_(
    layout: Layout,
    gradient: Tensor,
    scratch: Tensor,
    multiplier: Tensor,
    norms: Tensor,
    second_moment: Tensor | None,
    *,
    preconditioner: Preconditioner,
    updates: int,
    decay: Tensor | None,
    clip: Tensor,
    penalty: Tensor,
    lr: float,
) -> tuple[Tensor, Tensor]:
    """Turn gradients into ρu, in place; update multipliers and second moments.

    `norms` are those of the multipliers. They are kept up to date from the inner products that are
    computed anyway. `decay` is weight decay · θ, or None. `updates` counts the updates of V, this
    one included. `scratch` is a buffer like `gradient` whose content does not matter. Returns η_k,
    and where something was not finite: there u is 0, and π stays at π̂.
    """
    stretches = [
        (columns, blocks, scratch[:, : columns.stop - columns.start])
        for columns, blocks in layout.stretches(len(gradient))
    ]
    broken = _sum_(layout, stretches, gradient, multiplier, norms, decay, clip)
    any_broken = bool(broken.any())
    pp, hp = torch.zeros_like(norms), torch.zeros_like(norms)
    for columns, blocks, spare in stretches:
        p = gradient[:, columns]
        if second_moment is not None:
            v = second_moment[:, columns]
            if any_broken:  # keep it out of the second moment
                layout.zero_(p, broken, blocks)
            preconditioner.update_(v, p)
            p.div_(preconditioner.inverse(v, updates, out=spare))
        layout.dots(p, p, spare, blocks, pp)
        layout.dots(multiplier[:, columns], p, spare, blocks, hp)
    rate = adaptive_rate(lr, penalty, clip, pp=pp, hp=hp, hh=norms.square())
    broken |= ~(torch.isfinite(pp) & torch.isfinite(rate))
    any_broken = bool(broken.any())
    for columns, blocks, _ in stretches:
        step = layout.scale_(gradient[:, columns], penalty * rate, blocks)  # ρu
        if any_broken:
            layout.zero_(step, broken, blocks)
        multiplier[:, columns].sub_(step)
    moved = (hp - 0.5 * penalty * rate * pp) * 2.0 * penalty * rate
    norms.copy_(torch.where(broken, norms, (norms.square() - moved).clamp_min(0.0).sqrt()))
    return rate, broken


def _sum_(
    layout: Layout,
    stretches: Sequence[tuple[slice, Tensor, Tensor]],
    gradient: Tensor,
    multiplier: Tensor,
    norms: Tensor,
    decay: Tensor | None,
    clip: Tensor,
) -> Tensor:
    """Turn g into g + π + decay, and π into π̂, in place. Returns where the sum is not finite."""
    squares = torch.zeros_like(norms)
    factors = torch.where(norms > clip, clip / norms, 1.0)
    shorter = bool((norms > clip).any())
    for columns, blocks, spare in stretches:
        a = gradient[:, columns].add_(multiplier[:, columns])
        if decay is not None:
            a.add_(decay[columns])
        if shorter:
            layout.scale_(multiplier[:, columns], factors, blocks)
        layout.dots(a, a, spare, blocks, squares)
    norms.clamp_max_(clip)
    return ~torch.isfinite(squares)


def contribution_(layout: Layout, step: Tensor, multiplier: Tensor, broken: Tensor) -> Tally:
    """Turn ρu into the contribution, in place, given the new multiplier and what is not finite."""
    contribution = step.sub_(multiplier)  # ρu − (π̂ − ρu) = 2ρu − π̂
    if bool(broken.any()):
        layout.zero_(contribution, broken)
    return Tally(nonfinite=int(broken.sum()))


def scaled_(gradient: Tensor, *, inverse: Tensor | None, penalty: Tensor, lr: float) -> Tensor:
    """Turn gradients into 2ρηV g, in place: the case π = 0.

    Clipped to C this is ∇h, since then η_k = min(η, C / (2ρ‖V g‖)). `inverse` is V⁻¹, or None for
    the identity.
    """
    gradient.mul_((2.0 * lr * penalty).to(gradient.dtype))
    return gradient if inverse is None else gradient.div_(inverse)

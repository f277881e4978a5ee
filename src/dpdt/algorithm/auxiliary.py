"""Stage 1: from an auxiliary's gradient to its bounded contribution and its new multiplier.

An auxiliary k has a gradient g, of its micro-batch at θ, a multiplier π and a preconditioner V. C
is the clipping threshold, ρ the penalty, η the cap on the learning rate. In every block:

    π̂ = π · C / max(C, ‖π‖)                                             `clip_`
    p = V (g + π + weight decay · θ)
    η_k = the largest value in [0, η] with ‖2ρη_k p − π̂‖ ≤ C             `adaptive_rate`
    u = η_k p,   π ← π̂ − ρu,   contribution ∇h = 2ρu − π̂                 `contribute_`

Where no multiplier is kept (π = 0) the last lines become one: ∇h = clip_C(2ρηV g).
`contribute_plainly_` computes 2ρηV g. Where contributions are summed (mechanism.py), they are made
finite and bounded, ‖∇h‖ ≤ C, whatever was computed here.

Buffers are [rows, parameters]; a row is an auxiliary. Norms and rates are [rows, blocks] in
float64. A trailing underscore means that a function works in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpdt.algorithm.layout import Layout
from dpdt.algorithm.preconditioner import Preconditioner


@dataclass
class Tally:
    """What a step saw, summed over auxiliaries and blocks. Private: it depends on the data."""

    nonfinite: int = 0  # contributions replaced by 0
    cut: int = 0  # contributions whose learning rate (or norm) was cut
    total: int = 0
    bias: float = 0.0  # largest clipping bias ‖κ‖ = ‖π − π̂‖
    spread: float = 0.0  # Σ ‖θ_k − θ‖²
    lagrangian: float = 0.0  # Σ of the auxiliaries' augmented Lagrangians, less the loss

    def add(self, other: Tally) -> None:
        for name in ("nonfinite", "cut", "total", "spread", "lagrangian"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bias = max(self.bias, other.bias)


# (which auxiliaries, their gradients, a buffer like these) → their contributions, and what was seen
Contribute = Callable[[slice, Tensor, Tensor], tuple[Tensor, Tally]]


def clip_(layout: Layout, x: Tensor, norms: Tensor, clip: Tensor) -> Tensor:
    """x ← x · C / max(C, ‖x‖) for every row and block, given the norms.

    Returns what was too much: ‖x‖ − C, or 0.
    """
    excess = (norms - clip).clamp_min_(0.0)
    if bool(excess.any()):
        layout.scale_(x, torch.where(norms > clip, clip / norms, 1.0))
    return excess


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


def contribute_(
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
    diagnose: bool,
) -> Tally:
    """Turn gradients into contributions, in place; update multipliers and second moments.

    `norms` are those of the multipliers. They are kept up to date from the inner products that are
    computed anyway. `decay` is weight decay · θ, or None. `updates` counts the updates of V, this
    one included. `scratch` is a buffer like `gradient` whose content does not matter.
    """
    own = gradient.clone() if diagnose else None
    a = gradient.add_(multiplier)
    if decay is not None:
        a.add_(decay)
    bias = clip_(layout, multiplier, norms, clip)  # multiplier is π̂ from here, ‖κ‖ = bias
    norms.clamp_max_(clip)
    broken = torch.zeros_like(norms, dtype=torch.bool)
    if second_moment is None:
        p = a
    else:
        broken = ~torch.isfinite(layout.dots(a, a, scratch))
        if bool(broken.any()):  # keep it out of the second moment
            layout.zero_(a, broken)
        preconditioner.update_(second_moment, a)
        p = a.div_(preconditioner.inverse(second_moment, updates, out=scratch))
    pp, hp = layout.dots(p, p, scratch), layout.dots(multiplier, p, scratch)
    rate = adaptive_rate(lr, penalty, clip, pp=pp, hp=hp, hh=norms.square())
    broken |= ~(torch.isfinite(pp) & torch.isfinite(rate))
    step = layout.scale_(p, penalty * rate)  # ρu
    if bool(broken.any()):
        layout.zero_(step, broken)  # π stays at π̂
    multiplier.sub_(step)
    moved = (hp - 0.5 * penalty * rate * pp) * 2.0 * penalty * rate
    norms.copy_(torch.where(broken, norms, (norms.square() - moved).clamp_min(0.0).sqrt()))
    tally = Tally(total=rate.numel())
    if own is not None:
        along = layout.dots(own + multiplier, step) / penalty  # ⟨g + π_new, u⟩
        size = layout.dots(step, step) / penalty.square()  # ‖u‖²
        tally.cut = int((rate < lr).sum())
        tally.bias = float(bias.max())
        tally.spread = float(size.sum())
        tally.lagrangian = float((0.5 * penalty * size - along)[~broken].sum())
    contribution = step.sub_(multiplier)  # ρu − (π̂ − ρu) = 2ρu − π̂
    if bool(broken.any()):
        layout.zero_(contribution, broken)
    tally.nonfinite = int(broken.sum())
    return tally


def contribute_plainly_(
    layout: Layout,
    gradient: Tensor,
    scratch: Tensor,
    *,
    inverse: Tensor | None,
    clip: Tensor,
    penalty: Tensor,
    lr: float,
    diagnose: bool,
) -> Tally:
    """Turn gradients into 2ρηV g, in place: the case π = 0.

    Clipped to C this is ∇h, since then η_k = min(η, C / (2ρ‖V g‖)). `inverse` is V⁻¹, or None for
    the identity.
    """
    own = gradient.clone() if diagnose else None
    contribution = gradient.mul_((2.0 * lr * penalty).to(gradient.dtype))
    if inverse is not None:
        contribution.div_(inverse)
    tally = Tally(total=len(gradient) * layout.count)
    if own is not None:
        norms = layout.norms(contribution, scratch)
        finite = torch.isfinite(norms)
        share = torch.where(norms > clip, clip / norms, 1.0)
        along = layout.dots(own, contribution) * share / (2.0 * penalty)  # ⟨g, u⟩
        size = torch.minimum(norms, clip).square() / (4.0 * penalty.square())  # ‖u‖²
        tally.cut = int((norms > clip).sum())
        tally.spread = float(size[finite].sum())
        tally.lagrangian = float((0.5 * penalty * size - along)[finite].sum())
    return tally

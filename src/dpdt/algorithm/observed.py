"""What stage 1 did, in the words of the convergence theory, summed over auxiliaries.

An auxiliary moves from θ to θ_k = θ − u and its multiplier from π over π̂ to π' = π̂ − ρu
(auxiliary.py). Its loss ℓ_k is that of its micro-batch, with the auxiliaries' weight decay if there
is one. g is the gradient of ℓ_k at θ. κ = π − π̂ is the clipping bias. Inside the augmented
Lagrangian the auxiliary's proximity term is

    h_k = ⟨π', θ_k − θ⟩ + (ρ/2) ‖θ_k − θ‖²

All of this depends on the data and is private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from dpdt.algorithm.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Moves:
    """What some auxiliaries do, a row each. None: no multiplier is kept, so that π = π̂ = 0."""

    step: Tensor  # u; 0 where something is not finite
    rate: Tensor  # η_k of what depends on the data, [rows, blocks]
    before: Tensor | None  # π, one row if they share it
    clipped: Tensor | None  # π̂


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Sums over auxiliaries, but for the two extremes at the end."""

    gradient: Tensor  # Σ g of the loss without weight decay, float64
    squares: float  # Σ ‖g‖² of the same
    pairs: int  # auxiliaries × blocks
    cut: int  # of these, whose learning rate was cut
    along: float  # Σ ⟨g, u⟩
    spread: float  # Σ ‖u‖²
    penalised: float  # Σ ρ‖u‖²
    proximity: float  # Σ h_k at θ
    bias_along: float  # Σ ⟨κ, u⟩
    bias_squares: float  # Σ ‖κ‖²
    descent: float  # Σ c‖u‖² over blocks, with c = τ/η_k − (L + ρ)/2
    bias: float  # largest ‖κ‖ of a block
    constant: float  # smallest c

    @classmethod
    def nothing(cls, theta: Tensor) -> Seen:
        """What is seen of no auxiliaries."""
        values: dict[str, Any] = {f.name: 0 for f in fields(cls)}
        return cls(**values | {"gradient": torch.zeros_like(theta).double(), "constant": math.inf})

    def __add__(self, other: Seen) -> Seen:
        both = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Seen)}
        both["bias"] = max(self.bias, other.bias)
        both["constant"] = min(self.constant, other.constant)
        return Seen(**both)


def observe(
    layout: Layout,
    gradient: Tensor,
    moves: Moves,
    *,
    penalty: Tensor,
    lr: float,
    decay: Tensor | None,
    smoothness: float,
    floor: float,
) -> Seen:
    """What auxiliaries did on their gradients. What is not finite counts as 0.

    `decay` is weight decay · θ, `smoothness` is L, `floor` is τ. A block whose rate is 0 does not
    move, and has no c.
    """
    u, scratch = moves.step, torch.empty_like(gradient)
    squares = layout.dots(gradient, gradient, scratch)
    finite = torch.isfinite(squares)
    own = gradient if bool(finite.all()) else layout.zero_(gradient.clone(), ~finite)
    along = layout.dots(u, own if decay is None else own + decay, scratch)
    size = layout.dots(u, u, scratch)
    pull, bias_along, bias = torch.zeros_like(size), torch.zeros_like(size), torch.zeros_like(size)
    if moves.before is not None and moves.clipped is not None:
        pull = layout.dots(u, moves.clipped, scratch)  # ⟨π̂, u⟩
        excess = layout.norms(moves.before) - layout.norms(moves.clipped)  # they are parallel
        bias += excess.clamp_min(0.0)
        if bool(bias.any()):
            bias_along = layout.dots(u, moves.before, scratch) - pull
    constant = torch.where(size > 0, floor / moves.rate, math.inf) - 0.5 * (smoothness + penalty)
    return Seen(
        gradient=own.sum(0, dtype=torch.float64),
        squares=float(squares[finite].sum()),
        pairs=size.numel(),
        cut=int((moves.rate < lr).sum()),
        along=float(along.sum()),
        spread=float(size.sum()),
        penalised=float((penalty * size).sum()),
        proximity=float((1.5 * penalty * size - pull).sum()),  # −⟨π̂ − ρu, u⟩ + (ρ/2)‖u‖²
        bias_along=float(bias_along.sum()),
        bias_squares=float(bias.square().sum()),
        descent=float((constant * size)[size > 0].sum()),
        bias=float(bias.max()),
        constant=float(constant.min()),
    )

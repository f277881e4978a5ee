"""Stage 2: aggregate, noise, proximal step.

    G̃ = (1/K) Σ_k ∇h_k + z,  z ~ N(0, σ_g² I) in block g
    θ ← Prox_{η̂,r}( θ − η̂ · direction(G̃) )

∇h_k is the contribution of auxiliary k. The direction is the memory's (memory.py). The noisy mean
G̃ is computed by mechanism.py; the rest is post-processing of G̃.
"""

from __future__ import annotations

from torch import Tensor

from dpdt.algorithm.layout import Layout
from dpdt.algorithm.proximal import proximal_
from dpdt.ledger import Setting
from dpdt.mechanism import Source, perturbed


def aggregate(
    layout: Layout, total: Tensor, auxiliaries: int, setting: Setting, source: Source
) -> Tensor:
    """The noisy mean contribution, in the precision of θ, from the sum of the contributions."""
    noisy = perturbed(
        total,
        divisor=auxiliaries,
        noise=layout.spread(setting.noise),
        spacing=layout.spread(setting.spacing or (0.0,) * layout.count, padding=True),
        grid=layout.spread(setting.grid or setting.spacing or (0.0,) * layout.count, padding=True),
        source=source,
    )
    return noisy.to(layout.dtype)


def descend(
    theta: Tensor, direction: Tensor, *, step_size: float, regularizer: str, weight_decay: float
) -> Tensor:
    """The new θ: a step along the direction, then the proximal operator."""
    return proximal_(theta.sub(direction, alpha=step_size), regularizer, weight_decay, step_size)

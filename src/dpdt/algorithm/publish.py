"""Stage 2: aggregate, noise, proximal step.

    G̃ = (1/K) Σ_k ∇h_k + z,  z ~ N(0, σ_g² I) in block g
    θ ← Prox_{η̂,r}( θ − η̂ · direction(G̃) )

Guarantees: the divisor is the constant K, whatever number of auxiliaries was empty or not finite;
the noise is drawn once for the sum, after it is complete.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dpdt.algorithm.layout import Layout
from dpdt.algorithm.proximal import proximal_
from dpdt.noise import Randomness


def aggregate_(
    layout: Layout, total: Tensor, auxiliaries: int, noise: Sequence[float], source: Randomness
) -> Tensor:
    """The noisy mean contribution from the sum of the contributions, in place."""
    z = source.gaussian(layout.size, layout.dtype, layout.device)
    return total.div_(auxiliaries).addcmul_(z, layout.spread(noise))


def descend(
    theta: Tensor, direction: Tensor, *, step_size: float, regularizer: str, weight_decay: float
) -> Tensor:
    """The new θ."""
    return proximal_(theta.sub(direction, alpha=step_size), regularizer, weight_decay, step_size)

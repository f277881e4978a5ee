"""The proximal operator Prox_{η̂,r}: the regularizer's part of the step on θ.

The regularizer r is 0, (λ/2)‖θ‖² or λ‖θ‖₁.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

REGULARIZERS = ("none", "l2", "l1")


def proximal_(theta: Tensor, regularizer: str, strength: float, step_size: float) -> Tensor:
    """Apply the proximal operator with λ = `strength` and η̂ = `step_size`, in place."""
    match regularizer:
        case "l2":
            return theta.mul_(contraction(regularizer, strength, step_size))
        case "l1":
            magnitude = theta.abs().sub_(strength * step_size).clamp_min_(0.0)
            return theta.copy_(theta.sign() * magnitude)
    return theta


def contraction(regularizer: str, strength: float, step_size: float) -> float:
    """Lipschitz constant of the proximal operator: 1/(1+λη̂) for L2, otherwise 1."""
    return 1.0 / (1.0 + strength * step_size) if regularizer == "l2" else 1.0


def regularization(theta: Tensor, regularizer: str, strength: float) -> float:
    """The regularizer's value r(θ), with λ = `strength`."""
    match regularizer:
        case "l2":
            return 0.5 * strength * float(theta.double().square().sum())
        case "l1":
            return strength * float(theta.double().abs().sum())
    return 0.0

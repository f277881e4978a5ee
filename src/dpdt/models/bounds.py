"""Bounds on gradients that hold by construction of a model, whatever the data."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Of a convex loss: a bound on any example's gradient, and the smoothness β."""

    gradient: float
    smoothness: float


def linear_bounds(radius: float) -> Bounds:
    """A linear softmax head with bias on inputs of norm at most `radius`, under cross-entropy.

    With R² = radius² + 1 (the bias sees a constant 1): ‖gradient‖ ≤ √2·R and β ≤ R²/2.
    """
    squared = radius**2 + 1.0
    return Bounds(gradient=math.sqrt(2.0 * squared), smoothness=squared / 2.0)

"""Gaussian differential privacy: between μ, ε and δ, in log space.

A μ-GDP mechanism is (ε, δ)-DP for every ε with δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import log_ndtr


def log_delta(epsilon: float, mu: float) -> float:
    """log δ(ε) of a μ-GDP mechanism."""
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε for which a μ-GDP mechanism is (ε, δ)-DP, rounded up."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return math.inf
    target = math.log(delta)
    if log_delta(0.0, mu) <= target:
        return 0.0
    high = mu * (mu / 2 + math.sqrt(-2 * target)) + 1e-9  # Φ(−ε/μ + μ/2) ≤ δ there
    return bisect(lambda e: log_delta(e, mu) <= target, 0.0, high)


def bisect(reached: Callable[[float], bool], low: float, high: float) -> float:
    """Where `reached` turns true between low and high, rounded up to a number that reaches it.

    Written by hand, because scipy.optimize takes longer to import than everything else together.
    """
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high

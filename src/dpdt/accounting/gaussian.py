"""Gaussian differential privacy: between μ, ε and δ, in log space.

A μ-GDP mechanism is (ε, δ)-DP for every ε with δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).
"""

from __future__ import annotations

import math
from collections.abc import Callable

FAR = (
    -30.0
)  # below, Φ is computed by its asymptotic series; erfc leaves the range of float64 at −37


def squared(x: float) -> float:
    """x², infinite where float64 does not hold it: x**2 would raise an error there."""
    return x * x


def log_ndtr(x: float) -> float:
    """log Φ(x). Written by hand, because importing scipy.special takes a fifth of a second."""
    if x > FAR:
        tail = math.erfc(abs(x) / math.sqrt(2.0)) / 2.0  # Φ(−|x|)
        return math.log(tail) if x < 0.0 else math.log1p(-tail)
    term = total = 1.0
    for k in range(1, 12):  # 1 − 1/x² + 3/x⁴ − 15/x⁶ …
        term *= -(2 * k - 1) / (x * x)
        total += term
    return -(x * x) / 2.0 - math.log(-x) - math.log(2.0 * math.pi) / 2.0 + math.log(total)


def log_delta(epsilon: float, mu: float) -> float:
    """log δ(ε) of a μ-GDP mechanism."""
    first = log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest ε for which a μ-GDP mechanism is (ε, δ)-DP, rounded up.

    A μ that is no number bounds nothing.
    """
    if mu == 0:
        return 0.0
    if not mu < math.inf:
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

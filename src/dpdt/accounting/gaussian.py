"""Gaussian differential privacy: between μ, ε and δ, in log space.

A μ-GDP mechanism is (ε, δ)-DP for every ε with δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2).
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
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
    high = mu * (mu / 2 + math.sqrt(2 * -target)) + 1e-9  # Φ(−ε/μ + μ/2) ≤ δ there
    root = brentq(lambda e: log_delta(e, mu) - target, 0.0, high, xtol=1e-13, rtol=1e-13)
    return float(root) * (1 + 1e-12)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ whose mechanism is (ε, δ)-DP, rounded down."""
    target = math.log(delta)
    high = 1.0
    while log_delta(epsilon, high) < target:
        high *= 2
    low = high
    while log_delta(epsilon, low) >= target:
        low /= 2
    root = brentq(lambda mu: log_delta(epsilon, mu) - target, low, high, xtol=1e-13, rtol=1e-13)
    return float(root) * (1 - 1e-12)

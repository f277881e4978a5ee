"""What the votes of PATE's teachers cost (Papernot et al. 2018, "Scalable private learning").

    GNMax: argmax_j (n_j + N(0, σ²)).  One example changes one vote, so the counts move by √2:
        ε(λ) = λ/σ²                                            data-independent
    Where the teachers agree, the winner is almost sure and the answer costs less. The chance q that
    noise changes the winner is at most ½ Σ_{j≠j*} erfc((n_j* − n_j)/(2σ)). Then
        ε(λ) ≤ log((1−q)·A^(λ−1) + q·B^(λ−1)) / (λ−1)           data-dependent (their Theorem 6)
        A = (1−q)/(1 − (q e^{ε₂})^{(μ₂−1)/μ₂}),  B = e^{ε₁}/q^{1/(μ₁−1)}
        μ₂ = σ√log(1/q), μ₁ = μ₂ + 1, ε_i = μ_i/σ²
    Threshold: max_j n_j + N(0, σ₁²) ≥ T moves by 1: ε(λ) = λ/(2σ₁²).

The data-dependent value is computed from private votes, so the value is private itself. It must not
be published, and it is never the headline here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import erfc

from dpdt.accounting.renyi import ORDERS, epsilon_of_rdp


def gnmax(sigma: float, order: float) -> float:
    """Rényi divergence of one answer, whatever the votes."""
    return order / sigma**2


def threshold(sigma: float, order: float) -> float:
    """Rényi divergence of one comparison of the winner's votes with the threshold."""
    return order / (2.0 * sigma**2)


def flip_probability(counts: Sequence[float], sigma: float) -> float:
    """A bound on the chance that noise changes the winner."""
    votes = np.asarray(counts, dtype=float)
    winner = int(votes.argmax())
    gaps = votes[winner] - np.delete(votes, winner)
    return float(min(1.0, 0.5 * erfc(gaps / (2.0 * sigma)).sum()))


def gnmax_given(q: float, sigma: float, order: float) -> float:
    """Rényi divergence of one answer whose winner changes with probability at most q."""
    independent = gnmax(sigma, order)
    if not 0.0 < q < 1.0:
        return 0.0 if q == 0.0 else independent
    second = sigma * math.sqrt(math.log(1.0 / q))
    first = second + 1.0
    one, two = first / sigma**2, second / sigma**2
    if second <= 1.0 or order > first:
        return independent
    limit = (second - 1.0) * two - second * math.log(
        first / (first - 1.0) * second / (second - 1.0)
    )
    if math.log(q) > limit:
        return independent
    a = math.log1p(-q) - math.log(-math.expm1((math.log(q) + two) * (second - 1.0) / second))
    b = one - math.log(q) / (first - 1.0)
    total = np.logaddexp(math.log1p(-q) + (order - 1) * a, math.log(q) + (order - 1) * b)
    return float(min(independent, max(0.0, total / (order - 1))))


def epsilon(
    *, queries: int, answered: Sequence[Sequence[float]], noise: float, threshold_noise: float,
    delta: float, data_dependent: bool,
) -> float:  # fmt: skip
    """(ε, δ) of `queries` comparisons and of answers with these votes."""
    chances = [flip_probability(votes, noise) for votes in answered]

    def total(order: float) -> float:
        answers = sum(
            gnmax_given(q, noise, order) if data_dependent else gnmax(noise, order) for q in chances
        )
        return queries * threshold(threshold_noise, order) + answers

    orders = ORDERS[(ORDERS > 1.05) & (ORDERS < 1000)]
    return epsilon_of_rdp(orders, np.array([total(float(order)) for order in orders]), delta)

"""What it costs to keep the best of a random number of runs.

The number of runs is drawn from a Poisson distribution of mean m, and drawn again if it is 0. Each
run has a setting that is drawn uniformly, and a score. The run of the best score leaves, with its
setting and its score. Nothing else does, nor how many runs there were. If every setting's run,
with its score, has Rényi divergence D(λ) at most, and is (log λ/(λ−1), δ̂)-differentially private,
then what leaves has a divergence of order λ of at most

    D(λ) + m δ̂ + log(E) / (λ − 1),    E = m / (1 − e^−m), the mean number of runs

This is Theorem 6 of Papernot and Steinke, "Hyperparameter Tuning with Rényi Differential Privacy"
(2022), for a Poisson distribution without 0. Proof. Let F(y) be the probability that a run is no
better than y. What leaves has the density Q(y) E e^(−m(1−F(y))), where Q is that of a run. So the
integral of P^λ P'^(1−λ) is that of Q^λ Q'^(1−λ) times E exp(m((λ−1)(1−F') − λ(1−F))). Being better
than y is an event, so 1 − F' ≤ λ/(λ−1) (1 − F) + δ̂, and the exponent is at most m(λ−1)δ̂. Equal
scores are ranked by a coin, which makes no difference to what leaves if the first is taken.

Of the laws in that paper this one serves best for some ten runs: the number of runs is never far
from its mean, and for as good a best run it leaves each run more of ε than the geometric and the
logarithmic distribution do (docs/tuning.md).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpdt.accounting.gaussian import squared

ORDERS = 1.0 + np.geomspace(0.02, 5000.0, 160)
RELIEF = np.log1p(1.0 / (ORDERS - 1.0))  # log λ/(λ−1)
FAR, LARGE = 300.0, 20.0  # λμ, and μ, beyond which sampling is not counted
RELATIVE, ABSOLUTE = 1e-9, 1e-13  # more than the sums below may lose


def chosen(divergences: np.ndarray, deltas: np.ndarray, runs: float) -> np.ndarray:
    """The divergences of what leaves a tune, from those of a run.

    `deltas` are δ̂ at `RELIEF`, for each order.
    """
    mean = runs / -math.expm1(-runs)
    return divergences + runs * deltas + math.log(mean) / (ORDERS - 1.0)


@lru_cache(maxsize=256)
def sampled(rate: float, mu: float, replaced: bool) -> np.ndarray:
    """The divergences of a Gaussian mechanism under Poisson sampling.

    What is drawn moves by μ. Someone is added or removed, (1−q)N(0) + qN(μ) against N(0); or
    `replaced`, against (1−q)N(0) + qN(−μ). The larger of both directions counts.
    """
    reach = 2.0 * mu if replaced else mu
    found = ORDERS * squared(reach) / 2.0  # as if all took part
    if 0.0 < mu <= LARGE and rate < 1.0:
        for place, order in enumerate(ORDERS):
            if order * mu <= FAR:
                one = _divergence(float(order), rate, mu, replaced)
                one += RELATIVE * one + ABSOLUTE / (order - 1.0)
                found[place] = min(found[place], one)
    return found


def _divergence(order: float, rate: float, mu: float, replaced: bool) -> float:
    """By the trapezoidal rule, which is exact to rounding for such smooth and narrow functions."""
    width = 1.0 / math.sqrt(1.0 + order * squared(mu))
    end = order * mu + 12.0
    x = np.arange(-end, end, width / 5.0)
    out, included = math.log1p(-rate), math.log(rate)
    center = -(x * x) / 2.0
    up = center + np.logaddexp(out, included + mu * x - squared(mu) / 2.0)
    down = center
    if replaced:
        down = center + np.logaddexp(out, included - mu * x - squared(mu) / 2.0)
    pairs = ((up, down), (down, up))
    logs = (order * p + (1.0 - order) * q for p, q in pairs)
    scale = math.log(width / 5.0) - math.log(2.0 * math.pi) / 2.0
    return max(0.0, *((_log_sum(found) + scale) / (order - 1.0) for found in logs))


def _log_sum(logs: np.ndarray) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))

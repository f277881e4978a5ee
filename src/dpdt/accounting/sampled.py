"""The privacy-loss distribution of one Gaussian step under Poisson sampling.

It is that of dp-accounting ("connect the dots"), number for number. dp-accounting asks for the
output at which the loss has a value one value at a time, which takes most of its time. Here all are
found at once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def distribution(rate: float, mu: float, interval: float) -> Any:
    """For adding or removing one record, who takes part with probability `rate` below 1.

    Guarantees: the same bits as dp-accounting's `from_gaussian_mechanism`.
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    both = []
    for adjacency in (AdjacencyType.REMOVE, AdjacencyType.ADD):
        step = GaussianPrivacyLoss(1.0 / mu, sampling_prob=rate, adjacency_type=adjacency)
        bounds = step.connect_dots_bounds()
        low = math.floor(bounds.epsilon_lower / interval)
        high = math.ceil(bounds.epsilon_upper / interval)
        deltas = _deltas(step, np.arange(low, high + 1) * interval, adjacency == AdjacencyType.ADD)
        both.append(create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, deltas))
    return PrivacyLossDistribution(*both)


def _deltas(step: Any, losses: np.ndarray, adds: bool) -> np.ndarray:
    """δ of the step at these ε. No loss is beyond −log(1 − q) (adding) or log(1 − q)."""
    deltas, edge = np.zeros(len(losses)), math.log1p(-step.sampling_prob)
    if adds:
        inside = losses < -edge
    else:
        inside = losses > edge
        deltas[~inside] = -np.expm1(losses[~inside])
    outputs, kept = _outputs(step, losses[inside], adds), losses[inside]
    deltas[inside] = step.mu_upper_cdf(outputs) - np.exp(kept + step.mu_lower_log_cdf(outputs))
    return np.clip(deltas, 0.0, 1.0)


def _outputs(step: Any, losses: np.ndarray, adds: bool) -> np.ndarray:
    """Where the loss has these values: where it is log(1 + (e^loss − 1)/q) without sampling."""
    whole, sign = 1.0 / step.sampling_prob, -1.0 if adds else 1.0
    top, rest = sign * losses + np.log(whole), np.log(-(1.0 - whole))
    edge = np.isclose(sign * losses, math.log(1.0 - step.sampling_prob), rtol=1e-9, atol=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        alone = top + np.log1p(-np.exp(rest - top))
        alone = np.where(losses == 0.0, np.log(whole + (1.0 - whole)), alone)
    alone = sign * np.where(edge | (top <= rest), -np.inf, alone)
    outputs: np.ndarray = (1.0 if adds else 0.0) + (-0.5 - alone * step.standard_deviation**2)
    return outputs

"""From Rényi differential privacy to (ε, δ), by the improved conversion.

    ε = min over α of  ε_RDP(α) + log((α−1)/α) − (log δ + log α)/(α−1)

(Canonne, Kamath and Steinke 2020, Proposition 12).
"""

from __future__ import annotations

import numpy as np

# Dense where small ε has its optimum, up to very large orders for tiny privacy losses.
ORDERS = np.concatenate([1 + np.geomspace(1e-3, 1, 200)[:-1], np.geomspace(2, 1e7, 2000)])


def epsilon_of_rdp(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    """The best ε over the orders, at least 0; infinite if every divergence is."""
    with np.errstate(invalid="ignore"):
        values = (
            divergences + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
        )
    finite = values[np.isfinite(values)]
    return max(0.0, float(finite.min())) if len(finite) else float("inf")

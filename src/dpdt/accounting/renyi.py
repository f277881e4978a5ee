"""From Rényi differential privacy to (ε, δ), by the improved conversion.

    ε = min over α of  ε_RDP(α) + log((α−1)/α) − (log δ + log α)/(α−1)

(Canonne, Kamath and Steinke 2020, Proposition 12).
"""

from __future__ import annotations

import numpy as np

# The usual orders (1.1 to 10.9 and 12 to 63), and more towards 1 and beyond for extreme losses.
ORDERS = np.concatenate(
    [
        1 + np.geomspace(1e-4, 0.09, 30),
        1 + np.arange(1, 100) / 10,
        np.arange(12, 64),
        np.round(np.geomspace(64, 1e7, 200)),
    ]
)


def epsilon_of_rdp(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    """The best ε over the orders, at least 0. If every divergence is infinite, so is ε."""
    with np.errstate(invalid="ignore"):
        values = (
            divergences + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
        )
    finite = values[np.isfinite(values)]
    return max(0.0, float(finite.min())) if len(finite) else float("inf")

"""Noise that is correlated over steps: its coefficients, and how far it moves a sum of steps.

Instead of independent noise z, the steps t = 0 … T−1 get ζ = C⁻¹z (Denisov et al. 2022). C is lower
triangular and has b bands: below column j's diagonal stand c_0 … c_{b−1}, as far as T goes, divided
by their norm s_j. So every column of C has norm 1. The noise of a step takes back a part of the
noise of the steps before it, and sums of many steps carry less. In a stream:

    x_t = (z_t − Σ_{i=1..b−1} c_i x_{t−i}) / c_0        ζ_t = s_t x_t

Everything here follows from public numbers. No coefficient is negative, which accountants need:
they may then leave out rows of C that a run has not reached.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

Coefficients = Sequence[float] | np.ndarray

MOST = 1024  # bands
LONGEST = 10_000_000  # steps, each of which is accounted by itself
WORTHWHILE = 64  # bands; more bring little, and each takes memory and time
LONG = 4_000  # steps; coefficients for a longer run are those for so many
STABLE = 0.9999  # the largest ratio of a coefficient to the one before it
DIGITS = 6  # of a coefficient, so that another version of a library makes the same


def column_norms(coefficients: Coefficients, horizon: int, steps: np.ndarray) -> np.ndarray:
    """s_j of some steps j of a run of T = `horizon` steps: ‖(c_0 … c_{min(b, T−j)−1})‖."""
    partial = np.sqrt(np.cumsum(np.square(coefficients)))
    found: np.ndarray = partial[np.minimum(len(coefficients), horizon - steps) - 1]
    return found


def gram(coefficients: Coefficients, horizon: int, steps: np.ndarray, lag: int) -> np.ndarray:
    """(CᵀC)_{j, j+lag} for some steps j, with j + lag before the end."""
    c = np.asarray(coefficients)
    products = np.cumsum(c[lag:] * c[: len(c) - lag])
    rows = np.minimum(len(c), horizon - steps) - lag  # that both columns reach
    norms = (column_norms(coefficients, horizon, j) for j in (steps, steps + lag))
    found: np.ndarray = products[rows - 1] / math.prod(norms)
    return found


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """What a method makes of the steps: (1 − lead·x)/(1 − momentum·x), x being one step later.

    The model that leaves may be a moving average of iterates besides.
    """

    momentum: float = 0.0
    lead: float = 0.0
    averaging: float = 0.0  # the weight of the past in the average


NONE = Smoothing()


def response(coefficients: Coefficients, steps: int, smoothing: Smoothing = NONE) -> np.ndarray:
    """What z of one step adds to the model after 0, 1, 2 … more steps, before columns are scaled.

    The model is a sum of all steps, smoothed. In the long run a step counts once.
    """
    from scipy.signal import lfilter

    behind, scale = np.convolve(coefficients, (1.0, -1.0)), 1.0 / (1.0 - smoothing.lead)
    for kept in (smoothing.momentum, smoothing.averaging):
        behind, scale = np.convolve(behind, (1.0, -kept)), scale * (1.0 - kept)
    impulse = np.zeros(steps)
    impulse[0] = scale
    found: np.ndarray = lfilter((1.0, -smoothing.lead), behind, impulse)
    return found


def error(coefficients: Coefficients, steps: int, smoothing: Smoothing = NONE) -> float:
    """The deviation of the model under noise of deviation 1, as a root mean square over steps."""
    moved = np.square(response(coefficients, steps, smoothing))
    mean = float(np.sum(moved * (steps - np.arange(steps)))) / steps
    return math.sqrt(float(np.sum(np.square(coefficients))) * mean)


def last_error(coefficients: Coefficients, steps: int, smoothing: Smoothing = NONE) -> float:
    """The deviation of the model after all steps under noise of deviation 1."""
    moved = float(np.sum(np.square(response(coefficients, steps, smoothing))))
    return math.sqrt(float(np.sum(np.square(coefficients))) * moved)


@lru_cache(maxsize=256)
def best(bands: int, steps: int, smoothing: Smoothing = NONE) -> tuple[float, ...]:
    """The coefficients c, from c_0 = 1 downwards, for which the `error` of iterates is least.

    There are at most as many `bands` as steps. Coefficients never grow from one to the next, so
    that the noise of later steps does not either (Eneström–Kakeya). What an average of iterates
    would gain beyond is left out: it would come from noise that is larger at every step, and
    iterates have to bear that.
    """
    bands, steps = min(bands, steps), min(steps, LONG)
    if bands == 1:
        return (1.0,)
    from scipy.optimize import minimize

    start = 1.0 - 0.5 / np.arange(1, bands)  # c of 1/√(1 − x), which is near
    found = minimize(
        _objective, start, args=(steps, replace(smoothing, averaging=0.0)), jac=True,
        method="L-BFGS-B", bounds=[(1e-3, STABLE)] * (bands - 1),
        options={"maxiter": 1000, "ftol": 1e-11, "gtol": 1e-7},
    )  # fmt: skip
    return (1.0, *(float(f"{c:.{DIGITS}g}") for c in np.cumprod(found.x)))


def _objective(ratios: np.ndarray, steps: int, smoothing: Smoothing) -> tuple[float, np.ndarray]:
    """log of the squared error, and its slope, by the ratio of every coefficient to the last."""
    from scipy.signal import lfilter

    c = np.cumprod(np.concatenate(((1.0,), ratios)))
    y = response(c, steps, smoothing)
    weighted = y * (steps - np.arange(steps))
    total, square = float(y @ weighted), float(c @ c)
    late = lfilter((1.0,), c, y)  # −∂y/∂c_i is this, i steps later
    by_c = np.array([weighted[i:] @ late[: steps - i] for i in range(1, len(c))])
    slope = 2.0 * (c[1:] / square - by_c / total)
    by_ratio = np.cumsum((slope * c[1:])[::-1])[::-1] / ratios
    return math.log(square * total / steps), by_ratio

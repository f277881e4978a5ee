"""What correlated noise, and groups of examples that take turns, do to a record.

The releases of all steps are C⁻¹(C·G + z): a Gaussian mechanism on C·G, whatever each step makes of
those before it (bands.py). Let a record move the mean of step t by at most r_t, in units of the
step's noise. Then, over the steps P that it takes part in,

    μ² = Σ_{i,j ∈ P} r_i r_j (CᵀC)_ij

In a fixed partition P = {m, m + M, …}, and m is the worst. With at most M bands the columns of P
have no row in common, and μ² = Σ r_t². Where a record may take part in any step, P is all of them.

Under Poisson sampling in groups, the record of group g joins the steps g, g + G, … by a coin. With
at most G bands this is a sequence of as many Poisson-sampled Gaussian mechanisms, of the group's
rate (Choquette-Choo et al. 2023). Groups may differ where settings follow a schedule. So the
dearest step of any group is taken, then the second dearest of any, and so on.

No coefficient is negative, and so no term of μ² is. Hence it is sound to take the columns of the
whole run for one that has not reached its end, and terms between steps whose noise is independent
since the run went on with fresh noise. Steps that are taken again have fresh noise, and add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from dpdt.accounting.cost import Cost
from dpdt.bands import gram
from dpdt.ledger import Ledger


def composed_mu(ledger: Ledger, squares: Sequence[float]) -> float:
    """μ of a run with a partition and correlated noise; `squares` are r² of its runs of steps."""
    header = ledger.header
    everywhere = header.memory == "auxiliary" or header.unit != "example" or header.reshuffle
    period = 1 if everywhere else max(1, min(header.batches, ledger.reached))
    if not all(map(math.isfinite, squares)):
        return math.inf
    worst = np.zeros(period)
    for first, moves in _unbroken(ledger, squares):
        worst += _by_position(header.coefficients, header.horizon, first, moves, period)
    return math.sqrt(float(worst.max()))


def _by_position(
    coefficients: Sequence[float], horizon: int, first: int, moves: np.ndarray, period: int
) -> np.ndarray:
    """Σ r_i r_j (CᵀC)_ij over the steps at each position, for consecutive steps from `first` on."""
    numbers = first + np.arange(len(moves))
    found = np.bincount(numbers % period, moves**2, period)
    for lag in range(period, min(len(coefficients), len(moves)), period):
        pairs = 2.0 * moves[lag:] * moves[:-lag]
        pairs *= gram(coefficients, horizon, numbers[:-lag], lag)
        found += np.bincount(numbers[:-lag] % period, pairs, period)
    return found


def cost_of_groups(ledger: Ledger, squares: Sequence[float], relation: str) -> Cost:
    """What a run does to a record of any group, under Poisson sampling in groups.

    Who was drawn may be taken as known, and then sampling counts nothing. Under replace-one it is.
    """
    header = ledger.header
    lists: list[list[float]] = [[] for _ in range(header.groups)]
    for first, moves in _unbroken(ledger, squares):
        for group in range(header.groups):
            lists[group] += moves[(group - first) % header.groups :: header.groups].tolist()
    longest = max(map(len, lists))
    table = np.zeros((header.groups, longest))
    for row, mine in zip(table, lists, strict=True):
        row[: len(mine)] = sorted(mine, reverse=True)
    dearest = table.max(axis=0)
    everyone = math.sqrt(float(np.sum(dearest**2)))
    if relation == "replace-one":
        return Cost(mu=everyone * (2.0 if header.per_example else 1.0))
    if header.rate >= 1.0:
        return Cost(mu=everyone)
    steps = tuple((header.rate, mu, number) for mu, number in sorted(Counter(dearest).items()))
    return Cost(steps=steps, everyone=everyone)


def _unbroken(ledger: Ledger, squares: Sequence[float]) -> Iterator[tuple[int, np.ndarray]]:
    """r of every step, in stretches of steps that follow each other, each with its first step."""
    first, expected, parts = 0, 0, list[np.ndarray]()
    for run, square in zip(ledger.runs, squares, strict=True):
        if parts and run.start != expected:
            yield first, np.concatenate(parts)
            parts = []
        if not parts:
            first = run.start
        parts.append(np.full(run.steps, math.sqrt(square)))
        expected = run.start + run.steps
    if parts:
        yield first, np.concatenate(parts)

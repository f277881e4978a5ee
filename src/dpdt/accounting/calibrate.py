"""The noise that meets a target ε."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache

from dpdt.accounting.composition import Composition
from dpdt.accounting.guarantee import Accountant
from dpdt.errors import InputError
from dpdt.ledger import Ledger

LARGEST = 1000.0  # beyond, privacy-loss distributions grow without end
TOLERANCE = 1e-4  # the target is met from below within this share
REACH = 60.0  # the logarithm of the largest factor that is tried


def scaled(ledger: Ledger, factor: float, kinds: Collection[str] | None = None) -> Ledger:
    """The ledger of the same run, with the noise of some kinds of block (or all) multiplied."""
    chosen = [kinds is None or block.kind in kinds for block in ledger.header.blocks]
    runs = [
        replace(
            run,
            setting=replace(
                run.setting,
                noise=tuple(
                    s * factor if hit else s
                    for s, hit in zip(run.setting.noise, chosen, strict=True)
                ),
            ),
        )
        for run in ledger.runs
    ]
    return replace(ledger, runs=runs)


def calibrate(
    ledger: Ledger,
    epsilon: float,
    delta: float,
    *,
    accountant: Accountant | None = None,
    kinds: Collection[str] | None = None,
    claimed: bool = False,
    tolerance: float = TOLERANCE,
) -> float:
    """The factor on the noise for which the accountant says `epsilon`, by bisection.

    An accountant that is not valid for the run is refused. With `claimed` it is asked all the same,
    and the target is met by its claim alone. Runs are never calibrated so. The target is met from
    below, within the `tolerance`, as a share.

    Guarantees: with the returned factor the accountant's ε is at most the target.
    """
    judge = accountant or Composition()
    if ledger.header.sampling == "poisson" and epsilon > LARGEST:
        raise InputError(
            f"privacy.epsilon: must be at most {LARGEST:g} under poisson sampling, found "
            f"{epsilon:g}; so large an ε guarantees nothing and takes forever to compute"
        )

    @cache
    def spent(log_factor: float) -> float:
        guarantee = judge.guarantee(scaled(ledger, math.exp(log_factor), kinds), delta)
        refused = not guarantee.valid and ledger.header.private and not claimed
        if refused or judge.unsupported(ledger.header):
            raise InputError(
                f"accountant {judge.name!r} is not valid for this run: {guarantee.why_not}"
            )
        return guarantee.epsilon

    start, stride = 0.0, 1.0
    if ledger.header.sampling == "poisson" and isinstance(judge, Composition) and not judge.coarse:
        # Each look costs half a second there: come close on a coarse grid first.
        near = calibrate(ledger, epsilon, delta, accountant=Composition(coarse=True), kinds=kinds)
        start, stride = math.log(near), 1e-3
    low, high = around(epsilon, spent, start, stride)
    if math.isinf(high):
        raise InputError(
            f"privacy.epsilon: no noise reaches {epsilon} at delta {delta}; "
            + (
                "the other kinds of block alone spend more, so raise their noise too"
                if kinds is not None
                else "use fewer epochs, more auxiliaries or a larger epsilon"
            )
        )
    if math.isinf(low):
        raise InputError(
            f"privacy.epsilon: this run spends less than {epsilon} with any noise; "
            "it trains on nothing"
        )
    return math.exp(_closest(epsilon, spent, low, high, tolerance))


# Below, ε is a function of the logarithm of the factor, and falls as the factor grows.


def around(
    target: float, spent: Callable[[float], float], start: float, stride: float
) -> tuple[float, float]:
    """Two places with the target between them, found in growing strides from `start`.

    `high` meets the target, `low` does not. A side that is out of reach is infinite.
    """
    low = high = start
    while spent(high) > target:
        low, high = high, high + stride
        stride = min(1.0, 2.0 * stride)
        if high - start > REACH:
            return low, math.inf
    while spent(low) <= target:
        low, high = low - stride, low
        stride = min(1.0, 2.0 * stride)
        if low - start < -REACH:
            return -math.inf, high
    return low, high


def _closest(
    target: float, spent: Callable[[float], float], low: float, high: float, tolerance: float
) -> float:
    """A place between `low` and `high` that meets the target within the tolerance, by bisection.

    log ε is nearly straight. So every other split is where a line would meet the target.
    """
    straight = True
    while spent(high) < target * (1.0 - tolerance) and high - low > 1e-12:
        above, below = math.log(spent(low)), math.log(max(spent(high), 1e-12))
        share = (above - math.log(target * (1.0 - tolerance / 2))) / (above - below)
        inside = straight and math.isfinite(share) and 0.0 < share < 1.0
        middle = low + (high - low) * (share if inside else 0.5)
        low, high = (middle, high) if spent(middle) > target else (low, middle)
        straight = not straight
    return high

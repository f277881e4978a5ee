"""The noise that meets a target ε."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache

from dpdt.accounting.composition import Composition, cost_of
from dpdt.accounting.cost import FINE, Cost
from dpdt.accounting.guarantee import Accountant
from dpdt.errors import InputError
from dpdt.ledger import Ledger

LARGEST = 1000.0  # beyond, privacy-loss distributions grow without end
TOLERANCE = 1e-4  # the target is met from below within this share
WIDEST = 1e-2  # the interval of the coarser grid that estimates are made of
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
    if isinstance(judge, Composition) and judge.unsupported(ledger.header) is None:
        cost = cost_of(ledger, ledger.header.relation)
        if cost.steps and not cost.tunes:
            # Each look takes up to a second there. So estimates come close first.
            start, stride = _roughly(ledger, epsilon, delta, kinds, tolerance), 1e-3
    found = _searched(epsilon, spent, start, stride, tolerance) if math.isfinite(start) else start
    if found == math.inf:
        raise InputError(
            f"privacy.epsilon: no noise reaches {epsilon} at delta {delta}; "
            + (
                "the other kinds of block alone spend more, so raise their noise too"
                if kinds is not None
                else "use fewer epochs, more auxiliaries or a larger epsilon"
            )
        )
    if found == -math.inf:
        raise InputError(
            f"privacy.epsilon: this run spends less than {epsilon} with any noise; "
            "it trains on nothing"
        )
    return math.exp(found)


def _roughly(
    ledger: Ledger,
    epsilon: float,
    delta: float,
    kinds: Collection[str] | None,
    tolerance: float,
) -> float:
    """About the logarithm of the factor for which composition says `epsilon`.

    It rests on estimates: a place to start from, and nothing that a guarantee may rest on.
    """
    interval = max(FINE, min(WIDEST, epsilon / 200.0))

    def cost(log_factor: float) -> Cost:
        return cost_of(scaled(ledger, math.exp(log_factor), kinds), ledger.header.relation)

    @cache
    def estimated(log_factor: float) -> float:
        return cost(log_factor).about(ledger.header.relation, delta, interval)

    target, half = epsilon * (1.0 - tolerance / 4.0), tolerance / 2.0  # amid what is accepted
    # Far from the target a grid may be huge. So a guess says where to look first.
    start = _searched(epsilon, cache(lambda place: cost(place).guessed(delta)), 0.0, 1.0, 0.01)
    if math.isfinite(start):
        return _searched(target, estimated, start, 0.1, half)
    return _searched(target, estimated, 0.0, 1.0, half)


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


def _searched(
    target: float,
    spent: Callable[[float], float],
    start: float,
    stride: float,
    tolerance: float,
) -> float:
    """A place that meets the target within the tolerance, from below; infinite if there is none."""
    if target * (1.0 - tolerance) <= spent(start) <= target:
        return start
    low, high = around(target, spent, start, stride)
    if math.isinf(low):
        return low
    return high if math.isinf(high) else _closest(target, spent, low, high, tolerance)


def _closest(
    target: float, spent: Callable[[float], float], low: float, high: float, tolerance: float
) -> float:
    """A place between `low` and `high` that meets the target within the tolerance.

    log ε is nearly straight. So a split is where a line through the last two places meets the
    target. Every third is in the middle, whatever the line says. The search ends too where places
    are so close that ε cannot be: at a tiny δ it is rough there.
    """
    aim, looks = math.log(target * (1.0 - tolerance / 2.0)), 0
    first, second = low, high
    while spent(high) < target * (1.0 - tolerance) and high - low > tolerance / 20.0:
        middle, looks = (low + high) / 2.0, looks + 1
        at, then = (math.log(max(spent(place), 1e-12)) for place in (first, second))
        if looks % 3 and math.isfinite(at) and at != then:
            met = second + (aim - then) * (second - first) / (then - at)
            middle = met if low < met < high else middle
        low, high = (middle, high) if spent(middle) > target else (low, middle)
        first, second = second, middle
    return high

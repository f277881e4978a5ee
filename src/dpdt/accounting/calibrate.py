"""The noise that meets a target ε."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from functools import cache

from dpdt.accounting.composition import Composition
from dpdt.accounting.guarantee import Accountant
from dpdt.errors import InputError
from dpdt.ledger import Ledger

LARGEST = 1000.0  # beyond, privacy-loss distributions grow without end
TOLERANCE = 1e-4  # the target is met from below within this share


def scaled(ledger: Ledger, factor: float, kinds: Collection[str] | None = None) -> Ledger:
    """The ledger of the same run with the noise of some kinds of block (or all) multiplied."""
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
) -> float:
    """The factor on the noise for which the accountant says `epsilon`, by bisection.

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
        if not guarantee.valid and ledger.header.private:
            why = guarantee.failed.why if guarantee.failed else ""
            raise InputError(f"accountant {judge.name!r} is not valid for this run: {why}")
        return guarantee.epsilon

    low = high = start = 0.0
    stride = 1.0
    if ledger.header.sampling == "poisson" and isinstance(judge, Composition) and not judge.coarse:
        # Each look costs half a second there: come close on a coarse grid first.
        near = calibrate(ledger, epsilon, delta, accountant=Composition(coarse=True), kinds=kinds)
        low = high = start = math.log(near)
        stride = 1e-3
    if spent(high) > epsilon:
        while spent(high) > epsilon:
            low, high = high, high + stride
            stride = min(1.0, 2.0 * stride)
            if high - start > 60:
                raise InputError(
                    f"privacy.epsilon: no noise reaches {epsilon} at delta {delta}; "
                    + (
                        "the other kinds of block alone spend more, so raise their noise too"
                        if kinds is not None
                        else "use fewer epochs, more auxiliaries or a larger epsilon"
                    )
                )
    else:
        while spent(low) <= epsilon:
            low, high = low - stride, low
            stride = min(1.0, 2.0 * stride)
            if low - start < -60:
                raise InputError(
                    f"privacy.epsilon: this run spends less than {epsilon} with any noise; "
                    "it trains on nothing"
                )
    # Bisection on the logarithm of the factor; ε falls as the factor grows. `high` always meets it.
    # log ε is nearly straight in it, so every other split is where a line would meet the target.
    straight = True
    while spent(high) < epsilon * (1.0 - TOLERANCE) and high - low > 1e-12:
        above, below = math.log(spent(low)), math.log(max(spent(high), 1e-12))
        share = (above - math.log(epsilon * (1.0 - TOLERANCE / 2))) / (above - below)
        inside = straight and math.isfinite(share) and 0.0 < share < 1.0
        middle = low + (high - low) * (share if inside else 0.5)
        low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
        straight = not straight
    return math.exp(high)

"""The paper's budget allocation: how much of the privacy loss each kind of block may cause.

The cost of kind g is the sum of (C/σ)² over its blocks. The equal baseline gives conv, norm and
linear a third each. A boost r_g of kind g shifts the shares to r_g : 1 : 1. So 1.5 gives the
paper's 43 : 29 : 28. The paper's text puts these shares at r_g = 1.25. Its appendix puts them at
1.5, which is right. Two modes meet the shares from the run's own settings:

    noise   σ_g alone changes, C_g stays
    joint   both change by the same factor: C_g up and σ_g down, or the other way round

Then 20 bisections on a common factor of the noise bring the total ε back to the run's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpdt.accounting.calibrate import scaled
from dpdt.accounting.guarantee import Accountant
from dpdt.errors import ArgumentError, InputError
from dpdt.ledger import Ledger, Setting

MODES = ("noise", "joint")
BOOSTS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
BISECTIONS = 20


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What one allocation multiplies each kind's clip and noise by. `shares` are per cents."""

    kind: str | None  # the boosted kind; None for the equal baseline
    boost: float
    mode: str
    epsilon: float
    shares: dict[str, int]
    clip_scale: dict[str, float]
    noise_scale: dict[str, float]


def allocate(
    ledger: Ledger,
    delta: float,
    *,
    accountant: Accountant,
    mode: str,
    kind: str | None = None,
    boost: float = 1.0,
) -> Allocation:
    """Shift the budget towards `kind` by `boost`, at the ledger's own total ε."""
    kinds = sorted({block.kind for block in ledger.header.blocks}, key=_order)
    if kind is not None and kind not in kinds:
        raise ArgumentError("kind", f"this model has {', '.join(kinds)}, found {kind!r}")
    target = accountant.guarantee(ledger, delta).epsilon
    if not math.isfinite(target):
        raise InputError(f"accountant {accountant.name!r} gives no ε for this run to hold")
    weights = {k: boost if k == kind else 1.0 for k in kinds}
    total = sum(weights.values())
    first = ledger.runs[0].setting
    names = [block.kind for block in ledger.header.blocks]
    cost = {
        k: sum(
            (c / s) ** 2
            for name, c, s in zip(names, first.clip, first.noise, strict=True)
            if name == k
        )
        for k in kinds
    }
    whole = sum(cost.values())
    # what (C/σ) of each kind must be multiplied by to cause its share
    ratio = {k: math.sqrt(weights[k] / total * whole / cost[k]) for k in kinds}
    part = {k: ratio[k] if mode == "noise" else math.sqrt(ratio[k]) for k in kinds}
    clip = {k: ratio[k] / part[k] for k in kinds}

    def change(setting: Setting) -> Setting:
        # Rounding follows clip by powers of two, so by at most twice as much.
        far = {k: 1.0 if mode == "noise" else 2.0 * clip[k] for k in kinds}
        return replace(
            setting,
            clip=tuple(c * clip[k] for c, k in zip(setting.clip, names, strict=True)),
            noise=tuple(s / part[k] for s, k in zip(setting.noise, names, strict=True)),
            rounding=tuple(r * far[k] for r, k in zip(setting.rounding, names, strict=False)),
        )

    shifted = replace(ledger, runs=[replace(r, setting=change(r.setting)) for r in ledger.runs])
    factor = _hold(shifted, target, delta, accountant)
    return Allocation(
        kind=kind,
        boost=boost,
        mode=mode,
        epsilon=accountant.guarantee(scaled(shifted, factor), delta).epsilon,
        shares=_percent({k: weights[k] / total for k in kinds}),
        clip_scale=clip,
        noise_scale={k: factor / part[k] for k in kinds},
    )


def _hold(ledger: Ledger, target: float, delta: float, accountant: Accountant) -> float:
    """The factor on all noise that brings ε to the target from below, by bisection."""
    low, high = 0.25, 4.0
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        if accountant.guarantee(scaled(ledger, middle), delta).epsilon > target:
            low = middle
        else:
            high = middle
    return high


def _percent(shares: dict[str, float]) -> dict[str, int]:
    """Whole per cents that add up to 100. What is left goes to the last kind, as in the paper."""
    rounded = {k: round(100 * s) for k, s in shares.items()}
    last = list(rounded)[-1]
    rounded[last] += 100 - sum(rounded.values())
    return rounded


def _order(kind: str) -> int:
    return ("conv", "norm", "linear", "embedding", "other").index(kind)

"""The paper's budget allocation: how much of the privacy loss each kind of block may cause.

The cost of a kind is the sum of (C/σ)² over its blocks. In the equal baseline every kind costs the
same. Boosting kind g by r multiplies its cost by r, and the other kinds stay. So the shares are
r : 1 : 1, and ε rises with r. There are two modes:

    noise   σ_g is divided by √r
    joint   C_g is multiplied by r^¼, and σ_g divided by it

The paper gives the baseline one σ for all kinds, and recalibrates C so that the composed cost stays
the same. It says neither which σ nor which cost. These are the readings, with the ε that the paper
claims (`paper`) for the baseline and a boost of 1.5, on the presets cifar10 and cifar100:

    the paper's own table                             .78–.79, .84–.85    1.04, 1.11–1.13
    σ and cost of the kind with the most blocks       .794, .866          1.020, 1.112
    the run's own total cost                          .634, .691          1.067, 1.166
    cost of the dearest kind                          .794, .866          1.158, 1.261
    cost of the linear kind                           .056, .061          1.158, 1.261
    σ of the linear kind, with the C of conv          1.411, 1.540        1.819, 1.987
    the run's own total ε, also after a boost         .634, .634          1.067, 1.067

The first reading is closest to the table, so it is used. Of kinds with equally many blocks the
first counts. The appendix also says that a boost keeps ε "within 0.01 of the baseline", against the
table. `held` is for that: it keeps the run's own ε. The paper's text puts its table at r = 1.25,
which would be 38 : 31 : 31 and .830, 1.067. Its appendix says 1.5, and the shares that are printed,
43 : 29 : 28, are those of 1.5.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpdt.accounting.calibrate import around
from dpdt.errors import ArgumentError, InputError
from dpdt.ledger import Block

MODES = {"noise": (0.0, 0.5), "joint": (0.25, 0.25)}  # powers of r: clip times, noise divided by
BOOSTS = (0.5, 0.75, 1.25, 1.5, 1.75, 2.0)
BISECTIONS = 20
ORDER = ("conv", "norm", "linear", "embedding", "other")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Clip and noise of every block, and the share of each kind in per cent."""

    clip: tuple[float, ...]
    noise: tuple[float, ...]
    shares: dict[str, int]


def allocate(
    blocks: Sequence[Block],
    clip: Sequence[float],
    noise: Sequence[float],
    *,
    mode: str,
    kind: str | None = None,
    boost: float = 1.0,
) -> Allocation:
    """The equal baseline of a run's clip and noise, with one kind boosted if it is named.

    Schedules multiply all blocks alike, so it does not matter whether they are in the values.
    """
    kinds = kinds_of(blocks)
    _check(kinds, noise, mode, kind, boost)
    names = [block.kind for block in blocks]
    number = Counter(names)
    reference = max(kinds, key=lambda k: number[k])  # the first of several
    sigma = max(s for s, name in zip(noise, names, strict=True) if name == reference)

    def cost(k: str, sigmas: Sequence[float]) -> float:
        pairs = zip(clip, sigmas, names, strict=True)
        return sum((c / s) ** 2 for c, s, name in pairs if name == k)

    wanted, one = cost(reference, noise), [sigma] * len(names)
    scale = {k: math.sqrt(wanted / cost(k, one)) for k in kinds}
    weights = {k: boost if k == kind else 1.0 for k in kinds}
    more, less = MODES[mode]
    return Allocation(
        clip=tuple(c * scale[k] * weights[k] ** more for c, k in zip(clip, names, strict=True)),
        noise=tuple(sigma / weights[k] ** less for k in names),
        shares=_percent(weights),
    )


def kinds_of(blocks: Sequence[Block]) -> list[str]:
    """The kinds of a run's blocks. One block for the whole model cannot be split."""
    if len(blocks) == 1:
        raise InputError(
            "method.granularity: the whole model is one block, so there is no budget to split over "
            "kinds of block; a model of several layers needs granularity = 'layer'"
        )
    return sorted({block.kind for block in blocks}, key=ORDER.index)


def held(spent: Callable[[float], float], target: float) -> float:
    """The factor on all noise that brings ε to the target from below, by bisection.

    `spent` is ε for a factor.
    """

    def at(log_factor: float) -> float:
        return spent(math.exp(log_factor))

    low, high = around(target, at, 0.0, 1.0)
    if math.isinf(low) or math.isinf(high):
        raise InputError(f"no factor on the noise brings ε back to {target:g}")
    for _ in range(BISECTIONS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if at(middle) > target else (low, middle)
    return math.exp(high)


def _check(
    kinds: Sequence[str], noise: Sequence[float], mode: str, kind: str | None, boost: float
) -> None:
    if mode not in MODES:
        raise ArgumentError("mode", f"must be {' or '.join(MODES)}, found {mode!r}")
    if kind is not None and kind not in kinds:
        raise ArgumentError("kind", f"this model has {', '.join(kinds)}, found {kind!r}")
    if not (boost > 0 and math.isfinite(boost)):
        raise ArgumentError("boost", f"must be above 0, found {boost:g}")
    if kind is None and boost != 1.0:
        raise ArgumentError("kind", f"missing; say which kind is boosted by {boost:g}")
    if not all(noise):
        raise InputError("method.noise: a budget can be split only with noise in every block")


def _percent(weights: dict[str, float]) -> dict[str, int]:
    """Whole per cents that add up to 100. What is left goes to the last kind, as in the paper."""
    total = sum(weights.values())
    rounded = {k: round(100 * w / total) for k, w in weights.items()}
    last = list(rounded)[-1]
    rounded[last] += 100 - sum(rounded.values())
    return rounded

"""What steps do to one record, in a form that adds up: over steps, and over runs on the same data.

    a Gaussian mechanism               μ² add up
    a step under Poisson sampling      its privacy-loss distribution is composed with the others

Both hold for steps that are chosen in the light of earlier ones. Together they are one
distribution, in which the Gaussian part is one more mechanism. Equal steps are composed at once,
by their number, so many runs of one setting take no longer than one.

The distributions are those of dp-accounting. Its relation "replace one" takes a Gaussian mechanism
of sensitivity 1 to move by 2, so that what moves by μ has multiplier 2/μ there. They are computed
in float64, which loses or invents some probability at every step. Against 80-bit arithmetic and
exact tails the error was at most 3e-16 a step. ROUNDOFF, three times as much, is taken off δ for
each step. A δ of which this is no small part is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from functools import lru_cache

from dpdt.accounting.gaussian import epsilon_of
from dpdt.errors import InputError

FEW = 10  # different settings in a run that are accounted at the finest grid
HOPELESS = 1000.0  # an ε beyond which nobody needs it exactly, and a grid for it takes hours
ROUNDOFF = 2.0**-50  # probability that float64 may misplace at a step under Poisson sampling
PIECE = 8  # composing steps of another setting, and cutting off its tails, counts as many steps

Sampled = tuple[float, float, int]  # q, μ_t for adding or removing one, and the number of steps


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one or several runs do to one record, under one relation."""

    mu: float = 0.0  # of everything that is a Gaussian mechanism
    steps: tuple[Sampled, ...] = ()  # under Poisson sampling
    everyone: float = 0.0  # μ of these steps if all took part in each: a bound without sampling

    @classmethod
    def sum(cls, costs: Iterable[Cost]) -> Cost:
        """The cost of all together. The order does not matter."""
        found = sorted(costs, key=lambda cost: (cost.mu, cost.everyone, cost.steps))
        if len(found) == 1:
            return found[0]
        number: Counter[tuple[float, float]] = Counter()
        for cost in found:
            for rate, mu, steps in cost.steps:
                number[rate, mu] += steps
        return cls(
            mu=math.hypot(*(cost.mu for cost in found)),
            steps=tuple((rate, mu, steps) for (rate, mu), steps in sorted(number.items())),
            everyone=math.hypot(*(cost.everyone for cost in found)),
        )

    def epsilon(self, relation: str, delta: float, *, coarse: bool = False) -> float:
        """ε at δ. `coarse` takes a coarser grid for Poisson sampling, which is sound."""
        if not self.steps:
            return epsilon_of(self.mu, delta)
        return _epsilon(self, relation, delta, coarse)


@lru_cache(maxsize=128)
def _epsilon(cost: Cost, relation: str, delta: float, coarse: bool) -> float:
    number, pieces = sum(steps for _, _, steps in cost.steps), len(cost.steps) + (cost.mu > 0)
    misplaced = ROUNDOFF * (number + PIECE * pieces)
    if delta < 4.0 * misplaced:
        least = Context(prec=2, rounding=ROUND_CEILING).create_decimal_from_float(4.0 * misplaced)
        raise InputError(
            f"privacy.delta: must be at least {float(least):g} for {number} steps of poisson "
            f"sampling, found {delta:g}; rounding in privacy-loss distributions outweighs less"
        )
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    if _mean_loss(cost) > HOPELESS:
        return epsilon_of(math.hypot(cost.mu, cost.everyone), delta)  # as if all took part
    replaced = relation == "replace-one"
    neighbours = NeighboringRelation.ADD_OR_REMOVE_ONE
    if replaced:
        neighbours = NeighboringRelation.REPLACE_ONE
    # Losses are rounded up to a grid, so a coarser one is sound; long schedules need it.
    interval = 1e-3 if coarse or len(cost.steps) > FEW else 1e-4
    accountant = PLDAccountant(neighbours, value_discretization_interval=interval)
    for rate, mu, steps in cost.steps:
        if mu > 0:
            accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(1.0 / mu)), steps)
    if cost.mu > 0:
        accountant.compose(GaussianDpEvent((2.0 if replaced else 1.0) / cost.mu))
    return float(accountant.get_epsilon(delta - misplaced))


def _mean_loss(cost: Cost) -> float:
    """A lower bound on the mean privacy loss: KL(qQ + (1−q)P ‖ P) ≥ q·KL(Q ‖ P) − H(q) a step."""
    total = cost.mu**2 / 2.0
    for q, mu, steps in cost.steps:
        entropy = 0.0 if q >= 1.0 else -q * math.log(q) - (1.0 - q) * math.log1p(-q)
        total += steps * max(0.0, q * mu**2 / 2.0 - entropy)
    return total

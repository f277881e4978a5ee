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

What leaves a tune, the best of a random number of runs, has Rényi divergences (tuning.py). Together
with these, those of all other steps add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from functools import lru_cache
from typing import Any

import numpy as np

from dpdt.accounting import sampled, tuning
from dpdt.accounting.gaussian import epsilon_of, log_delta, squared
from dpdt.accounting.renyi import epsilon_of_rdp
from dpdt.errors import InputError

FEW = 10  # different settings in a run that are accounted at the finest grid
MANY, NEAR = 100, 0.05  # more values of μ than MANY are rounded up; μ² to a factor of e^NEAR
ATONCE = 100_000  # steps that dp-accounting composes at once; its time grows with their number
FINE, COARSE = 1e-4, 1e-3  # intervals of grids
LARGE = 30.0  # a mean privacy loss beyond which the finest grid takes a gigabyte
FAR, FARTHEST = 300.0, 3000.0  # losses of one step, for grids of 3 million places
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
    tunes: tuple[Tune, ...] = ()

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
            tunes=tuple(tune for cost in found for tune in cost.tunes),
        )

    def epsilon(self, relation: str, delta: float, *, coarse: bool = False) -> float:
        """ε at δ. `coarse` takes a coarser grid for Poisson sampling, which is sound."""
        if self.tunes:
            return epsilon_of_rdp(tuning.ORDERS, self.divergences(relation), delta)
        if not self.steps:
            return epsilon_of(self.mu, delta)
        return _epsilon(self, relation, delta, COARSE if coarse else FINE)

    def about(self, relation: str, delta: float, interval: float) -> float:
        """About ε of sampled steps: a place to start a search from, and no bound.

        The error of a grid falls with the square of its interval. So grids of `interval` and of
        half of it tell about where ε lies without any.
        """
        wide, half = (_epsilon(self, relation, delta, i) for i in (interval, interval / 2.0))
        return half - (wide - half) / 3.0 if math.isfinite(wide) else half

    def guessed(self, delta: float) -> float:
        """Roughly ε of sampled steps, at once: not even near, and no bound.

        By the central limit theorem many steps of rate q and small μ are a Gaussian mechanism with
        q²(e^μ² − 1) for μ², added up.
        """
        squares = (n * q**2 * math.expm1(min(squared(mu), 700.0)) for q, mu, n in self.steps)
        sampled = min(math.sqrt(sum(squares)), self.everyone)
        return epsilon_of(math.hypot(self.mu, sampled), delta)

    def divergences(self, relation: str) -> np.ndarray:
        """The Rényi divergences of all `tuning.ORDERS`, at most."""
        found = tuning.ORDERS * squared(self.mu) / 2.0
        for (rate, mu), steps in _fewer(self.steps).items():
            found = found + steps * tuning.sampled(rate, mu, relation == "replace-one")
        for tune in self.tunes:
            found = found + tune.divergences(relation)
        return found


@dataclass(frozen=True, kw_only=True)
class Tune:
    """The best of a random number of runs, whose mean is `runs`, with any of these costs each."""

    runs: float
    costs: tuple[Cost, ...]  # and that of the score

    def divergences(self, relation: str) -> np.ndarray:
        """The Rényi divergences of what leaves."""
        divergences = np.max([cost.divergences(relation) for cost in self.costs], axis=0)
        deltas = np.max([_deltas(cost, relation) for cost in self.costs], axis=0)
        return tuning.chosen(divergences, deltas, self.runs)

    @property
    def work(self) -> float:
        """About how many hundredths of a second these take to compute, by what was measured."""
        return sum(_work(cost) for cost in self.costs)


def _work(cost: Cost) -> float:
    costs = _fewer(cost.steps)
    loss, reach = _losses(cost.mu, costs) if costs else (0.0, 0.0)
    if loss > HOPELESS or reach > FARTHEST:
        return 1.0
    return 1.5 * len(costs) + reach / 2.0 + 2.0 * loss + 6.0 * math.sqrt(loss)


@lru_cache(maxsize=128)
def _deltas(cost: Cost, relation: str) -> np.ndarray:
    """δ at every ε of `tuning.RELIEF`."""
    number, costs = sum(steps for _, _, steps in cost.steps), _fewer(cost.steps)
    gaussian = math.hypot(cost.mu, cost.everyone)
    if not gaussian < math.inf:
        return np.ones(len(tuning.RELIEF))
    loss, reach = _losses(cost.mu, costs) if costs else (0.0, math.inf)
    if loss > HOPELESS or reach > FARTHEST:  # as if all took part
        logs = [log_delta(float(epsilon), gaussian) for epsilon in tuning.RELIEF if gaussian]
        return np.exp(logs) if logs else np.zeros(len(tuning.RELIEF))
    misplaced = ROUNDOFF * (number + PIECE * (2 * len(costs) + 1))
    whole = _composed(cost.mu, costs, relation, COARSE)
    found = whole.get_delta_for_epsilon(tuning.RELIEF[::-1])[::-1]  # it wants them ascending
    return np.minimum(1.0, np.array(found) + misplaced)


@lru_cache(maxsize=128)
def _epsilon(cost: Cost, relation: str, delta: float, interval: float) -> float:
    """ε on a grid of this interval, or of the finest that the steps allow."""
    number, costs = sum(steps for _, _, steps in cost.steps), _fewer(cost.steps)
    pieces = sum(1 + (steps > ATONCE) for steps in costs.values()) + (cost.mu > 0)
    misplaced = ROUNDOFF * (number + PIECE * pieces)
    if delta < 4.0 * misplaced:
        least = Context(prec=2, rounding=ROUND_CEILING).create_decimal_from_float(4.0 * misplaced)
        raise InputError(
            f"privacy.delta: must be at least {float(least):g} for {number} steps of poisson "
            f"sampling, found {delta:g}; rounding in privacy-loss distributions outweighs less"
        )
    if not costs or not cost.mu < math.inf:
        return epsilon_of(cost.mu, delta)
    if not all(mu < math.inf for _, mu in costs):
        return math.inf
    loss, reach = _losses(cost.mu, costs)
    if loss > HOPELESS or reach > FARTHEST:
        return epsilon_of(math.hypot(cost.mu, cost.everyone), delta)  # as if all took part
    # Losses are rounded up to a grid, so a coarser one is sound; long schedules and runs need it.
    few = len(costs) <= FEW and loss <= LARGE and reach <= FAR
    whole = _composed(cost.mu, costs, relation, max(interval, FINE if few else COARSE))
    return float(whole.get_epsilon_for_delta(delta - misplaced))


def _losses(gaussian: float, costs: dict[tuple[float, float], int]) -> tuple[float, float]:
    """The mean privacy loss of everything, and the largest of one step on a grid."""
    loss = squared(gaussian) / 2.0
    loss += sum(_mean_loss(mu, rate) * steps for (rate, mu), steps in costs.items())
    largest = max(gaussian, *(mu for _, mu in costs))
    return loss, squared(largest) / 2.0 + 10.0 * largest


def _composed(
    gaussian: float, costs: dict[tuple[float, float], int], relation: str, interval: float
) -> Any:
    """The privacy-loss distribution of a Gaussian mechanism and of sampled steps together."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism, identity

    replaced = relation == "replace-one"
    neighbours = NeighboringRelation.ADD_OR_REMOVE_ONE
    if replaced:
        neighbours = NeighboringRelation.REPLACE_ONE
    whole = identity(interval)
    for (rate, mu), steps in costs.items():
        if rate < 1.0 and not replaced:
            one = sampled.distribution(rate, mu, interval)
        else:
            one = from_gaussian_mechanism(
                standard_deviation=1.0 / mu,
                value_discretization_interval=interval,
                sampling_prob=rate,
                neighboring_relation=neighbours,
            )
        many, rest = divmod(steps, ATONCE) if steps > ATONCE else (0, steps)
        if many:
            whole = whole.compose(one.self_compose(ATONCE).self_compose(many))
        if rest:
            whole = whole.compose(one.self_compose(rest))
    if gaussian > 0:
        one = from_gaussian_mechanism(
            standard_deviation=(2.0 if replaced else 1.0) / gaussian,
            value_discretization_interval=interval,
            neighboring_relation=neighbours,
        )
        whole = whole.compose(one)
    return whole


def _fewer(steps: Iterable[Sampled]) -> dict[tuple[float, float], int]:
    """How many steps have which q and μ, of those that cost something.

    Many different values of μ are rounded up to fewer: less noise is never more private.
    """
    found: Counter[tuple[float, float]] = Counter()
    for rate, mu, number in steps:
        if mu > 0 and number > 0:
            found[rate, mu] += number
    if len(found) <= MANY or any(math.isinf(mu) for _, mu in found):
        return dict(found)
    rounded: Counter[tuple[float, float]] = Counter()
    for rate in {rate for rate, _ in found}:
        mine = sorted((mu for other, mu in found if other == rate), reverse=True)
        group, top = -1, 0.0
        for mu in mine:
            number = min(MANY, int(2.0 * math.log(mine[0] / mu) / NEAR))
            if number != group:
                group, top = number, mu
            rounded[rate, top] += found[rate, mu]
    return dict(rounded)


def _mean_loss(mu: float, q: float) -> float:
    """The mean privacy loss of a step, KL((1−q)P + qQ ‖ P), by the trapezoidal rule.

    For a large μ, where the rule would need many points, a lower bound: q·KL(Q ‖ P) − H(q).
    """
    absent = math.log1p(-q) if q < 1.0 else -math.inf
    if mu > 50.0:
        entropy = -q * math.log(q) - ((1.0 - q) * absent if q < 1.0 else 0.0)
        return q * squared(mu) / 2.0 - entropy
    x = np.linspace(-10.0, mu + 10.0, 2001)
    loss = np.logaddexp(absent, math.log(q) + mu * x - mu**2 / 2.0)
    density = np.exp(loss - x**2 / 2.0) / math.sqrt(2.0 * math.pi)
    return max(0.0, float((density * loss).sum() * (x[1] - x[0])))

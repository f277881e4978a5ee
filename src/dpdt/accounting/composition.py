"""Composition: sound for any loss and architecture, whatever iterates are seen.

A step of Algorithm 1 is a Gaussian mechanism. Replacing what one auxiliary holds moves its
contribution from one point of the C-ball to another. So the mean over K auxiliaries moves by at
most 2C/K. Rounding to the lattice may add r_g (Setting.rounding). With noise σ_g in block g

    μ_t² = Σ_g ((2 C_g / K + r_g) / σ_g)²

The steps that a record influences add up in μ². A step of the plan counts as often as it was taken.
Which steps a record influences depends on what auxiliaries remember:

    memory auxiliary                         every step
    shared, none · example · fixed           the steps of its mini-batch: max_m Σ_epochs μ²
    shared, none · example · reshuffled      one step an epoch: Σ_epochs max_m μ²
    shared, none · shard, user               every step

Under Poisson sampling a step is a subsampled Gaussian mechanism with noise multiplier 1/μ_t. If
every example is its own contribution, C/K stands for 2C/K, since removing the example moves the sum
by C. The step is accounted by the privacy-loss distributions of dp-accounting under add/remove.
Where every example is its own contribution, replace-one holds too: dp-accounting's relation of that
name takes an absent example to contribute 0, which is then true. Where the rate is 1, all take part
in every step, and a step is a Gaussian mechanism again: μ_t² add up, and no distribution is needed.

These distributions are computed in float64, which loses or invents some probability at every step.
Against 80-bit arithmetic and exact tails the error was at most 3e-16 a step. ROUNDOFF, three times
as much, is taken off δ for each step. A δ of which this is no small part is refused.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from decimal import ROUND_CEILING, Context

import numpy as np

from dpdt.accounting.gaussian import epsilon_of, squared
from dpdt.accounting.guarantee import Condition, Guarantee, common_conditions
from dpdt.errors import InputError
from dpdt.ledger import Header, Ledger, Setting

FEW = 10  # different settings in a run that are accounted at the finest grid
MANY, NEAR = 100, 0.05  # more values of μ² than MANY are rounded up, to a factor of e^NEAR
ATONCE = 100_000  # steps that dp-accounting composes at once; its time grows with their number
LARGE = 30.0  # a mean privacy loss beyond which the finest grid takes a gigabyte
HOPELESS = 1000.0  # an ε beyond which nobody needs it exactly, and a grid for it takes hours
ROUNDOFF = 2.0**-50  # probability that float64 may misplace at a step under Poisson sampling
PIECE = 8  # composing steps of another setting, and cutting off its tails, counts as many steps


def sensitivities(setting: Setting, header: Header) -> tuple[float, ...]:
    """How far a record can move each block's mean in a step, rounding included.

    Under Poisson sampling of single examples: how far one contribution is from none.
    """
    alone = header.sampling == "poisson" and header.per_example
    reach = (1.0 if alone else 2.0) / header.auxiliaries
    rounding = setting.rounding or (0.0,) * len(setting.clip)
    return tuple(reach * c + r for c, r in zip(setting.clip, rounding, strict=True))


def squared_mu(setting: Setting, header: Header) -> float:
    """μ_t² of a step that the record influences; 1/μ_t is the noise multiplier."""
    moved = sensitivities(setting, header)
    return sum(
        math.inf if noise == 0 else squared(most / noise)
        for most, noise in zip(moved, setting.noise, strict=True)
    )


class Composition:
    """The sum over all steps. `coarse` takes a coarser grid for Poisson sampling.

    The coarser grid is faster and sound. Its ε is a little larger.
    """

    name = "composition"

    def __init__(self, coarse: bool = False):
        self.coarse = coarse

    def unsupported(self, header: Header) -> str | None:
        if header.sampling != "poisson":
            return None
        if header.memory == "auxiliary":
            return (
                "Poisson sampling is not accounted with memory auxiliary: a record is heard at "
                "steps that it was not drawn for"
            )
        if header.unit != "example":
            return f"Poisson sampling protects single examples; the unit is {header.unit}"
        if header.relation == "replace-one" and not header.per_example:
            return "under Poisson sampling of shared auxiliaries only add-remove is accounted"
        return None

    def conditions(self, ledger: Ledger) -> tuple[Condition, ...]:
        return (
            *common_conditions(self, ledger),
            Condition(
                text="every contribution has norm at most C and is averaged over a constant K",
                holds=True,
                why="the engine rescales each contribution and divides by K, whatever happens",
            ),
        )

    def guarantee(self, ledger: Ledger, delta: float) -> Guarantee:
        mu, epsilon = None, math.inf
        if self.unsupported(ledger.header) is None:
            if ledger.header.sampling == "poisson" and ledger.header.rate >= 1.0:
                both = 2.0 if ledger.header.relation == "replace-one" else 1.0
                epsilon = epsilon_of(_everyone_mu(ledger) * both, delta)
            elif ledger.header.sampling == "poisson":
                epsilon = _poisson_epsilon(ledger, delta, self.coarse)
            else:
                mu = composed_mu(ledger)
                epsilon = epsilon_of(mu, delta)
        return Guarantee(
            accountant=self.name,
            epsilon=epsilon,
            delta=delta,
            mu=mu,
            unit=ledger.header.unit,
            relation=ledger.header.relation,
            observer="all iterates",
            conditions=self.conditions(ledger),
        )


def composed_mu(ledger: Ledger) -> float:
    """The Gaussian-DP parameter of a whole run with a fixed partition."""
    header = ledger.header
    squares = [squared_mu(run.setting, header) for run in ledger.runs]
    if header.memory == "auxiliary" or header.unit != "example":
        return math.sqrt(sum(s * r.steps for s, r in zip(squares, ledger.runs, strict=True)))
    runs = [
        (run.start, run.start + run.steps, square)
        for run, square in zip(ledger.runs, squares, strict=True)
    ]
    most = _worst_of_epochs if header.reshuffle else _worst_position
    return math.sqrt(most(runs, header.batches))


Costs = list[tuple[int, int, float]]  # the first step, the step after the last, μ² of each


def _worst_position(runs: Costs, batches: int) -> float:
    """max_m Σ over the steps at position m of an epoch; steps taken again add up."""
    whole, rest = 0.0, []
    for start, stop, square in runs:
        epochs, left = divmod(stop - start, batches)
        whole += square * epochs if epochs else 0.0
        if left:
            first = start % batches
            rest.append((first, min(first + left, batches), square))
            if first + left > batches:
                rest.append((0, first + left - batches, square))
    return whole + max((cost for _, _, cost in _added(rest)), default=0.0)


def _worst_of_epochs(runs: Costs, batches: int) -> float:
    """Σ over epochs of the dearest step in each; steps taken again add up."""
    total, epoch, dearest = 0.0, -1, 0.0
    for start, stop, cost in _added(runs):
        first, last = start // batches, (stop - 1) // batches
        if first != epoch:
            total, epoch, dearest = total + dearest, first, 0.0
        dearest = max(dearest, cost)
        if last != first:
            between = last - first - 1
            total += dearest + (cost * between if between else 0.0)
            epoch, dearest = last, cost
    return total + dearest


def _added(runs: Costs) -> Iterator[tuple[int, int, float]]:
    """The same costs as stretches without overlap, in order: costs of the same step are added."""
    edges = sorted({edge for start, stop, _ in runs for edge in (start, stop)})
    costs = np.zeros(max(0, len(edges) - 1))
    for start, stop, square in runs:
        costs[bisect_left(edges, start) : bisect_left(edges, stop)] += square
    return zip(edges, edges[1:], map(float, costs), strict=False)


def _everyone_mu(ledger: Ledger) -> float:
    """μ if all take part in every step, for adding or removing one contribution."""
    header = ledger.header
    total = sum(squared_mu(r.setting, header) * r.steps for r in ledger.runs)
    return math.sqrt(total)


def _poisson_epsilon(ledger: Ledger, delta: float, coarse: bool) -> float:
    header, costs = ledger.header, _costs(ledger)
    pieces = sum(1 + (steps > ATONCE) for steps in costs.values())
    misplaced = ROUNDOFF * (ledger.steps + PIECE * pieces)
    if delta < 4.0 * misplaced:
        least = Context(prec=2, rounding=ROUND_CEILING).create_decimal_from_float(4.0 * misplaced)
        raise InputError(
            f"privacy.delta: must be at least {float(least):g} for {ledger.steps} steps of poisson "
            f"sampling, found {delta:g}; rounding in privacy-loss distributions outweighs less"
        )
    if not costs:
        return 0.0
    if math.inf in costs:
        return math.inf
    loss = sum(_mean_loss(math.sqrt(square), header.rate) * n for square, n in costs.items())
    if loss > HOPELESS:
        # Sound: as if all took part in every step. Replacing an example is removing and adding one.
        return epsilon_of(_everyone_mu(ledger) * (2.0 if header.per_example else 1.0), delta)
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism, identity

    relation = {
        "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace-one": NeighboringRelation.REPLACE_ONE,
    }[header.relation]
    # Losses are rounded up to a grid, so a coarser one is sound; long schedules and runs need it.
    interval = 1e-3 if coarse or len(costs) > FEW or loss > LARGE else 1e-4
    whole = identity(interval)
    for square, steps in costs.items():
        one = from_gaussian_mechanism(
            standard_deviation=1.0 / math.sqrt(square),
            value_discretization_interval=interval,
            sampling_prob=header.rate,
            neighboring_relation=relation,
        )
        many, rest = divmod(steps, ATONCE) if steps > ATONCE else (0, steps)
        if many:
            whole = whole.compose(one.self_compose(ATONCE).self_compose(many))
        if rest:
            whole = whole.compose(one.self_compose(rest))
    return float(whole.get_epsilon_for_delta(delta - misplaced))


def _costs(ledger: Ledger) -> dict[float, int]:
    """μ² of the steps that cost something, and how many steps have it.

    Many different values are rounded up to fewer: less noise is never more private.
    """
    found: Counter[float] = Counter()
    for run in ledger.runs:
        found[squared_mu(run.setting, ledger.header)] += run.steps
    found.pop(0.0, None)
    if len(found) <= MANY or math.inf in found:
        return found
    most, rounded = max(found), Counter[float]()
    group, top = -1, 0.0
    for square in sorted(found, reverse=True):
        number = min(MANY, int(math.log(most / square) / NEAR))
        if number != group:
            group, top = number, square
        rounded[top] += found[square]
    return rounded


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

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
That is zero-out, or add-remove where the number of examples is private: who is absent adds 0. Where
every example is its own contribution, replace-one holds too: dp-accounting's relation of that
name takes an absent example to contribute 0, which is then true. Where the rate is 1, all take part
in every step, and a step is a Gaussian mechanism again: μ_t² add up, and no distribution is needed.
How costs add up, over steps and over runs, is in cost.py. What noise that is correlated over steps
does to a record is in matrix.py. A run that is the best of a tune costs what the whole tune does:
the dearest of its candidates counts (tuning.py). A record that is scored on costs what the scores
do. Held-out examples are not trained on, so it is one or the other.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dpdt.accounting import matrix
from dpdt.accounting.cost import Cost, Tune
from dpdt.accounting.gaussian import squared
from dpdt.accounting.guarantee import Condition, Guarantee, check, common_conditions
from dpdt.errors import InputError
from dpdt.ledger import Header, Ledger, Setting, Tuned

WORK = 3000  # hundredths of a second that the ε of a tune may take


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
        dealt = header.sampling != "poisson" or header.groups > 1
        if dealt and header.relation == "add-remove":
            return "examples are dealt by their number, which add-remove takes to be private"
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
            return "under Poisson sampling of shared auxiliaries replace-one is not accounted"
        if len(header.coefficients) > header.groups:
            return (
                f"noise of {len(header.coefficients)} bands needs as many groups of examples that "
                f"take turns; this run has {header.groups}"
            )
        if header.relation == "replace-one" and header.groups > 1:
            return "where groups of examples take turns replace-one is not accounted"
        return None

    def conditions(self, ledger: Ledger) -> tuple[Condition, ...]:
        return (
            *common_conditions(self, ledger),
            Condition(
                text="every contribution has norm at most C and is averaged over a constant K",
                holds=True,
                why="the engine rescales each contribution and divides by K, whatever happens",
            ),
            *([] if ledger.tuned is None else [self._chosen(ledger, ledger.tuned)]),
        )

    def _chosen(self, ledger: Ledger, tuned: Tuned) -> Condition:
        """Whether the run is what a tune was to leave."""
        headers = [candidate.header for candidate in tuned.candidates]
        found = [why for header in headers if (why := self.unsupported(header))]
        if not all(header.private for header in headers):
            found.append("a run of the tune has a fixed seed, so anyone who knows it can repeat it")
        if ledger.forks or ledger.repeats:
            found.append("steps were taken again with other noise, which the tune does not count")
        if ledger.closed and not tuned.chosen:
            found.append("this is one of the runs of a tune, and not the one that leaves it")
        if tuned.noise and ledger.header.unit != "example":
            found.append(f"the noise on scores covers one example, not one {ledger.header.unit}")
        return check(
            "the run was chosen as its tune says", not found, words(tuned), "".join(found[:1])
        )

    def guarantee(self, ledger: Ledger, delta: float) -> Guarantee:
        header, mu, epsilon = ledger.header, None, math.inf
        if self.unsupported(header) is None:
            cost = cost_of(ledger, header.relation)
            mu = cost.mu if header.sampling == "partition" and not ledger.tuned else None
            epsilon = cost.epsilon(header.relation, delta, coarse=self.coarse)
        return Guarantee(
            accountant=self.name,
            epsilon=epsilon,
            delta=delta,
            mu=mu,
            unit=header.unit,
            relation=header.relation,
            observer="all iterates",
            conditions=self.conditions(ledger),
        )


def words(tuned: Tuned) -> str:
    """How a run was chosen."""
    score = "on public examples"
    if tuned.noise:
        score = f"on examples that are not trained on, with noise of σ = {tuned.noise:.4g}"
    number = len(tuned.candidates)
    return (
        f"the best of a random number of runs (Poisson, mean {tuned.runs:g}), each with one of "
        f"{number} setting{'s' * (number > 1)} drawn by secret coins, scored {score}"
    )


def composed_mu(ledger: Ledger) -> float:
    """The Gaussian-DP parameter of a whole run with a fixed partition."""
    header = ledger.header
    squares = [squared_mu(run.setting, header) for run in ledger.runs]
    if len(header.coefficients) > 1:
        return matrix.composed_mu(ledger, squares)
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


def cost_of(ledger: Ledger, relation: str) -> Cost:
    """What a run does to a record under a relation: the run's own, or replace-one for any run.

    What moves by 2C/K when a record is added or removed (`sensitivities`) moves by no more when it
    is replaced. A record that is its own contribution is removed, and another added: twice as far.
    With shared auxiliaries, who was drawn may be taken as known, and then sampling counts nothing.
    """
    if ledger.tuned is not None:
        return _cost_of_tune(ledger, ledger.tuned, relation)
    header, replaced = ledger.header, relation == "replace-one"
    if header.sampling == "partition":
        return Cost(mu=composed_mu(ledger))
    squares = [squared_mu(run.setting, header) for run in ledger.runs]
    if header.groups > 1:
        return matrix.cost_of_groups(ledger, squares, relation)
    total = sum(s * r.steps for s, r in zip(squares, ledger.runs, strict=True))
    everyone = math.sqrt(total) * (2.0 if replaced and header.per_example else 1.0)
    if header.rate >= 1.0 or (replaced and not header.per_example):
        return Cost(mu=everyone)
    steps = zip(squares, ledger.runs, strict=True)
    sampled = tuple((header.rate, math.sqrt(square), run.steps) for square, run in steps)
    return Cost(steps=sampled, everyone=everyone)


def _cost_of_tune(ledger: Ledger, tuned: Tuned, relation: str) -> Cost:
    """What a tune does to a record, which is heard either by the training or by the scores."""
    plans = [Ledger(candidate.header, list(candidate.runs)) for candidate in tuned.candidates]
    plans.append(replace(ledger, tuned=None))
    costs = {cost_of(plan, relation) for plan in plans}
    if tuned.noise:
        costs.add(Cost(mu=1.0 / tuned.noise))
    tune = Tune(runs=tuned.runs, costs=tuple(sorted(costs, key=str)))
    if tune.work > WORK:
        raise InputError(
            f"the tune has {len(costs)} settings of different cost, and ε of all of them would "
            f"take about {tune.work / 100.0:,.0f} s to compute, more than {WORK / 100.0:.0f} s; "
            "only fewer that differ in noise or sampling can be accounted"
        )
    return Cost(tunes=(tune,))

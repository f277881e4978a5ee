"""Composition: sound for any loss and architecture, whatever iterates are seen.

A step of Algorithm 1 is a Gaussian mechanism. Replacing what one auxiliary holds moves its
contribution from one point of the C-ball to another, so the mean over K auxiliaries moves by at
most 2C/K, and with noise σ_g in block g

    μ_t² = Σ_g (2 C_g / (K σ_g))²

Steps that a record influences add up in μ². Which they are depends on what auxiliaries remember:

    memory auxiliary                         every step
    shared, none · example · fixed           the steps of its mini-batch: max_m Σ_epochs μ²
    shared, none · example · reshuffled      one step an epoch: Σ_epochs max_m μ²
    shared, none · shard, user               every step

Under Poisson sampling a step is a subsampled Gaussian mechanism with noise multiplier 1/μ_t (2/μ_t
if every example is its own contribution, since removing it then moves the sum by C, not 2C),
accounted by the privacy-loss distributions of dp-accounting under add/remove. Where every example
is its own contribution replace-one holds too: dp-accounting's relation of that name takes an absent
example to contribute 0, which is then true.
"""

from __future__ import annotations

import math

import numpy as np

from dpdt.accounting.gaussian import epsilon_of
from dpdt.accounting.guarantee import Condition, Guarantee, not_private
from dpdt.ledger import Ledger, Setting


def squared_mu(setting: Setting, auxiliaries: int) -> float:
    """μ_t² of a step that the record influences."""
    total = 0.0
    for clip, noise in zip(setting.clip, setting.noise, strict=True):
        total += math.inf if noise == 0 else (2.0 * clip / (auxiliaries * noise)) ** 2
    return total


FEW = 10  # different settings in a run that are accounted at the finest grid
HOPELESS = 1000.0  # an ε beyond which nobody needs it exactly, and a grid for it takes hours


class Composition:
    """`coarse` computes Poisson sampling on a coarser grid: faster, sound, a little larger."""

    name = "composition"

    def __init__(self, coarse: bool = False):
        self.coarse = coarse

    def conditions(self, ledger: Ledger) -> tuple[Condition, ...]:
        return (
            not_private(ledger),
            Condition(
                text="every contribution has norm at most C and is averaged over a constant K",
                holds=True,
                why="the engine rescales each contribution and divides by K, whatever happens",
            ),
        )

    def guarantee(self, ledger: Ledger, delta: float) -> Guarantee:
        poisson = ledger.header.sampling == "poisson"
        mu = None if poisson else composed_mu(ledger)
        return Guarantee(
            accountant=self.name,
            epsilon=_poisson_epsilon(ledger, delta, self.coarse)
            if mu is None
            else epsilon_of(mu, delta),
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
    squares = [squared_mu(run.setting, header.auxiliaries) for run in ledger.runs]
    counts = [run.steps for run in ledger.runs]
    if header.memory == "auxiliary" or header.unit != "example":
        return math.sqrt(sum(s * n for s, n in zip(squares, counts, strict=True)))
    # One value a step, laid out as epochs × positions; a run cut short leaves a partial epoch.
    steps = np.repeat(squares, counts)
    epochs = -(-len(steps) // header.batches)
    table = np.zeros((epochs, header.batches))
    table.reshape(-1)[: len(steps)] = steps
    if header.reshuffle:
        return math.sqrt(float(table.max(axis=1, initial=0.0).sum()))
    return math.sqrt(float(table.sum(axis=0).max(initial=0.0)))


def _poisson_epsilon(ledger: Ledger, delta: float, coarse: bool) -> float:
    if not ledger.runs:
        return 0.0
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    header = ledger.header
    numerator = 2.0 if header.per_example else 1.0
    if _mean_loss(ledger, numerator) > HOPELESS:
        total = sum(squared_mu(r.setting, header.auxiliaries) * r.steps for r in ledger.runs)
        return epsilon_of(math.sqrt(total), delta)  # sound: as if all took part in every step
    relation = {
        "add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace-one": NeighboringRelation.REPLACE_ONE,
    }[header.relation]
    # Losses are rounded up to a grid, so a coarser one is sound; long schedules need it.
    interval = 1e-3 if coarse or len(ledger.runs) > FEW else 1e-4
    accountant = PLDAccountant(relation, value_discretization_interval=interval)
    for run in ledger.runs:
        mu = math.sqrt(squared_mu(run.setting, header.auxiliaries))
        if math.isinf(mu):
            return math.inf
        event = PoissonSampledDpEvent(header.rate, GaussianDpEvent(numerator / mu))
        accountant.compose(event, run.steps)
    return float(accountant.get_epsilon(delta))


def _mean_loss(ledger: Ledger, numerator: float) -> float:
    """A lower bound on the mean privacy loss: KL(qQ + (1−q)P ‖ P) ≥ q·KL(Q ‖ P) − H(q) a step."""
    q, total = ledger.header.rate, 0.0
    entropy = 0.0 if q >= 1.0 else -q * math.log(q) - (1.0 - q) * math.log1p(-q)
    for run in ledger.runs:
        divergence = squared_mu(run.setting, ledger.header.auxiliaries) / (2.0 * numerator**2)
        total += run.steps * max(0.0, q * divergence - entropy)
    return total

"""A run, decided before it starts: what each step does to privacy, and who takes part in it.

`account`, `train` and `audit` all read the same plan. A step is taken with the very setting that
the plan gave to the ledger.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from dpdt.accounting import SQUARABLE, by_name, check_delta
from dpdt.accounting.calibrate import calibrate
from dpdt.accounting.composition import Composition
from dpdt.algorithm.recipe import Recipe
from dpdt.bands import NONE, Smoothing
from dpdt.errors import InputError
from dpdt.fields import AUTO
from dpdt.lattice import on_lattice
from dpdt.ledger import Header, Ledger, Setting, Stretch, counted
from dpdt.methods import bands, rate
from dpdt.methods.method import Training
from dpdt.methods.problem import Problem
from dpdt.noise import Randomness
from dpdt.partition import Partition, PartitionOfUsers, PoissonSampler, Sampler, Shards
from dpdt.users import Users

ROUGHLY = 0.005  # how near ε must come to its target where numbers of bands are compared
SURPLUS = 4  # how many times the nominal number of examples there may be
IN_USERS = (
    "; with unit 'user' a batch_size of b takes as many examples a step as b users own on average"
)
LEAST, MOST = SQUARABLE


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the steps of a run do to privacy.

    Algorithm 1 has a `recipe`. Its runs of equal steps follow from the recipe.
    Other methods give their runs of equal steps directly, in `equal`.
    """

    training: Training  # with every choice made
    problem: Problem
    header: Header
    epochs: int
    recipe: Recipe | None = None
    equal: tuple[tuple[Setting, int], ...] = ()  # a setting, and for how many steps
    shards: int | None = None  # mini-batches are shards of this number of teachers
    smoothing: Smoothing = NONE  # what the method makes of its steps

    @cached_property
    def runs(self) -> tuple[tuple[Setting, int], ...]:
        """Runs of equal steps, in order."""
        found = self.equal
        if self.recipe is not None:
            found = self.recipe.runs(self.epochs, self.header.batches)
        return tuple((_on_lattice(setting, self.header), number) for setting, number in found)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(number for _, number in self.runs))

    def at(self, step: int) -> Setting:
        """What a step does."""
        return self.runs[bisect_right(self._ends, step)][0]

    @property
    def steps(self) -> int:
        return self.epochs * self.header.batches

    def ledger(self) -> Ledger:
        """The ledger that a complete run will have."""
        ledger = Ledger(self.header, closed=True)
        for setting, number in self.runs:
            ledger.append(setting, number)
        return ledger

    def scaled(self, factor: float) -> Plan:
        """The plan with all noise times a factor."""

        def times(noise: Sequence[float]) -> tuple[float, ...]:
            return tuple(sigma * factor for sigma in noise)

        if self.recipe is not None:
            recipe = replace(self.recipe, noise=times(self.recipe.noise))
            return replace(self, recipe=recipe)
        equal = tuple((replace(s, noise=times(s.noise)), number) for s, number in self.equal)
        return replace(self, equal=equal)

    def tuned(self, reach: float = rate.UNIT, *, linear: bool = True) -> Plan:
        """The plan with the learning rate and penalty that fit its noise (rate.py).

        Clip and noise stay as they are, so what is guaranteed does not change.
        """
        return self.at_rate(rate.fitting(self._noise, self.steps, reach, linear=linear))

    @property
    def _noise(self) -> float:
        """σ of a step; under correlated noise that of the sum of all steps, divided by √T."""
        assert self.recipe is not None
        return self.recipe.noise[0] * bands.relief(self)

    def moved(self) -> float:
        """What the noise of all steps moves an entry of θ by, as a standard deviation."""
        assert self.recipe is not None
        noise = self.recipe.noise[0]
        if not self.recipe.bounded:  # a multiplier that is not clipped, so nothing is lost of it
            left = noise * bands.relief(self, replace(self.smoothing, averaging=0.0))
            return rate.moved(left, self.steps, self.recipe.lr, 0.0)
        norm = noise * math.sqrt(self.problem.size) / self.recipe.clip[0]
        return rate.moved(noise, self.steps, self.recipe.lr, norm)

    def at_rate(self, lr: float) -> Plan:
        """The plan with this learning rate, and the penalty that goes with it."""
        assert self.recipe is not None
        return replace(self, recipe=replace(self.recipe, lr=lr, penalty=(rate.penalty(lr),)))

    def sampler(
        self,
        *,
        source: Randomness,
        users: Users | None,
        examples: int,
        absent: np.ndarray | None = None,
    ) -> Sampler:
        """Return who is in which mini-batch and auxiliary.

        Args:
            source: of secret coins.
            users: the owner of each example, where users are the unit.
            examples: the true number of examples. Where it is private, only coins depend on it.
            absent: examples that never take part.
        """
        header, seed = self.header, self.training.train.seed
        if examples > most_examples(header):
            raise InputError(
                f"privacy.examples: there may be up to {SURPLUS} times as many examples as the "
                f"nominal number, found {header.examples} and more than {most_examples(header)} "
                "examples; declare a larger number"
            )
        if absent is not None and header.relation == "replace-one":
            raise InputError("absent: where examples are replaced, none can be absent")
        if self.shards is not None:
            return Shards(examples=examples, shards=self.shards, seed=seed, absent=absent)
        if header.sampling == "poisson":
            return PoissonSampler(
                examples=examples,
                rate=header.rate,
                auxiliaries=header.auxiliaries,
                per_example=header.per_example,
                source=source,
                absent=absent,
                groups=header.groups,
                seed=seed,
                unnumbered=header.relation == "add-remove",
            )
        fixed: Any = {
            "batches": header.batches,
            "auxiliaries": header.auxiliaries,
            "seed": seed,
            "reshuffle": header.reshuffle,
            "divisible": not self.training.method.private,
        }
        if users is not None:
            return PartitionOfUsers(users=users, **fixed)
        return Partition(examples=examples, **fixed)


def most_examples(header: Header) -> int:
    """Return how many examples a run may have: n, or some times the nominal number."""
    return header.examples * (SURPLUS if header.relation == "add-remove" else 1)


@cache
def _on_lattice(setting: Setting, header: Header) -> Setting:
    """The setting with the lattice of its noise, and what rounding costs."""
    for name in ("clip", "noise"):
        for value in getattr(setting, name):
            if value and not LEAST <= value <= MOST:
                raise InputError(
                    f"method.{name}: must be from {LEAST:g} to {MOST:g} with its schedule, found "
                    f"{value:g}"
                )
    for name in ("penalty", "step_size"):
        if not getattr(setting, name) <= MOST:
            raise InputError(
                f"method.penalty: the {name.replace('_', ' ')} comes to {getattr(setting, name):g};"
                f" it must be at most {MOST:g}"
            )
    terms = most_examples(header) if header.sampling == "poisson" else header.auxiliaries
    return on_lattice(setting, header.blocks, header.auxiliaries, terms)


def decide(training: Training, problem: Problem) -> Plan:
    """Plan a run; the noise is calibrated if a target ε is given."""
    train, privacy = training.train, training.privacy
    what = counted(privacy.unit)
    if train.batch_size > problem.examples:
        raise InputError(
            f"train.batch_size: must be at most the number of {what}, {problem.examples}, found "
            f"{train.batch_size}{IN_USERS if what == 'users' else ''}"
        )
    check_delta(privacy.delta, problem.examples, what, allow_large=privacy.allow_large_delta)
    method = training.method.settled(problem, train)
    if method.needs_public and not problem.public:
        raise InputError(
            f"data.public: {method.name} needs public examples; give their number, or public=… in "
            "Python"
        )
    plan = method.plan(problem, replace(training, method=method))
    if what == "users" and plan.header.auxiliaries > problem.examples:
        raise InputError(
            f"method.auxiliaries: must be at most the number of users, {problem.examples}, since "
            f"all of a user is in one, found {plan.header.auxiliaries}"
        )
    plan = _calibrated(_banded(plan))
    return plan.tuned() if method.lr == AUTO else plan


def _banded(plan: Plan) -> Plan:
    """The plan with noise that is correlated over the number of steps that is asked for, or best.

    What is best follows from public numbers, by the noise that each number of bands needs.
    """
    training = plan.training
    number = training.method.noise_bands
    if number == AUTO:
        privacy = training.privacy
        assert privacy.epsilon is not None  # else refused beforehand
        target = (privacy.epsilon, privacy.delta)

        def noise(tried: Plan) -> float:
            return calibrate(
                tried.ledger(), *target, accountant=Composition(coarse=True), tolerance=ROUGHLY
            )

        number = bands.chosen(plan, noise)
        method = replace(training.method, noise_bands=number)  # type: ignore[type-var]
        plan = replace(plan, training=replace(training, method=method))
    return bands.banded(plan, int(number))


def _calibrated(plan: Plan) -> Plan:
    """The plan with its noise scaled until a target ε is met, if there is one."""
    privacy = plan.training.privacy
    if privacy.epsilon is None or not plan.training.method.private:
        return plan
    if not any(any(setting.noise) for setting, _ in plan.runs):
        raise InputError("method.noise: cannot be scaled to a target epsilon, found 0")
    runs = tuple(plan.ledger().runs)
    return plan.scaled(
        _factor(plan.header, runs, privacy.epsilon, privacy.delta, privacy.accountant)
    )


@cache
def _factor(
    header: Header, runs: tuple[Stretch, ...], epsilon: float, delta: float, accountant: str
) -> float:
    """`calibrate`, remembered, since the runs of a comparison differ by their seed only."""
    return calibrate(Ledger(header, list(runs)), epsilon, delta, accountant=by_name(accountant))

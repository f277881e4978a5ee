"""From settings to what will be done: the recipe, the partition's shape, the ledger of a full run.

Everything here is known before training starts, so the guarantee of a run can be told beforehand.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpdt.accounting import by_name
from dpdt.accounting.calibrate import calibrate
from dpdt.algorithm import schedule
from dpdt.algorithm.blocks import Blocks
from dpdt.algorithm.preconditioner import DECAYS, Preconditioner
from dpdt.algorithm.recipe import Recipe
from dpdt.config import Method, Plain, Settings, Train
from dpdt.errors import InputError
from dpdt.ledger import Header, Ledger, Setting
from dpdt.models.bounds import Bounds
from dpdt.noise import Randomness
from dpdt.partition import Partition, PoissonSampler


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, decided: what its steps do to privacy, epoch by epoch.

    Algorithm 1 has a `recipe`; the steps of other methods are all of one `setting`.
    """

    header: Header
    epochs: int
    recipe: Recipe | None = None
    setting: Setting | None = None

    def at(self, epoch: int) -> Setting:
        """What every step of an epoch does."""
        if self.recipe is not None:
            return self.recipe.at(epoch)
        assert self.setting is not None
        return self.setting

    @property
    def steps(self) -> int:
        return self.epochs * self.header.batches

    def ledger(self) -> Ledger:
        """The ledger that a complete run will have."""
        ledger = Ledger(self.header)
        for epoch in range(self.epochs):
            ledger.append(self.at(epoch), self.header.batches)
        return ledger

    def sampler(
        self, *, seed: int, source: Randomness, users: Sequence[Any] | None
    ) -> Partition | PoissonSampler:
        """Who is in which mini-batch and auxiliary."""
        header = self.header
        if header.sampling == "poisson":
            return PoissonSampler(
                examples=header.examples,
                rate=header.rate,
                auxiliaries=header.auxiliaries,
                per_example=header.per_example,
                source=source,
            )
        return Partition(
            examples=header.examples,
            batches=header.batches,
            auxiliaries=header.auxiliaries,
            seed=seed,
            reshuffle=header.reshuffle,
            users=users,
        )


def plan(settings: Settings, blocks: Blocks, examples: int, bounds: Bounds | None = None) -> Plan:
    """Decide a run on `examples` examples; calibrates the noise if a target ε is given.

    `bounds` are what the model's construction says about its gradients.
    """
    train = settings.train
    if train.batch_size > examples:
        raise InputError(
            f"train.batch_size: must be at most the number of examples, {examples}, "
            f"found {train.batch_size}"
        )
    batches = _batches(train, examples)
    match settings.method:
        case Method():
            decided = _decoupled(settings, settings.method, blocks, examples, batches, bounds)
        case Plain():
            decided = _plain(settings, blocks, examples, batches)
    return decided


def _batches(train: Train, examples: int) -> int:
    return max(1, round(examples / train.batch_size))


def auxiliaries_of(method: Method, train: Train, examples: int) -> int:
    """K: as given, or as many as a mini-batch has examples."""
    if not method.per_example:
        return int(method.auxiliaries)
    if method.sampling == "poisson":
        return train.batch_size
    return math.ceil(examples / _batches(train, examples))


def _plain(settings: Settings, blocks: Blocks, examples: int, batches: int) -> Plan:
    """No clipping, no noise, and so no guarantee."""
    header = Header(
        method="plain",
        examples=examples,
        auxiliaries=1,
        batches=batches,
        memory="none",
        sampling="partition",
        unit=settings.privacy.unit,
        relation="replace-one",
        blocks=blocks.blocks,
        reshuffle=True,
    )
    nothing = (0.0,) * len(blocks.blocks)
    setting = _step(clip=nothing, noise=nothing, lr=settings.method.lr)
    return Plan(header=header, epochs=settings.train.epochs, setting=setting)


def _step(*, clip: tuple[float, ...], noise: tuple[float, ...], lr: float) -> Setting:
    """A step of a method without auxiliaries' learning rates and penalties."""
    return Setting(
        clip=clip, noise=noise, penalty=1.0, lr=lr, global_lr=1.0, step_size=lr, contraction=1.0
    )


def _decoupled(
    settings: Settings,
    method: Method,
    blocks: Blocks,
    examples: int,
    batches: int,
    bounds: Bounds | None,
) -> Plan:
    train = settings.train
    poisson = method.sampling == "poisson"
    auxiliaries = auxiliaries_of(method, train, examples)
    clip = blocks.expand(method.clip, "method.clip")
    noise = clip if method.noise is None else blocks.expand(method.noise, "method.noise")
    recipe = _recipe(method, auxiliaries, clip, noise)
    if schedule.grows(recipe.clip_schedule, train.epochs):
        warnings.warn(
            "method.clip_schedule grows: the lemma 'Bound for Clipping Bias' needs a clipping "
            "threshold that never increases, so it no longer bounds the bias κ",
            stacklevel=2,
        )
    header = Header(
        method="dpdt",
        examples=examples,
        auxiliaries=auxiliaries,
        batches=batches,
        memory=method.memory,
        sampling=method.sampling,
        unit=settings.privacy.unit,
        relation=settings.privacy.relation or ("add-remove" if poisson else "replace-one"),
        blocks=blocks.blocks,
        per_example=method.per_example,
        rate=train.batch_size / examples if poisson else 1.0,
        reshuffle=method.reshuffle,
        preconditioner=method.preconditioner,
        regularizer=method.regularizer if method.weight_decay else "none",
        weight_decay=method.weight_decay,
        auxiliary_weight_decay=method.auxiliary_weight_decay,
        gradient_bound=None if bounds is None else bounds.gradient,
        smoothness=None if bounds is None else bounds.smoothness,
        private=settings.privacy.noise_seed is None,
    )
    decided = Plan(recipe=recipe, header=header, epochs=train.epochs)
    target = settings.privacy.epsilon
    if target is None:
        return decided
    if not any(noise):
        raise InputError("method.noise: cannot be scaled to a target epsilon, found 0")
    factor = calibrate(
        decided.ledger(),
        target,
        settings.privacy.delta,
        accountant=by_name(settings.privacy.accountant),
    )
    return replace(decided, recipe=replace(recipe, noise=tuple(s * factor for s in noise)))


def _recipe(
    method: Method, auxiliaries: int, clip: tuple[float, ...], noise: tuple[float, ...]
) -> Recipe:
    penalty, table = method.penalty, method.penalty_schedule
    if isinstance(penalty, Mapping):  # {value = …, kind = …, …}: a base value and its schedule
        options = dict(penalty)
        penalty = options.pop("value")
        table = options or table
    tables = table if isinstance(table, tuple | list) else (table,)
    decay = method.preconditioner_decay
    return Recipe(
        auxiliaries=auxiliaries,
        clip=clip,
        noise=noise,
        lr=method.lr,
        global_lr=method.global_lr,
        penalty=tuple(penalty) if isinstance(penalty, tuple | list) else (float(penalty),),
        clip_schedule=schedule.parse(method.clip_schedule, key="clip_schedule"),
        noise_schedule=schedule.parse(method.noise_schedule, key="noise_schedule"),
        penalty_schedule=tuple(schedule.parse(t, key="penalty_schedule") for t in tables),
        memory=method.memory,
        preconditioner=Preconditioner(
            name=method.preconditioner,
            decay=DECAYS[method.preconditioner] if decay is None else decay,
            floor=method.floor,
        ),
        regularizer=method.regularizer if method.weight_decay else "none",
        weight_decay=method.weight_decay,
        auxiliary_weight_decay=method.auxiliary_weight_decay,
    )

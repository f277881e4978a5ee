"""Decoupled training, Algorithm 1, as a method among others: its settings and its plan."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpdt.algorithm.blocks import GRANULARITIES
from dpdt.algorithm.preconditioner import DECAYS, Preconditioner
from dpdt.algorithm.proximal import REGULARIZERS
from dpdt.algorithm.recipe import Recipe
from dpdt.bands import Smoothing
from dpdt.errors import InputError
from dpdt.fields import (
    AUTO,
    PER_EXAMPLE,
    PUBLIC,
    choice,
    flag,
    is_integer,
    is_number,
    is_positive,
    key,
    named,
    number,
    or_auto,
    positive,
    table_of,
)
from dpdt.ledger import Header, Setting
from dpdt.methods import rate
from dpdt.methods.bands import SAMPLINGS, kind_of, noise_bands
from dpdt.methods.dpdt.checks import check
from dpdt.methods.method import Engine, Job, Method, Training
from dpdt.methods.plan import Plan
from dpdt.methods.problem import Problem
from dpdt.methods.schedules import LANGEVIN, grows, langevin, refuse_vanishing, schedule_of
from dpdt.methods.settings import PrivacySettings, TrainSettings

MEMORIES = ("auxiliary", "shared", "none")
FLOAT = 4  # bytes


def _is_schedule(value: Any) -> bool:
    return isinstance(value, str | Mapping)


def _is_list(value: Any, check: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(check, value))


def _is_penalty(value: Any) -> bool:
    table = isinstance(value, Mapping) and is_positive(value.get("value"))
    return value == AUTO or is_positive(value) or _is_list(value, is_positive) or table


@dataclass(frozen=True, kw_only=True)
class Dpdt(Method):
    """Decoupled training, Algorithm 1.

    The defaults are the best known settings at a proven ε (docs/results.md). Every "auto" has a
    meaning of its own, whatever the other keys are: see rate.py, and `settled` below.
    """

    name: str = named("dpdt")
    auxiliaries: int | str = key(
        PER_EXAMPLE,
        f"a whole number from 1 or {PER_EXAMPLE!r}",
        lambda v: v == PER_EXAMPLE or (is_integer(v) and v >= 1),
    )
    memory: str = choice("shared", MEMORIES)
    sampling: str = choice("poisson", SAMPLINGS)
    noise_bands: int | str = noise_bands()
    reshuffle: bool = flag(False)
    preconditioner: str = choice(AUTO, (*DECAYS, PUBLIC, AUTO))
    preconditioner_decay: float | None = number(None, most=0.999999)
    preconditioner_power: float = key(
        0.5, "0.5 (V = 1/√v) or 1.0 (V = 1/v)", lambda v: v in (0.5, 1.0)
    )
    floor: float = positive(1e-8)
    lr: float | str = or_auto(AUTO, "a positive number", is_positive)
    global_lr: float = positive(1.0)
    penalty: Any = key(
        AUTO,
        "a positive number, 'auto', a list with one for each auxiliary, or a table "
        "{value, …schedule}",
        _is_penalty,
    )
    clip: Any = key(
        AUTO,
        "a positive number, 'auto', or a table of numbers by kind or block",
        lambda v: v == AUTO or table_of(is_positive)(v),
    )
    noise: Any = key(
        None,
        "a number from 0, or a table of them by kind or block",
        table_of(lambda v: is_number(v) and v >= 0),
    )
    clip_schedule: Any = key("constant", "constant, paper or a table", _is_schedule)
    noise_schedule: Any = key("constant", "constant, paper, langevin or a table", _is_schedule)
    penalty_schedule: Any = key(
        "constant",
        "constant, paper, paper-decay, a table, or a list with one for each auxiliary",
        lambda v: _is_schedule(v) or _is_list(v, _is_schedule),
    )
    regularizer: str = choice("l2", REGULARIZERS)
    weight_decay: float = number(0.0)
    auxiliary_weight_decay: float = number(0.0)
    granularity: str = choice("model", GRANULARITIES)
    averaging: float | str = or_auto(
        AUTO, "a number from 0 below 1", lambda v: is_number(v) and 0 <= v < 1
    )

    @property
    def per_example(self) -> bool:
        """Whether every example is its own auxiliary."""
        return self.auxiliaries == PER_EXAMPLE

    @property
    def hides_number(self) -> bool:
        return self.sampling == "poisson"

    def check(self, train: TrainSettings, privacy: PrivacySettings) -> None:
        check(self, train, privacy)

    def relation(self, privacy: PrivacySettings) -> str:
        """With a fixed partition replace-one, else as for any method."""
        return "replace-one" if self.sampling == "partition" else super().relation(privacy)

    def settled(self, problem: Problem, train: TrainSettings) -> Dpdt:
        """The method with its preconditioner, from public inputs where that is possible, and C."""
        name = self.preconditioner
        if name == AUTO:
            whiten = problem.linear and problem.public > 1 and not train.augment
            name = PUBLIC if whiten else "identity"
        if name == PUBLIC and not problem.public:
            raise InputError(
                "data.public: preconditioner 'public' needs public examples; give their number, "
                "or public=… in Python"
            )
        clip = self.clip
        if clip == AUTO:
            # measured where there are no public inputs, and taken there alone
            length = None if problem.public else problem.length
            clip = rate.clip(whitened=name == PUBLIC, length=length)
        return replace(self, preconditioner=name, clip=clip)

    def number_of_auxiliaries(self, problem: Problem, train: TrainSettings) -> int:
        """K: as given, or as many as a mini-batch has examples."""
        if not self.per_example:
            return int(self.auxiliaries)
        if self.sampling != "partition":
            return train.batch_size
        return math.ceil(problem.examples / train.batches(problem.examples))

    def state_size(self, problem: Problem, train: TrainSettings) -> int:
        """π, and v if the preconditioner has one, in float32."""
        number = self.number_of_auxiliaries(problem, train)
        copies = {"auxiliary": number, "shared": 1, "none": 0}[self.memory]
        return (
            copies * problem.size * (2 if self.preconditioner in ("rmsprop", "adam") else 1) * FLOAT
        )

    def plan(self, problem: Problem, training: Training) -> Plan:
        train, blocks = training.train, problem.blocks(self.granularity)
        clip = blocks.expand(self.clip, "method.clip")
        noise = clip if self.noise is None else blocks.expand(self.noise, "method.noise")
        batches = train.batches(problem.examples)
        recipe = self._recipe(
            self.number_of_auxiliaries(problem, train), clip, noise, train.epochs * batches
        )
        for schedule in recipe.penalty_schedule:
            refuse_vanishing(schedule, train.epochs, batches)
        if grows(recipe.clip_schedule, train.epochs, batches):
            warnings.warn(
                "method.clip_schedule grows: the lemma 'Bound for Clipping Bias' needs a clipping "
                "threshold that never increases, so it no longer bounds the bias κ",
                stacklevel=2,
            )
        # rounding to bfloat16 may leave the bounds that hold by construction
        bounds = problem.bounds if train.precision == "float32" else None
        header = Header(
            method=self.name,
            examples=problem.examples,
            auxiliaries=recipe.auxiliaries,
            batches=batches,
            memory=self.memory,
            sampling=kind_of(self.sampling),
            unit=training.privacy.unit,
            relation=self.relation(training.privacy),
            blocks=blocks.blocks,
            per_example=self.per_example,
            rate=1.0 if self.sampling == "partition" else train.batch_size / problem.examples,
            reshuffle=self.reshuffle,
            preconditioner=self.preconditioner,
            regularizer=recipe.regularizer,
            weight_decay=self.weight_decay,
            auxiliary_weight_decay=self.auxiliary_weight_decay,
            gradient_bound=None if bounds is None else bounds.gradient,
            smoothness=None if bounds is None else bounds.smoothness,
            averaging=recipe.averaging,
            one_penalty=recipe.shared_penalty,
            release=training.privacy.release,
            private=training.privacy.noise_seed is None,
        )
        return Plan(
            training=training,
            problem=problem,
            recipe=recipe,
            header=header,
            epochs=train.epochs,
            smoothing=self._smoothing(recipe),
        )

    def _smoothing(self, recipe: Recipe) -> Smoothing:
        """What memory makes of published steps: with β = 1 − ρη, (1 − x/2)/(1 − βx)."""
        if self.memory == "none":
            return Smoothing(averaging=recipe.averaging)
        forgotten = recipe.lr * sum(recipe.penalty) / len(recipe.penalty)
        momentum = min(max(0.0, 1.0 - forgotten), 0.999)
        return Smoothing(momentum=momentum, lead=0.5, averaging=recipe.averaging)

    def _recipe(
        self, auxiliaries: int, clip: tuple[float, ...], noise: tuple[float, ...], steps: int
    ) -> Recipe:
        lr = rate.FASTEST if self.lr == AUTO else float(self.lr)  # until the noise is known
        penalty, table = self.penalty, self.penalty_schedule
        if penalty == AUTO:
            penalty = rate.penalty(lr)
        if isinstance(penalty, Mapping):  # {value = …, kind = …, …}: a base value and its schedule
            options = dict(penalty)
            penalty = options.pop("value")
            table = options or table
        penalties = tuple(penalty) if isinstance(penalty, tuple | list) else (float(penalty),)
        tables = tuple(table) if isinstance(table, tuple | list) else (table,)
        pairs = [
            (tables[k % len(tables)], penalties[k % len(penalties)])
            for k in range(max(len(tables), len(penalties)))
        ]
        penalty_schedule = tuple(schedule_of("penalty_schedule", t, base) for t, base in pairs)
        averaging = rate.averaging(steps) if self.averaging == AUTO else float(self.averaging)
        decay, name = self.preconditioner_decay, self.preconditioner
        if name == PUBLIC:
            name = "identity"  # in the coordinates that the inputs are brought into beforehand
        return Recipe(
            auxiliaries=auxiliaries,
            clip=clip,
            noise=noise,
            lr=lr,
            global_lr=self.global_lr,
            penalty=penalties,
            clip_schedule=schedule_of("clip_schedule", self.clip_schedule),
            noise_schedule=(
                langevin(penalty_schedule[0])
                if self.noise_schedule == LANGEVIN
                else schedule_of("noise_schedule", self.noise_schedule)
            ),
            penalty_schedule=penalty_schedule,
            memory=self.memory,
            preconditioner=Preconditioner(
                name=name,
                decay=DECAYS[name] if decay is None else decay,
                floor=self.floor,
                power=self.preconditioner_power,
            ),
            regularizer=self.regularizer if self.weight_decay else "none",
            weight_decay=self.weight_decay,
            auxiliary_weight_decay=self.auxiliary_weight_decay,
            averaging=averaging,
        )

    def without_noise(self, setting: Setting) -> Dpdt:
        """The learning rate stays the one that fitted the noise."""
        return replace(self, noise=0.0, lr=setting.lr)

    def engine(self, job: Job) -> Engine:
        from dpdt.methods.dpdt.engine import engine

        return engine(self, job)

"""From settings to what will be done: the recipe, the partition's shape, the ledger of a full run.

Everything here is known before training starts, so the guarantee of a run can be told beforehand.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from dpdt.accounting import by_name, check_delta
from dpdt.accounting.calibrate import calibrate
from dpdt.algorithm.blocks import Blocks
from dpdt.algorithm.preconditioner import DECAYS, Preconditioner
from dpdt.algorithm.recipe import Recipe
from dpdt.algorithm.schedule import grows
from dpdt.config import Dpsgd, Gep, Method, Pate, Plain, Settings, Train
from dpdt.errors import InputError
from dpdt.keys import AUTO, PUBLIC
from dpdt.lattice import on_lattice
from dpdt.ledger import Block, Header, Ledger, Run, Setting
from dpdt.methods.schedules import refuse_vanishing, schedule_of
from dpdt.models.bounds import Bounds
from dpdt.noise import Randomness
from dpdt.partition import Partition, PoissonSampler, Sampler, Shards

S = TypeVar("S", bound=Settings)

# Over the whole run, noise of deviation 1 may reach an output: large enough to use all the signal
# there is, not larger. A step forgets a tenth of the multiplier (ρη; one minus it is a momentum).
# With hardly any noise, η is limited as for gradient descent. Averages go over a few percent.
FORGOTTEN, FASTEST, AVERAGED = 0.1, 32.0, 0.04
# A network's reach grows as it learns, ten times and more, so less noise may pass at the start; but
# a short run must still get somewhere: η·reach·T is at least PATH, unless η·reach would exceed 5.
NETWORK_NOISE, PATH, NETWORK_FASTEST = 0.375, 200.0, 5.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, decided: what its steps do to privacy, epoch by epoch.

    Algorithm 1 has a `recipe`; other methods have runs of equal steps.
    """

    header: Header
    epochs: int
    recipe: Recipe | None = None
    settings: tuple[tuple[Setting, int], ...] = ()  # and the number of steps of each

    def at(self, step: int) -> Setting:
        """What a step does."""
        if self.recipe is not None:
            return _on_lattice(self.recipe.at(step // self.header.batches), self.header)
        found = next(s for s, end in zip(self._kinds, self._ends, strict=True) if step < end)
        return _on_lattice(found, self.header)

    @cached_property
    def _kinds(self) -> list[Setting]:
        return [setting for setting, _ in self.settings]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(number for _, number in self.settings))

    @property
    def steps(self) -> int:
        return self.epochs * self.header.batches

    def ledger(self) -> Ledger:
        """The ledger that a complete run will have."""
        ledger = Ledger(self.header, closed=True)
        if self.recipe is None:
            for setting, number in self.settings:
                ledger.append(_on_lattice(setting, self.header), number)
            return ledger
        for epoch in range(self.epochs):
            ledger.append(self.at(epoch * self.header.batches), self.header.batches)
        return ledger

    def tuned(self, reach: float = math.sqrt(2.0), *, linear: bool = True) -> Plan:
        """The plan with the learning rate and penalty that fit its noise.

        The noise z of a step, in units of a contribution 2ρη·g, moves θ by z/(2ρ²η) over all later
        steps, so T steps move it by σ√T/(2ρ²η), and an output by that times `reach` (reach.py; at
        first that of a linear model on inputs of norm 1). With ρη fixed this is 1 for one η. Clip
        and noise stay as they are, so what is guaranteed does not change.
        """
        assert self.recipe is not None
        noise = self.recipe.noise[0] * math.sqrt(self.steps)
        allowed = 2 * FORGOTTEN**2 / noise if noise else math.inf  # η · reach
        if linear:
            return self.at_rate(min(FASTEST / reach**2, allowed / reach))
        rate = max(NETWORK_NOISE * allowed, PATH / self.steps)
        return self.at_rate(min(NETWORK_FASTEST, rate) / reach)

    def at_rate(self, lr: float) -> Plan:
        """The plan with this learning rate, and the penalty that goes with it."""
        assert self.recipe is not None
        return replace(self, recipe=replace(self.recipe, lr=lr, penalty=(FORGOTTEN / lr,)))

    def sampler(
        self,
        *,
        seed: int,
        source: Randomness,
        users: Sequence[Any] | None,
        absent: np.ndarray | None = None,
    ) -> Sampler:
        """Who is in which mini-batch and auxiliary; `absent` examples never are."""
        header = self.header
        if absent is not None and header.relation != "add-remove":
            raise InputError("absent: where examples are replaced, none can be absent")
        if header.method == "pate":
            return Shards(
                examples=header.examples, shards=self.settings[0][1], seed=seed, absent=absent
            )
        if header.sampling == "poisson":
            return PoissonSampler(
                examples=header.examples,
                rate=header.rate,
                auxiliaries=header.auxiliaries,
                per_example=header.per_example,
                source=source,
                absent=absent,
            )
        return Partition(
            examples=header.examples,
            batches=header.batches,
            auxiliaries=header.auxiliaries,
            seed=seed,
            reshuffle=header.reshuffle,
            users=users,
        )


def plan(
    settings: Settings,
    blocks: Blocks,
    examples: int,
    bounds: Bounds | None = None,
    public: int = 0,
) -> Plan:
    """Decide a run on `examples` examples; calibrates the noise if a target ε is given.

    `bounds` are what the model's construction says about its gradients, `public` is the number of
    public examples.
    """
    train = settings.train
    if train.batch_size > examples:
        raise InputError(
            f"train.batch_size: must be at most the number of examples, {examples}, "
            f"found {train.batch_size}"
        )
    check_delta(settings.privacy.delta, examples, allow_large=settings.privacy.allow_large_delta)
    batches = _batches(train, examples)
    match settings.method:
        case Method():
            if settings.method.preconditioner == PUBLIC and not public:
                raise InputError(
                    "data.public: preconditioner 'public' needs public examples; give their "
                    "number, or public=… in Python"
                )
            decided = _decoupled(settings, settings.method, blocks, examples, batches, bounds)
        case Dpsgd() | Gep():
            decided = _sampled(settings, settings.method, blocks, examples, batches)
        case Pate():
            decided = _votes(settings, settings.method, examples, public)
        case Plain():
            return _plain(settings, settings.method, blocks, examples, batches)
    decided = _calibrated(decided, settings)
    return decided.tuned() if settings.method.lr == AUTO else decided


@cache
def _on_lattice(setting: Setting, header: Header) -> Setting:
    """The setting with the lattice of its noise, and what rounding costs."""
    terms = header.examples if header.sampling == "poisson" else header.auxiliaries
    return on_lattice(setting, header.blocks, header.auxiliaries, terms)


def settled(settings: S, *, can_whiten: bool) -> S:
    """The settings with a preconditioner: from public inputs where that can be, if it was open."""
    method = settings.method
    if not isinstance(method, Method) or method.preconditioner != AUTO:
        return settings
    name = PUBLIC if can_whiten and not settings.train.augment else "identity"
    return replace(settings, method=replace(method, preconditioner=name))


def relation_of(settings: Settings) -> str:
    """Which data sets are neighbours: as asked, else as the method's sampling allows."""
    match settings.method:
        case Plain():
            return "replace-one"
        case Method(sampling="partition"):
            return "replace-one"
        case _:
            return settings.privacy.relation or "add-remove"


def _calibrated(decided: Plan, settings: Settings) -> Plan:
    """The plan with its noise scaled until a target ε is met, if there is one."""
    target = settings.privacy.epsilon
    if target is None:
        return decided
    ledger = decided.ledger()
    if not any(any(run.setting.noise) for run in ledger.runs):
        raise InputError("method.noise: cannot be scaled to a target epsilon, found 0")
    factor = _factor(
        ledger.header,
        tuple(ledger.runs),
        target,
        settings.privacy.delta,
        settings.privacy.accountant,
    )

    def times(setting: Setting) -> Setting:
        return replace(setting, noise=tuple(s * factor for s in setting.noise))

    if decided.recipe is not None:
        noise = tuple(s * factor for s in decided.recipe.noise)
        return replace(decided, recipe=replace(decided.recipe, noise=noise))
    return replace(decided, settings=tuple((times(s), n) for s, n in decided.settings))


@cache
def _factor(
    header: Header, runs: tuple[Run, ...], epsilon: float, delta: float, accountant: str
) -> float:
    """`calibrate`, remembered: the runs of a comparison differ by their seed only."""
    return calibrate(Ledger(header, list(runs)), epsilon, delta, accountant=by_name(accountant))


def _sampled(
    settings: Settings, method: Dpsgd | Gep, blocks: Blocks, examples: int, batches: int
) -> Plan:
    """Poisson sampling; the sum of clipped gradients, with noise in units of the clip."""
    expected = settings.train.batch_size
    header = Header(
        method=method.name,
        examples=examples,
        auxiliaries=expected,
        batches=batches,
        memory="none",
        sampling="poisson",
        unit="example",
        relation="add-remove",
        blocks=blocks.blocks,
        per_example=True,
        rate=expected / examples,
        private=settings.privacy.noise_seed is None,
    )
    clips: tuple[float, ...] = (method.clip,)
    if isinstance(method, Gep):
        clips = (method.clip, method.residual_clip)
        size = blocks.blocks[0].size
        header = replace(
            header,
            blocks=(
                Block(name="embedding", kind="other", size=method.directions),
                Block(name="residual", kind="other", size=size),
            ),
        )
    multiplier = 1.0 if method.noise is None else method.noise
    noise = tuple(multiplier * c / expected for c in clips)
    setting = _step(clip=clips, noise=noise, lr=method.lr)
    return Plan(
        header=header,
        epochs=settings.train.epochs,
        settings=((setting, settings.train.epochs * batches),),
    )


def _votes(settings: Settings, method: Pate, examples: int, public: int) -> Plan:
    """One step for each teacher, which costs nothing by itself, then one for each query.

    A query compares the winner's votes with a threshold; an answer is a noisy winner. One example
    changes one teacher's vote: the largest count moves by at most 1, the counts by √2. Both are
    Gaussian mechanisms, so they compose exactly; the answers are paid for in full whether or not
    they are given.
    """
    if not public:
        raise InputError(
            "data.public: pate needs public examples for its student; give their number, or "
            "public=… in Python"
        )
    queries = public if method.queries is None else method.queries
    if queries > public:
        raise InputError(
            f"method.queries: must be at most the number of public examples, {public}, "
            f"found {queries}"
        )
    answers = min(queries, max(1, queries // 2) if method.answers is None else method.answers)
    header = Header(
        method="pate",
        examples=examples,
        auxiliaries=1,
        batches=method.teachers + queries,
        memory="auxiliary",
        sampling="partition",
        unit="example",
        relation="add-remove",
        blocks=(
            Block(name="threshold", kind="other", size=1),
            Block(name="votes", kind="other", size=1),
        ),
        private=settings.privacy.noise_seed is None,
    )
    scale = method.teachers
    votes = scale * (0.15 if method.noise is None else method.noise)
    noise = (scale * method.threshold_noise, votes)
    query = _step(clip=(0.5, 0.0), noise=noise, lr=method.lr)
    answered = replace(query, clip=(0.5, math.sqrt(0.5)))
    runs = (
        (replace(query, clip=(0.0, 0.0)), method.teachers),
        (answered, answers),
        (query, queries - answers),
    )
    return Plan(header=header, epochs=1, settings=tuple(r for r in runs if r[1]))


def _batches(train: Train, examples: int) -> int:
    return max(1, round(examples / train.batch_size))


def auxiliaries_of(method: Method, train: Train, examples: int) -> int:
    """K: as given, or as many as a mini-batch has examples."""
    if not method.per_example:
        return int(method.auxiliaries)
    if method.sampling == "poisson":
        return train.batch_size
    return math.ceil(examples / _batches(train, examples))


def _plain(settings: Settings, method: Plain, blocks: Blocks, examples: int, batches: int) -> Plan:
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
    setting = _step(clip=nothing, noise=nothing, lr=method.lr)
    epochs = settings.train.epochs
    return Plan(header=header, epochs=epochs, settings=((setting, epochs * batches),))


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
    recipe = _recipe(method, auxiliaries, clip, noise, train.epochs * batches)
    refuse_vanishing(recipe.penalty_schedule, train.epochs)
    if grows(recipe.clip_schedule, train.epochs):
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
        relation=relation_of(settings),
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
        averaging=recipe.averaging,
        one_penalty=recipe.shared_penalty,
        release=settings.privacy.release,
        private=settings.privacy.noise_seed is None,
    )
    return Plan(recipe=recipe, header=header, epochs=train.epochs)


def _recipe(
    method: Method,
    auxiliaries: int,
    clip: tuple[float, ...],
    noise: tuple[float, ...],
    steps: int,
) -> Recipe:
    lr, penalty, table = method.lr, method.penalty, method.penalty_schedule
    if lr == AUTO:
        lr = FASTEST  # until the noise is known: Plan.tuned
    if penalty == AUTO:
        penalty = FORGOTTEN / float(lr)
    averaging = method.averaging
    if averaging == AUTO:
        averaging = 1.0 - 1.0 / max(1.0, AVERAGED * steps)
    if isinstance(penalty, Mapping):  # {value = …, kind = …, …}: a base value and its schedule
        options = dict(penalty)
        penalty = options.pop("value")
        table = options or table
    tables = table if isinstance(table, tuple | list) else (table,)
    decay, name = method.preconditioner_decay, method.preconditioner
    if name == PUBLIC:
        name = "identity"  # in the coordinates that the inputs are brought into beforehand
    return Recipe(
        auxiliaries=auxiliaries,
        clip=clip,
        noise=noise,
        lr=float(lr),
        global_lr=method.global_lr,
        penalty=tuple(penalty) if isinstance(penalty, tuple | list) else (float(penalty),),
        clip_schedule=schedule_of("clip_schedule", method.clip_schedule),
        noise_schedule=schedule_of("noise_schedule", method.noise_schedule),
        penalty_schedule=tuple(schedule_of("penalty_schedule", t) for t in tables),
        memory=method.memory,
        preconditioner=Preconditioner(
            name=name,
            decay=DECAYS[name] if decay is None else decay,
            floor=method.floor,
        ),
        regularizer=method.regularizer if method.weight_decay else "none",
        weight_decay=method.weight_decay,
        auxiliary_weight_decay=method.auxiliary_weight_decay,
        averaging=float(averaging),
    )

"""Settings of decoupled training that cannot go together, each refused with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdt.fields import AUTO, PUBLIC, is_integer
from dpdt.methods.bands import CYCLIC, refusals
from dpdt.methods.method import refuse
from dpdt.methods.schedules import LANGEVIN, schedule_of
from dpdt.methods.settings import PrivacySettings, TrainSettings

if TYPE_CHECKING:
    from dpdt.methods.dpdt import Dpdt


def check(method: Dpdt, train: TrainSettings, privacy: PrivacySettings) -> None:
    """Refuse what cannot be trained or accounted."""
    schedule_of("clip_schedule", method.clip_schedule)
    if method.noise_schedule != LANGEVIN:
        schedule_of("noise_schedule", method.noise_schedule)
    if not isinstance(method.penalty_schedule, tuple):
        schedule_of("penalty_schedule", method.penalty_schedule)
    _check_memory(method)
    _check_sampling(method, privacy)
    _check_rule(method, privacy)
    refuse(
        (
            method.preconditioner == PUBLIC and train.augment,
            "train.augment: with preconditioner 'public' inputs are transformed once, before "
            "training; leave it false",
        ),
        (
            method.noise_schedule == LANGEVIN
            and any(isinstance(v, tuple | list) for v in (method.penalty, method.penalty_schedule)),
            "method.noise_schedule: 'langevin' follows the penalty, so all auxiliaries must have "
            "one",
        ),
        (
            method.penalty == AUTO and "paper" in str(method.penalty_schedule),
            "method.penalty: the paper's schedule ends at a value of ρ, so give a number to start "
            "from, such as 0.1",
        ),
        (
            privacy.accountant == "hidden-state-convex" and train.precision != "float32",
            "train.precision: 'hidden-state-convex' rests on bounds of exact gradients, so it must "
            f"be float32, found {train.precision!r}",
        ),
        (
            privacy.unit == "user" and method.per_example,
            "method.auxiliaries: with unit 'user' all of a user's examples share an auxiliary, "
            "so give a number",
        ),
        (
            privacy.unit != "user"  # of whom one has examples in many mini-batches
            and is_integer(method.auxiliaries)
            and int(method.auxiliaries) > train.batch_size,
            f"method.auxiliaries: must be at most train.batch_size = {train.batch_size}, "
            f"found {method.auxiliaries}",
        ),
    )


def _check_memory(method: Dpdt) -> None:
    lists = [n for n in ("penalty", "penalty_schedule") if isinstance(getattr(method, n), tuple)]
    refuse(
        (
            method.memory == "none" and method.preconditioner in ("rmsprop", "adam"),
            "method.preconditioner: memory 'none' keeps no state, so it must be identity or "
            f"public, found {method.preconditioner!r}",
        ),
        (
            bool(lists) and (method.memory == "shared" or method.per_example),
            f"method.{lists[0] if lists else ''}: one for each auxiliary needs memory 'auxiliary' "
            "or 'none' and a fixed number of auxiliaries; give a single value",
        ),
        *(
            (
                len(getattr(method, name)) != method.auxiliaries,
                f"method.{name}: {len(getattr(method, name))} values for {method.auxiliaries} "
                "auxiliaries",
            )
            for name in lists
        ),
    )


def _check_sampling(method: Dpdt, privacy: PrivacySettings) -> None:
    poisson = method.sampling != "partition"
    refuse(
        (
            poisson and method.memory == "auxiliary",
            "method.sampling: poisson needs memory 'shared' or 'none'; auxiliaries that remember "
            'carry an example into steps it was not sampled for, so use sampling = "partition"',
        ),
        (
            poisson and privacy.unit != "example",
            f"privacy.unit: poisson sampling protects single examples, found {privacy.unit!r}; "
            'use sampling = "partition"',
        ),
        (
            not poisson and privacy.relation not in (None, "replace-one"),
            "privacy.relation: with a fixed partition it is replace-one, since examples are dealt "
            f"by their number, found {privacy.relation!r}",
        ),
        (
            poisson and privacy.relation == "replace-one" and not method.per_example,
            "privacy.relation: replace-one under poisson sampling needs auxiliaries = "
            '"per-example", since an example changes what its auxiliary\'s others contribute',
        ),
        (
            poisson and method.reshuffle,
            "method.reshuffle: poisson sampling draws anew at every step; leave it false",
        ),
        (
            method.sampling == CYCLIC and privacy.relation == "replace-one",
            f"privacy.relation: {CYCLIC} sampling is accounted under zero-out, found 'replace-one'",
        ),
        (
            method.noise_bands != 1
            and (method.memory == "auxiliary" or method.reshuffle or privacy.unit != "example"),
            "method.noise_bands: correlated noise needs examples whose steps are known beforehand: "
            "memory 'shared' or 'none', unit 'example' and reshuffle false; else give 1",
        ),
        *refusals(method.sampling, method.noise_bands, privacy.epsilon),
    )


def _check_rule(method: Dpdt, privacy: PrivacySettings) -> None:
    """What the rule for the learning rate does not cover."""
    if method.lr != AUTO:
        return
    needed = (
        ("auxiliaries", method.auxiliaries, "per-example"),
        ("memory", method.memory, "shared"),
        ("granularity", method.granularity, "model"),
        ("penalty", method.penalty, AUTO),
    )
    refuse(
        *(
            (
                found != wanted,
                f"method.lr: 'auto' needs {name} = {wanted!r}, found {found!r}; give numbers for "
                "lr and penalty",
            )
            for name, found, wanted in needed
        ),
        (
            privacy.accountant != "composition",
            "method.lr: 'auto' needs privacy.accountant = 'composition', found "
            f"{privacy.accountant!r}; give numbers for lr and penalty",
        ),
        (
            method.preconditioner in ("rmsprop", "adam"),
            "method.lr: 'auto' is for a step as long as its gradient, preconditioner 'auto', "
            f"'public' or 'identity', found {method.preconditioner!r}; give a number",
        ),
    )

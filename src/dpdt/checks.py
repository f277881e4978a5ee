"""Combinations of settings that cannot be trained or accounted, each refused with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdt.errors import InputError
from dpdt.keys import AUTO, PUBLIC, is_integer
from dpdt.methods.schedules import schedule_of

if TYPE_CHECKING:
    from dpdt.config import Dpsgd, Gep, Method, Pate, Privacy, Train


def check_peer(method: Dpsgd | Gep | Pate, privacy: Privacy) -> None:
    problems = [
        (
            method.noise is None and privacy.epsilon is None,
            "method.noise: missing; give it, or a target privacy.epsilon to calibrate it for",
        ),
        (
            privacy.unit != "example",
            f"privacy.unit: {method.name} protects single examples here, found {privacy.unit!r}",
        ),
        (
            privacy.relation not in (None, "add-remove"),
            f"privacy.relation: {method.name} is accounted under add-remove, "
            f"found {privacy.relation!r}",
        ),
        (
            privacy.accountant != "composition",
            f"privacy.accountant: {privacy.accountant!r} is about dpdt; use composition",
        ),
    ]
    for wrong, message in problems:
        if wrong:
            raise InputError(message)


def check_together(method: Method, train: Train, privacy: Privacy) -> None:
    """Combinations that cannot be trained or accounted, each refused with its reason."""
    for name in ("clip_schedule", "noise_schedule"):
        schedule_of(name, getattr(method, name))
    if not isinstance(method.penalty_schedule, tuple):
        schedule_of("penalty_schedule", method.penalty_schedule)
    lists = [
        name
        for name in ("penalty", "penalty_schedule")
        if isinstance(getattr(method, name), list | tuple)
    ]
    problems = [
        (
            method.noise is None and privacy.epsilon is None,
            "method.noise: missing; give it, or a target privacy.epsilon to calibrate it for",
        ),
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
        (
            method.sampling == "poisson" and method.memory == "auxiliary",
            "method.sampling: poisson needs memory 'shared' or 'none'; auxiliaries that remember "
            "carry an example into steps it was not sampled for",
        ),
        (
            method.sampling == "poisson" and privacy.unit != "example",
            f"privacy.unit: poisson sampling protects single examples, found {privacy.unit!r}; "
            'use sampling = "partition"',
        ),
        (
            method.sampling == "partition" and privacy.relation == "add-remove",
            "privacy.relation: with a fixed partition it is replace-one; to add or remove an "
            "example would re-partition the others, found 'add-remove'",
        ),
        (
            method.sampling == "poisson"
            and privacy.relation == "replace-one"
            and not method.per_example,
            "privacy.relation: replace-one under poisson sampling needs auxiliaries = "
            '"per-example", since an example changes what its auxiliary\'s others contribute',
        ),
        (
            method.lr == AUTO and method.penalty != AUTO,
            "method.penalty: must be 'auto' when method.lr is: they are chosen together, found "
            f"{method.penalty!r}",
        ),
        (
            method.lr == AUTO
            and (
                not method.per_example
                or (method.sampling, method.memory, method.granularity, privacy.accountant)
                != ("poisson", "shared", "model", "composition")
            ),
            "method.lr: 'auto' is for per-example auxiliaries, poisson sampling, memory 'shared', "
            "granularity 'model' and accountant composition; give a number",
        ),
        (
            method.lr == AUTO and method.preconditioner in ("rmsprop", "adam"),
            "method.lr: 'auto' is for a step as long as its gradient, preconditioner 'auto', "
            f"'public' or 'identity', found {method.preconditioner!r}; give a number",
        ),
        (
            method.preconditioner == PUBLIC and train.augment,
            "train.augment: with preconditioner 'public' inputs are transformed once, before "
            "training; leave it false",
        ),
        (
            method.sampling == "poisson" and method.reshuffle,
            "method.reshuffle: poisson sampling draws anew at every step; leave it false",
        ),
        (
            privacy.unit == "user" and method.per_example,
            "method.auxiliaries: with unit 'user' all of a user's examples share an auxiliary, "
            "so give a number",
        ),
        (
            is_integer(method.auxiliaries) and int(method.auxiliaries) > train.batch_size,
            f"method.auxiliaries: must be at most train.batch_size = {train.batch_size}, "
            f"found {method.auxiliaries}",
        ),
    ]
    for wrong, message in problems:
        if wrong:
            raise InputError(message)
    for name in lists:
        value = getattr(method, name)
        if len(value) != method.auxiliaries:
            raise InputError(
                f"method.{name}: {len(value)} values for {method.auxiliaries} auxiliaries"
            )

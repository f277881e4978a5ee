"""From a configuration to the plan of its run, without loading anything."""

from __future__ import annotations

import warnings

from dpdt import models
from dpdt.config.sections import Config
from dpdt.errors import InputError
from dpdt.methods.plan import Plan, decide
from dpdt.methods.problem import Problem


def problem_of(config: Config) -> Problem:
    """What the plan needs to know of the model and the data that a configuration names."""
    facts = config.data.facts()
    _warn_of_two_classes(config)
    parameters = tuple(models.parameters(config.model, facts, config.train.augment))
    has_bias = any(p.name.split(".")[-1] == "bias" for p in parameters)
    usual = models.task(config.model, facts).name == "classification"
    return Problem(
        examples=config.privacy.examples or facts.examples,
        parameters=parameters,
        bounds=models.bounds(config.model) if usual and facts.in_memory else None,
        public=config.data.public,
        linear=usual and models.is_linear(config.model, config.train.augment) and has_bias,
        length=models.length(config.model, facts, config.train.augment),
    )


def plan_of(config: Config) -> Plan:
    """What a configuration's run will do.

    With `lr = "auto"` the learning rate is found once the model is there (rate.py). Until then the
    plan has the learning rate of a linear model on inputs of norm 1. No guarantee depends on it.
    """
    check(config)
    return decide(config.training, problem_of(config))


def _warn_of_two_classes(config: Config) -> None:
    """Say that labels 0 and 1 are numbers, where a range declares them."""
    table = config.data.table
    if table is not None and table.values == (0.0, 1.0):
        warnings.warn(
            f"data.columns.{table.target}: [0, 1] is a range, so a number is predicted "
            '(regression); for two classes give ["0", "1"]',
            stacklevel=2,
        )


def check(config: Config) -> None:
    """Refuse users that the data do not name, and canaries that the method has no place for."""
    if config.privacy.unit == "user":
        raise InputError(
            f"privacy.unit: data {config.data.name!r} do not say who owns what; give users to "
            "dpdt.train in Python, or the unit 'example' or 'shard'"
        )
    number = config.data.facts().examples
    if config.audit.canaries > number // 2:
        raise InputError(
            f"audit.canaries: must be at most half of the {number} examples, found "
            f"{config.audit.canaries}"
        )
    task = models.task(config.model, config.data.facts())
    if config.audit.canaries and not task.classes:
        raise InputError(
            f"audit.canaries: canaries have class numbers, and the task is {task.name}; leave them "
            "out"
        )
    pulls = config.audit.canaries > 0 and config.audit.canary == "gradient"
    if pulls and not config.method.takes_pulls:
        raise InputError(
            f"audit.canary: 'gradient' pulls on clipped gradients, and {config.method.name} has "
            "none; use mislabelled or noise"
        )

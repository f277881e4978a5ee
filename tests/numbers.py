"""Decoupled training with plain numbers, for tests that look at something else than the rule."""

import types

from dpdt.training import loop

NUMBERS = {
    "sampling": "partition",
    "preconditioner": "identity",
    "lr": 0.1,
    "global_lr": 0.99,
    "penalty": 1.0,
    "clip": 1.0,
    "granularity": "layer",
    "averaging": 0.0,
}


def numbers(options):
    """The options with plain numbers for what they do not say."""
    other = "using" in options or options.get("method", "dpdt") != "dpdt"
    return options if other else NUMBERS | options


def prepare(model, data, **options):
    return loop.prepare(model, data, **numbers(options))


def train(model, data, **options):
    return loop.train(model, data, **numbers(options))


def unseen(**values):
    """Variables that code can read and write, and that no walk from a model or a loss sees."""
    module = types.ModuleType("unseen")
    vars(module).update(values)
    return module

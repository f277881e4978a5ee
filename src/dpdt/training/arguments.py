"""What `dpdt.train` and `dpdt.prepare` are given: the model's surroundings, and every setting.

Editors and mypy read the types below. `complete` gives the same to notebooks and `help`, which look
at functions as they run: names, defaults and words from the one table of settings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch
from torch import nn

from dpdt import config
from dpdt.algorithm.gradients import Loss
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.methods import METHODS
from dpdt.methods.canaries import Pulls
from dpdt.methods.method import Training
from dpdt.methods.settings import PrivacySettings, TrainSettings
from dpdt.models.metrics import Metric

Function = TypeVar("Function", bound=Callable[..., Any])
Optimizing = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Scheduling = Callable[[torch.optim.Optimizer], Any]


class Given(TypedDict, total=False):
    """What `prepare` and `train` are given besides a model and data.

    loss: a loss of torch such as nn.MSELoss(), or (model, micro-batch) → mean loss. Default: that
        of the task, or the model's own loss.
    task: what the model is trained for (dpdt.tasks.TASKS), where it is not clear.
    metric: what it is judged by, by name or as (outputs, targets) → number. Default: the task's.
    test: held-out examples, which are checked at once.
    users: who owns each example, for unit "user"; or the numbers of each user's examples, by user.
    public: inputs without labels that need no protection. Some methods use them.
    scheduler: makes a torch lr_scheduler of an optimizer of one's own, stepped after each epoch.
    absent: a mask of examples that never take part, for audits of adding and removing.
    pulls: gradient canaries, for audits.
    ledger: where to write the ledger. If left out, it is kept in memory.
    diagnose: compute the quantities of the convergence theory at every step.
    overwrite: the data's tensors are needed no more and may be written to, which saves memory.
    using: settings that were made already. Otherwise give settings as keywords.
    source: what the data are recognised by in budgets, if not by some of their examples.
    local: data and users are this rank's alone, and the ranks' users are trained on together.
    world: the ranks that train together. If left out, they are found as torchrun tells.
    quiet: do not warn of too few examples, of numbers that are not finite, of test=data.
    """

    loss: Loss | nn.Module
    task: str
    metric: str | Metric
    test: Any
    users: Sequence[Any] | Mapping[Any, Sequence[int]] | None
    public: Any
    scheduler: Scheduling | None
    absent: np.ndarray | None
    pulls: Pulls | None
    ledger: str | Path | None
    diagnose: bool
    overwrite: bool
    using: Training | None
    source: str
    local: bool
    world: World
    quiet: bool


GIVEN = tuple(Given.__annotations__)


class Arguments(Given, config.Options, total=False):
    """Everything in `Given`, and every setting of docs/configuration.md."""


def parted(options: Any) -> tuple[Given, Optimizing | None, Any]:
    """What is no setting, an optimizer of one's own, and the settings."""
    settings = dict(options)
    found: Given = {}
    for name in settings.keys() & set(GIVEN):
        found[name] = settings.pop(name)  # type: ignore[literal-required]
    named = isinstance(settings.get("optimizer"), str | None)  # one of the method's own
    own = None if named else settings.pop("optimizer")
    return found, own, settings


def training_of(using: Training | None, settings: Any) -> Training:
    """The settings that were made already, or those that the keywords make."""
    if using is None:
        return config.training(**settings)
    if settings:
        raise InputError(
            f"using: settings that were made already leave no room for {', '.join(settings)}; "
            "give one or the other"
        )
    return using


def complete(function: Function) -> Function:
    """Give a function that takes `**options` the signature and the words of all of them."""
    found = inspect.signature(function)
    own = [p for p in found.parameters.values() if p.kind is not p.VAR_KEYWORD]
    settings = list(_settings())
    defaults = {name: default for name, default, _ in settings} | dict.fromkeys(GIVEN)
    hints = {**Given.__annotations__, **config.Options.__annotations__}
    own += [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=d, annotation=_text(hints[name])
        )
        for name, d in defaults.items()
    ]
    function.__signature__ = found.replace(parameters=own)  # type: ignore[attr-defined]
    words = [f"        {name}: {text} ({_default(default)})" for name, default, text in settings]
    said = inspect.cleandoc(function.__doc__ or "")
    function.__doc__ = "\n".join([said, "", "    Settings, all of them:", *words])
    return function


def _settings() -> Iterator[tuple[str, Any, str]]:
    """Every setting by name, its default (`...` where methods differ), and what it must be."""
    kinds = (TrainSettings, PrivacySettings, *METHODS.values())
    yield "method", config.DEFAULT, "one of " + ", ".join(METHODS)
    for name in config.Options.__annotations__:
        known = [f for kind in kinds for f in fields(kind) if f.name == name]
        if known:
            first = known[0]
            same = all(f.default == first.default for f in known)
            texts = dict.fromkeys(f.metadata["text"] for f in known)
            yield name, first.default if same else ..., ", or ".join(texts)


def _text(hint: Any) -> Any:
    """A type as it is written."""
    return getattr(hint, "__forward_arg__", hint)


def _default(value: Any) -> str:
    if value is None:
        return "may be left out"
    return "the method has a default" if value is ... else f"default {value!r}"

"""Decoupled training: Algorithm 1 as a method among others."""

from __future__ import annotations

from typing import Any

from torch import nn

from dpdt.algorithm.engine import Decoupled
from dpdt.algorithm.gradients import Loss
from dpdt.config import Method, Settings
from dpdt.errors import InputError
from dpdt.methods.loss import default_loss
from dpdt.methods.memory import available, gigabytes
from dpdt.methods.plan import Plan
from dpdt.noise import Randomness


def state_size(parameters: int, auxiliaries: int, method: Method) -> int:
    """Bytes of what outlives a step: π, and v if the preconditioner has one, in float32."""
    copies = {"auxiliary": auxiliaries, "shared": 1, "none": 0}[method.memory]
    return copies * parameters * (2 if method.preconditioner in ("rmsprop", "adam") else 1) * 4


def engine(
    model: nn.Module,
    loss: Loss,
    using: Settings,
    decided: Plan,
    *,
    noise: Randomness,
    diagnose: bool,
    **_: Any,
) -> Decoupled:
    """The engine of Algorithm 1; refused if its state does not fit the memory."""
    method, recipe = using.method, decided.recipe
    assert isinstance(method, Method)
    assert recipe is not None
    parameters = sum(block.size for block in decided.header.blocks)
    needed, free = state_size(parameters, recipe.auxiliaries, method), available()
    if free is not None and needed > free:
        raise InputError(
            f"method.auxiliaries: {recipe.auxiliaries} auxiliaries that remember {parameters:,} "
            f"parameters need {gigabytes(needed)} of memory, found {gigabytes(free)} free; give "
            'fewer, a narrower model, or memory = "shared"'
        )
    return Decoupled(
        model,
        loss,
        recipe,
        granularity=method.granularity,
        noise=noise,
        seed=using.train.seed,
        diagnose=diagnose,
        cross_entropy=loss is default_loss,
        expected=max(1, round(using.train.batch_size / recipe.auxiliaries)),
    )

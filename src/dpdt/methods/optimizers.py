"""Torch optimizers behind a noisy mean, or behind a plain gradient."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import nn

from dpdt.algorithm.executor import Executor


class Optimized(Protocol):
    """The settings of a method that has an optimizer."""

    @property
    def optimizer(self) -> str: ...
    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


def optimizer(method: Optimized, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD or AdamW, as a method's settings say."""
    lr, decay = method.lr, method.weight_decay
    if method.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=lr, momentum=method.momentum, weight_decay=decay)


def saved(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """A copy of everything that an optimizer's run needs to continue."""
    return {
        "steps": steps,
        "executor": executor and executor.state_dict(),
        "parameters": {n: t.detach().clone() for n, t in model.named_parameters()},
        "optimizer": copy.deepcopy(optimizer.state_dict()),
    }


def restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    executor: Executor | None = None,
) -> int:
    """Continue from `saved`; returns the number of steps."""
    if executor is not None:
        executor.load_state_dict(state["executor"])
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(state["parameters"][name])
    optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # it writes to what it is given
    return int(state["steps"])

"""Training without privacy: SGD or AdamW. What privacy costs is measured against it."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn

from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.executor import Executor
from dpdt.algorithm.gradients import Loss
from dpdt.algorithm.randomness import kept, seeded
from dpdt.config import Dpsgd, Gep, Pate, Plain, Settings
from dpdt.ledger import Setting
from dpdt.methods.plan import Plan


def optimizer(
    method: Plain | Dpsgd | Gep | Pate, parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """SGD or AdamW, as a method's settings say."""
    lr, decay = method.lr, method.weight_decay
    if method.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=lr, momentum=method.momentum, weight_decay=decay)


class PlainEngine:
    """One optimizer step for each mini-batch; the learning rate falls by a cosine, or not."""

    def __init__(self, model: nn.Module, loss: Loss, method: Plain, *, steps: int, seed: int):
        self.model, self.loss, self.method, self.seed = model, loss, method, seed
        self.total, self.steps = steps, 0
        trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer(method, trained)

    def step(self, batch: Batch, setting: Setting) -> StepResult:
        for group in self.optimizer.param_groups:
            group["lr"] = self.method.lr * self._factor()
        with kept():
            seeded(self.seed, self.steps, 0)
            self.optimizer.zero_grad()
            loss = self.loss(self.model, batch.data)
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.steps += 1
        return StepResult(loss=float(loss.detach()), nonfinite=0)

    def _factor(self) -> float:
        if self.method.lr_schedule == "constant":
            return 1.0
        return 0.5 * (1.0 + math.cos(math.pi * self.steps / self.total))

    def check(self) -> None:
        """Nothing to check: nothing is guaranteed."""

    def finish(self) -> None:
        """The model is as it is to be released."""

    def state_dict(self) -> dict[str, Any]:
        return saved(self.model, self.optimizer, self.steps)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = restore(self.model, self.optimizer, state)


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
    optimizer.load_state_dict(state["optimizer"])
    return int(state["steps"])


def engine(model: nn.Module, loss: Loss, using: Settings, decided: Plan, **_: Any) -> PlainEngine:
    """Plain training as one of the methods."""
    assert isinstance(using.method, Plain)
    return PlainEngine(model, loss, using.method, steps=decided.steps, seed=using.train.seed)

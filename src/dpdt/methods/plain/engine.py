"""Training without privacy: SGD or AdamW. What privacy costs is measured against it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.randomness import kept, seeded
from dpdt.ledger import Setting
from dpdt.mechanism import full_precision
from dpdt.methods.method import Job
from dpdt.methods.optimizers import optimizer, restore, saved

if TYPE_CHECKING:
    from dpdt.methods.plain import Plain


class PlainEngine:
    """One optimizer step for each mini-batch, with a learning rate that falls or is constant.

    Several ranks take a share of each mini-batch, and their gradients are averaged.
    """

    def __init__(self, method: Plain, job: Job):
        self.model, self.loss, self.method, self.seed = job.model, job.loss, method, job.seed
        self.total, self.steps, self.world = job.plan.steps, 0, job.world
        self.trained = [p for p in job.model.parameters() if p.requires_grad]
        self.optimizer = optimizer(method, self.trained)

    def step(self, batch: Batch, setting: Setting) -> StepResult:
        for group in self.optimizer.param_groups:
            group["lr"] = self.method.lr * self._factor()
        with full_precision(), kept():
            seeded(self.seed, self.steps, self.world.rank)
            loss = self._backward(batch) if self.world.alone else self._shared(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        return StepResult(loss=loss, nonfinite=0)

    def _backward(self, batch: Batch) -> float:
        loss = self.loss(self.model, batch.data)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _shared(self, batch: Batch) -> float:
        """The mean over all ranks' examples, of the loss and of its gradient."""
        own = sum(batch.sizes)
        loss = self._backward(batch) if own else 0.0
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained]
        total, (loss, examples) = self.world.sum(
            _flat(gradients).double() * own, (loss * own, float(own)), _flat(self.trained)
        )
        parts = torch.split(total / max(1.0, examples), [p.numel() for p in self.trained])
        for parameter, part in zip(self.trained, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter)
        return loss / max(1.0, examples)

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


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])

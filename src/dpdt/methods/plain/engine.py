"""Training without privacy: SGD or AdamW. What privacy costs is measured against it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

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
    """One optimizer step for each mini-batch, with a learning rate that falls or is constant."""

    def __init__(self, method: Plain, job: Job):
        self.model, self.loss, self.method, self.seed = job.model, job.loss, method, job.seed
        self.total, self.steps = job.plan.steps, 0
        trained = [p for p in job.model.parameters() if p.requires_grad]
        self.optimizer = optimizer(method, trained)

    def step(self, batch: Batch, setting: Setting) -> StepResult:
        for group in self.optimizer.param_groups:
            group["lr"] = self.method.lr * self._factor()
        with full_precision(), kept():
            seeded(self.seed, self.steps, 0)
            loss = self.loss(self.model, batch.data)
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
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

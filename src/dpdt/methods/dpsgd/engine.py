"""DP-SGD: every example's gradient is clipped; the noisy mean goes to a torch optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dpdt.algorithm.auxiliary import Tally
from dpdt.algorithm.batch import Batch
from dpdt.algorithm.engine import StepResult
from dpdt.algorithm.executor import Executor
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.publish import aggregate
from dpdt.algorithm.ranks import arrange, everywhere
from dpdt.algorithm.scaled import Scaled
from dpdt.errors import Tainted
from dpdt.ledger import Setting
from dpdt.mechanism import Columns, full_precision
from dpdt.methods.method import Job
from dpdt.methods.optimizers import left_by, optimizer, restore, saved
from dpdt.noise import Single

if TYPE_CHECKING:
    from dpdt.methods.dpsgd import Dpsgd


class DpsgdEngine(Single):
    """One optimizer step for each Poisson batch. For an empty batch only noise is added.

    Guarantees: an example's contribution has norm at most `clip` in all three ways of clipping.
    With "layer", each of L tensors is clipped to clip/√L. With "automatic", a gradient g becomes
    g·clip/(‖g‖ + γ). An example whose gradient is not finite contributes 0. Bounding, summing and
    noise are done by the core that all methods share (mechanism.py).
    """

    def __init__(self, method: Dpsgd, job: Job):
        self.model, self.method, self.noise = job.model, method, job.noise
        self.world = job.world
        self.expected, self.steps = job.plan.header.auxiliaries, 0
        self.layout = Layout(job.model, "model")
        self.executor = Executor(
            job.model,
            job.loss,
            self.layout,
            auxiliaries=-(-self.expected // self.world.size),
            seed=job.seed,
            scales=True,
        )
        self.optimizer = job.optimizer or optimizer(method, list(self.layout.tensors))
        self.scheduler, self.batches = job.scheduler, job.plan.header.batches
        self._left = left_by(self.optimizer)

    def step(self, batch: Batch, setting: Setting) -> StepResult:
        kind = self.method.clipping
        self._refuse_other_optimizer()
        with full_precision():
            arrange(self.world, self.executor, batch)
            columns, clip = self._columns(setting.clip)
            drawn = self.noise.ahead(self.layout.size)
            found = self.executor.total(
                batch,
                columns=columns,
                clip=clip,
                contribute={"automatic": self._normalise}.get(kind, _whole_or_nothing),
                scaled=Scaled(
                    factor=self._rule if kind == "automatic" else 1.0, whole=kind == "layer"
                ),
            )
            total, loss, tally = everywhere(self.world, self.executor, batch, found)
            direction = aggregate(self.layout, total, self.expected, setting, drawn)
        self.layout.set_gradient(direction)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        if self.scheduler is not None and self.steps % self.batches == 0:
            self.scheduler.step()
        self._left = left_by(self.optimizer)
        return StepResult(loss=loss, nonfinite=tally.nonfinite // columns.count)

    def _columns(self, clip: tuple[float, ...]) -> tuple[Columns, tuple[float, ...]]:
        """What is clipped together: all, or each tensor to its share of the whole clip."""
        if self.method.clipping != "layer":
            return self.layout.columns, clip
        sizes = [t.numel() for t in self.layout.tensors]
        sizes[-1] += self.layout.padding[0]
        shares = (clip[0] / len(sizes) ** 0.5,) * len(sizes)
        return Columns(sizes, device=self.layout.device), shares

    def _normalise(self, rows: slice, gradient: Tensor, scratch: Tensor) -> tuple[Tensor, Tally]:
        """Automatic clipping (Bu et al. 2023): every gradient gets norm clip·‖g‖/(‖g‖ + γ)."""
        norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True, dtype=torch.float64)
        return gradient.double().mul_(self._rule(norms)), Tally()

    def _rule(self, norms: Tensor) -> Tensor:
        return self.method.clip / (norms + self.method.stability)

    def _refuse_other_optimizer(self) -> None:
        if left_by(self.optimizer) != self._left:
            raise Tainted(
                "the optimizer was changed between steps, perhaps by a private number such as a "
                "loss, past the noise; a learning rate that follows the epochs is a scheduler=…"
            )

    def check(self) -> None:
        """Refuse a model in which anything that is not trained has changed."""
        self.executor.check()
        self._refuse_other_optimizer()

    def finish(self) -> None:
        """The model is as it is to be released."""

    def state_dict(self) -> dict[str, Any]:
        return saved(self.model, self.optimizer, self.steps, self.executor, self.scheduler)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = restore(self.model, self.optimizer, state, self.executor, self.scheduler)
        self._left = left_by(self.optimizer)


def _whole_or_nothing(rows: slice, gradient: Tensor, scratch: Tensor) -> tuple[Tensor, Tally]:
    """The gradient as it is; if any of it is not finite, none of it counts."""
    broken = ~torch.isfinite(gradient).all(1, keepdim=True)
    return gradient.masked_fill_(broken, torch.inf), Tally()

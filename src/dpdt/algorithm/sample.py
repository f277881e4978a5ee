"""The loss of a made-up example, which must be the same at every step of a run."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from dpdt.algorithm.batch import Batch, Data
from dpdt.algorithm.lanes import one_core
from dpdt.algorithm.places import Digests, made_up
from dpdt.algorithm.randomness import seeded
from dpdt.algorithm.reachable import Snapshot

if TYPE_CHECKING:
    from dpdt.algorithm.executor import Executor


@dataclass(frozen=True)
class Sample:
    """A made-up example, the weights of a run's start, and the loss and gradient that they gave.

    A model or a loss that reads something from outside, such as a number that a callback keeps
    anew after every step, gives another loss later.
    """

    model: nn.Module
    data: Data
    digest: tuple[bytes, ...]

    @classmethod
    def of(cls, owner: Executor, batch: Batch) -> Sample | None:
        """Compute a sample, or None if the model cannot be copied or refuses the example."""
        shared = (*owner.model.buffers(), *owner.model.parameters())
        memo = {id(t): t for t in shared if not t.requires_grad}
        try:
            model, data = copy.deepcopy(owner.base, memo), made_up(batch.data, 1)
            digest = _digest(owner, model, data)
        except Exception:  # a model of the user's own can fail in any way
            return None
        return cls(model, data, digest) if _digest(owner, model, data) == digest else None

    def same(self, owner: Executor) -> bool:
        """Tell whether the example still has the loss and the gradient that it had."""
        return _digest(owner, self.model, self.data) == self.digest


def _digest(owner: Executor, model: nn.Module, data: Data) -> tuple[bytes, ...]:
    shared = {id(t): t for t in (*model.buffers(), *model.parameters())}
    model = copy.deepcopy(model, shared)
    trained = [p for p in model.parameters() if p.requires_grad]
    Snapshot({"": model, "the loss": owner.loss}).seed(0)
    seeded(owner.seed, 0, 0)
    with one_core(), torch.enable_grad():
        value = owner.loss(model, data)
        slopes = torch.autograd.grad(value, trained, allow_unused=True)
    for parameter in trained:
        parameter.grad = None  # a loss may have computed one by itself
    rows = [value.detach(), *(g for g in slopes if g is not None)]
    return Digests.of([r.reshape(1, -1) for r in rows]).rows

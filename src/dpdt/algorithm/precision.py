"""The precision of the forward and backward pass: a setting of the run.

Guarantees: what is computed in bfloat16 is the loss and its gradients, nothing else. Gradients
reach the bounded sum in float32. Norms, sums and noise are those of mechanism.py. Nothing is kept
between calls: autocast holds no copies of weights. The caller's own autocast has no effect
(`mechanism.full_precision`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dpdt.algorithm.batch import Data
from dpdt.algorithm.gradients import Loss


class Lowered:
    """A loss that is computed in bfloat16, where torch thinks that it may be (autocast).

    Rounding to so few bits hides, almost always, that a matrix product rounds a row by its place.
    So the trials of places.py would show nothing. Where places depend on who takes part,
    auxiliaries are computed one by one (ways.py).
    """

    def __init__(self, loss: Loss, device: torch.device):
        self.loss, self.device = loss, device

    def __call__(self, model: Any, data: Data) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False):
            return self.loss(model, data).float()


def at_precision(loss: Loss, precision: str, device: torch.device) -> Loss:
    """The loss, computed in "float32" or "bfloat16"."""
    return Lowered(loss, device) if precision == "bfloat16" else loss


def closeness(loss: Loss) -> float:
    """How far two ways to the same gradient may be apart, as a share of it."""
    return 0.05 if isinstance(loss, Lowered) else 0.01

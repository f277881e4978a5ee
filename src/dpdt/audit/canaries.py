"""How much a released model looks as if each canary had been in."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpdt.audit.metrics import logit
from dpdt.methods.canaries import Planted, coordinates
from dpdt.methods.dpdt.whitening import Whitened
from dpdt.models.loss import answers


def scores(planted: Planted, learner: nn.Module, start: nn.Module, public: Any) -> np.ndarray:
    """A score for each canary. `start` is the learner before the first step, which is public.

    `public` are the inputs that the preconditioner was made from, if there was one. Gradient
    canaries pull in the coordinates of that preconditioner.
    """
    if planted.pulls is None:
        return logit(*(t.numpy() for t in answers(learner, planted.canaries)))
    if public is not None:
        whitened = Whitened(start, public)
        learner, start = whitened.seen_from(learner), whitened.inner
    moved = _flat(learner) - _flat(start)
    chosen = coordinates(len(moved), planted.pulls.number, planted.pulls.seed)
    return np.asarray(-moved[chosen].double().numpy())  # descent goes against the pull


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])

"""What training minimises and what it is judged by, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.algorithm.batch import Data
from dpdt.methods.loader import count, take


def default_loss(model: Callable[..., Any], batch: Data) -> Tensor:
    """Mean loss of a micro-batch: the model's own for a mapping, cross-entropy for (x, y)."""
    if isinstance(batch, Mapping):
        loss: Tensor = model(**batch).loss
        return loss
    x, y = batch
    return F.cross_entropy(model(x), y)


def accuracy(model: nn.Module, test: Any, batch_size: int = 1000) -> float:
    """Share of held-out examples whose class is predicted right."""
    was_training = model.training
    model.eval()
    right = 0
    number = count(test)
    with torch.no_grad():
        for first in range(0, number, batch_size):
            batch = take(test, torch.arange(first, min(first + batch_size, number)))
            if isinstance(batch, Mapping):
                labels = batch["labels"]
                outputs = model(**{k: v for k, v in batch.items() if k != "labels"}).logits
            else:
                outputs, labels = model(batch[0]), batch[1]
            right += int((outputs.argmax(-1) == labels).sum())
    model.train(was_training)
    return right / number

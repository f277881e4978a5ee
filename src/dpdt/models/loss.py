"""What training minimises and what it is judged by, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.algorithm.batch import Data, on_device
from dpdt.data.access import count, take

IGNORED = -100  # the class number that torch's cross-entropy leaves out


def default_loss(model: Callable[..., Any], batch: Data) -> Tensor:
    """Mean loss of a micro-batch: the model's own for a mapping, cross-entropy for (x, y)."""
    if isinstance(batch, Mapping):
        loss: Tensor = model(**batch).loss
        return loss
    x, y = batch
    outputs: Tensor = model(x)
    if outputs.dim() == 2 and y.dim() == 1 and y.dtype == torch.int64:
        return _cross_entropy(outputs, y)
    return F.cross_entropy(outputs, y)


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """F.cross_entropy of class numbers, in steps that vmap knows.

    Mapped over examples, torch's own imports sympy (0.3 s) and runs in Python at every call.
    """
    known = y != IGNORED
    scores = outputs.log_softmax(1).gather(1, torch.where(known, y, 0).unsqueeze(1)).squeeze(1)
    return -torch.where(known, scores, 0.0).sum() / known.sum()


def accuracy(model: nn.Module, test: Any, batch_size: int = 1000) -> float:
    """Share of held-out examples whose class is predicted right."""
    outputs, labels = answers(model, test, batch_size)
    return float((outputs.argmax(-1) == labels).sum()) / max(1, len(labels))


def answers(model: nn.Module, part: Any, batch_size: int = 1000) -> tuple[Tensor, Tensor]:
    """What a model says of examples, and their labels."""
    was_training = model.training
    model.eval()
    outputs, labels = [], []
    own = next(model.parameters(), None)
    device = torch.device("cpu") if own is None else own.device
    with torch.no_grad():
        for chosen in torch.split(torch.arange(count(part)), batch_size):
            batch = on_device(take(part, chosen), device)
            if isinstance(batch, Mapping):
                labels.append(batch["labels"])
                inputs = {k: v for k, v in batch.items() if k != "labels"}
                outputs.append(model(**inputs).logits)
            else:
                outputs.append(model(batch[0]))
                labels.append(batch[1])
    model.train(was_training)
    return torch.cat(outputs).cpu(), torch.cat(labels).cpu()

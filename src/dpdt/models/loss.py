"""What training minimises and what it is judged by, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.algorithm.batch import Data, on_device
from dpdt.data.access import count, take


def default_loss(model: Callable[..., Any], batch: Data) -> Tensor:
    """Mean loss of a micro-batch: the model's own for a mapping, cross-entropy for (x, y)."""
    if isinstance(batch, Mapping):
        loss: Tensor = model(**batch).loss
        return loss
    x, y = batch
    return F.cross_entropy(model(x), y)


def accuracy(model: nn.Module, test: Any, batch_size: int = 1000) -> float:
    """Share of held-out examples whose class is predicted right."""
    outputs, labels = answers(model, test, batch_size)
    return float((outputs.argmax(-1) == labels).sum()) / max(1, len(labels))


def answers(model: nn.Module, part: Any, batch_size: int = 1000) -> tuple[Tensor, Tensor]:
    """What a model says of examples, and their labels."""
    was_training = model.training
    model.eval()
    outputs, labels = [], []
    device = next(model.parameters()).device
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

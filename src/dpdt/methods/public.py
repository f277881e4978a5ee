"""Public inputs, for the methods that call the model on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dpdt.algorithm.batch import on_device, tree_map
from dpdt.data.access import take
from dpdt.errors import InputError


def classes_of(model: nn.Module, public: Any, method: str) -> int:
    """How many classes a model tells apart, from what it says of one public input."""
    one = on_device(take(public, torch.arange(1)), next(model.parameters()).device)
    one = tree_map(torch.clone, one)  # a model may write to its input
    try:
        with torch.no_grad():
            return int(model(one).shape[-1])
    except Exception as error:  # a model of the user's own can fail in any way
        raise InputError(
            f"public: {method} calls the model on public inputs alone and needs a tensor of "
            f"outputs, which failed ({str(error).splitlines()[0][:80]}); use another method"
        ) from error

"""Public inputs, for the methods that call the model on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpdt.algorithm.batch import on_device, tree_map
from dpdt.data.access import take
from dpdt.errors import InputError
from dpdt.models.loss import tensor_of


def classes_of(model: nn.Module, public: Any, method: str, *, by_name: bool) -> int:
    """How many classes a model tells apart, from what it says of one public input."""
    one = on_device(take(public, torch.arange(1)), next(model.parameters()).device)
    one = tree_map(torch.clone, one)  # a model may write to its input
    try:
        with torch.no_grad():
            return int(said(model, one, by_name=by_name).shape[-1])
    except Exception as error:  # a model of the user's own can fail in any way
        raise InputError(
            f"public: {method} calls the model on public inputs alone and needs a tensor of "
            f"outputs, which failed ({str(error).splitlines()[0][:80]}); use another method"
        ) from error


def said(model: nn.Module, inputs: Any, *, by_name: bool) -> Tensor:
    """The scores of classes; with `by_name` inputs are keyword arguments."""
    return tensor_of(model(**inputs) if by_name else model(inputs))


def labelled(inputs: Any, labels: Tensor, *, by_name: bool) -> Any:
    """Public inputs with class numbers, in the form of private examples."""
    return {**inputs, "labels": labels} if by_name else (inputs, labels)

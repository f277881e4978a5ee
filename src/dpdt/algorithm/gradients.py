"""Gradients of K micro-batches at the same θ, for one pass over the mini-batch.

Two ways, equal but for rounding. `vectorised` computes many small micro-batches of equal size at
once (torch.func); `looped` takes them one by one, which every model and loss allows.

Guarantees: in both, a row is a function of θ and of that auxiliary's examples alone. Nothing is
computed from the mini-batch as a whole, so no layer or loss can mix auxiliaries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from dpdt.algorithm.batch import Data, tree_map
from dpdt.algorithm.layout import Layout

Loss = Callable[[Any, Data], Tensor]  # (model, micro-batch) → mean loss, a scalar


def channels_last(data: Data) -> Data:
    """Images of a batch in the order that convolutions prefer; the values stay."""

    def arrange(t: Tensor) -> Tensor:
        return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t

    return tree_map(arrange, data)


def looped(model: nn.Module, loss: Loss, layout: Layout, data: Data, out: Tensor) -> Tensor:
    """Write the gradient of one micro-batch's mean loss into the row `out`; returns the loss."""
    with torch.enable_grad():
        value = loss(model, data)
        gradients = torch.autograd.grad(value, layout.tensors, allow_unused=True)
    filled = [
        torch.zeros_like(t) if g is None else g
        for t, g in zip(layout.tensors, gradients, strict=True)
    ]
    layout.join([g.unsqueeze(0) for g in filled], out=out)
    return value.detach()


def vectorised(
    model: nn.Module, loss: Loss, layout: Layout, data: Data, out: Tensor, size: int
) -> Tensor:
    """The same for len(out) micro-batches of `size` examples each; returns their losses."""
    rows = len(out)
    parameters = {n: t.detach() for n, t in zip(layout.names, layout.tensors, strict=True)}

    def local(theta: dict[str, Tensor], examples: Data) -> Tensor:
        def substituted(*args: Any, **kwargs: Any) -> Any:
            return functional_call(model, theta, args, kwargs)

        return loss(substituted, examples)

    gradients, values = vmap(grad_and_value(local), in_dims=(None, 0), randomness="different")(
        parameters, tree_map(lambda t: torch.unflatten(t, 0, (rows, size)), data)
    )
    layout.join([gradients[name] for name in layout.names], out=out)
    losses: Tensor = values
    return losses

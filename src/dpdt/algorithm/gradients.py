"""Gradients of K micro-batches at the same θ, for one pass over the mini-batch.

Three ways, equal but for rounding. `vectorised` computes many small micro-batches of equal size at
once (torch.func); `looped` takes them one by one, which every model and loss allows; `Head` knows
that a linear layer's gradient on one example is an outer product, and never writes it out.

Guarantees: in both, a row is a function of θ and of that auxiliary's examples alone. Nothing is
computed from the mini-batch as a whole, so no layer or loss can mix auxiliaries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from dpdt.algorithm.batch import Data, tree_map
from dpdt.algorithm.layout import Layout, row_norms

Loss = Callable[[Any, Data], Tensor]  # (model, micro-batch) → mean loss, a scalar


class Head:
    """A model that is one linear layer under cross-entropy, with one example in each micro-batch.

    The gradient of example i is δᵢ xᵢᵀ for the weights and δᵢ for the bias, δᵢ being the gradient
    of its own loss by its own outputs, so its norm is ‖δᵢ‖ · √(‖xᵢ‖² + 1).
    """

    def __init__(self, layer: nn.Linear):
        self.layer = layer

    @classmethod
    def of(cls, model: nn.Module, layout: Layout) -> Head | None:
        """The head, if the model is nothing else and one block."""
        layer, trained = cls.layer_of(model), {id(t) for t in layout.tensors}
        if layer is None or trained != {id(p) for p in layer.parameters()} or layout.count != 1:
            return None
        return cls(layer)

    @staticmethod
    def layer_of(model: nn.Module) -> nn.Linear | None:
        """The layer, if the model is a linear one, perhaps behind a Flatten."""
        layers = list(model) if isinstance(model, nn.Sequential) else [model]
        flat = all(isinstance(m, nn.Flatten) for m in layers[:-1])
        return layers[-1] if flat and layers and type(layers[-1]) is nn.Linear else None

    def differentiate(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """δ, the gradients' norms in float64, and the losses."""
        with torch.enable_grad():
            outputs = self.layer(x).detach().requires_grad_()
            losses = F.cross_entropy(outputs, y, reduction="none")
            (delta,) = torch.autograd.grad(losses.sum(), outputs)
        squares = row_norms(x).square()
        if self.layer.bias is not None:
            squares += 1.0
        norms = torch.linalg.vector_norm(delta.double(), dim=1) * squares.sqrt()
        return delta, norms, losses.detach()

    def total(self, layout: Layout, delta: Tensor, x: Tensor) -> Tensor:
        """Σ δᵢ xᵢᵀ and Σ δᵢ, as a flat vector."""
        sums = {id(self.layer.weight): delta.t() @ x}
        if self.layer.bias is not None:
            sums[id(self.layer.bias)] = delta.sum(0)
        return layout.join([sums[id(t)].unsqueeze(0) for t in layout.tensors])[0]


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


def each(model: nn.Module, loss: Loss, layout: Layout, data: Data, out: Tensor) -> Tensor:
    """The gradient of every single example, computed from it alone, whatever the model does."""
    try:
        return vectorised(model, loss, layout, data, out, 1)
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError):
        one = [tree_map(lambda t, i=i: t[i : i + 1], data) for i in range(len(out))]
        return torch.stack(
            [looped(model, loss, layout, x, out[i : i + 1]) for i, x in enumerate(one)]
        )


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

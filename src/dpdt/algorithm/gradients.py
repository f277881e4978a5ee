"""Gradients of micro-batches at the same θ, each a function of θ and of its own examples alone.

A micro-batch holds the examples of one auxiliary. `looped` computes one micro-batch, which every
model and loss allows. `vectorised` computes many of equal size at once (torch.func). `Head` knows
that a linear layer's gradient on one example is an outer product, and never writes the product out.
Nothing is computed from a mini-batch as a whole, so no layer or loss can mix auxiliaries. Which of
the three a model is computed by is decided elsewhere (ways.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from dpdt.algorithm.batch import Data, tree_map
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.randomness import Keyed

Loss = Callable[[Any, Data], Tensor]  # (model, micro-batch) → mean loss, a scalar
ALIGNED = 16  # numbers in the widest load of memory: rows of such a length all lie alike


class Head:
    """A model that is one linear layer under cross-entropy, with one example in each micro-batch.

    The gradient of example i is δᵢ ⊗ (xᵢ, 1). Here δᵢ is the gradient of the example's loss by its
    outputs: softmax(outputs), less 1 at the label.
    """

    def __init__(self, layer: nn.Linear):
        self.layer = layer

    @classmethod
    def of(cls, model: nn.Module, layout: Layout) -> Head | None:
        """The head, if the model is nothing else and is one block; otherwise None."""
        layer, trained = cls.layer_of(model), {id(t) for t in layout.tensors}
        if layer is None or trained != {id(p) for p in layer.parameters()} or layout.count != 1:
            return None
        if layout.place != layout.device:  # no float64 there
            return None
        return cls(layer)

    @staticmethod
    def layer_of(model: nn.Module) -> nn.Linear | None:
        """The layer, if the model is a linear layer, perhaps behind a Flatten; otherwise None."""
        layers = list(model) if isinstance(model, nn.Sequential) else [model]
        flat = all(isinstance(m, nn.Flatten) for m in layers[:-1])
        return layers[-1] if flat and layers and type(layers[-1]) is nn.Linear else None

    @property
    def width(self) -> int:
        """How many numbers a gradient has, the bias included."""
        return self.layer.out_features * (self.layer.in_features + (self.layer.bias is not None))

    def differentiate(
        self, x: Tensor, y: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """δ, in float64, and the losses. `weight` stands in for the layer's own."""
        layer, extra = self.layer, -self.layer.in_features % ALIGNED
        weight = layer.weight.detach() if weight is None else weight
        if extra:
            x, weight = F.pad(x, (0, extra)), F.pad(weight, (0, extra))
        with torch.enable_grad():
            outputs = F.linear(x, weight, layer.bias).detach().double().requires_grad_()
            losses = F.cross_entropy(outputs, y, reduction="none")
            (delta,) = torch.autograd.grad(losses.sum(), outputs)
        return delta, losses.detach()

    def flat(self, layout: Layout, total: Tensor) -> Tensor:
        """A sum of outer products as a flat vector of the layout."""
        inputs = self.layer.in_features
        parts = total.view(self.layer.out_features, -1)
        sums = {id(self.layer.weight): parts[:, :inputs]}
        if self.layer.bias is not None:
            sums[id(self.layer.bias)] = parts[:, inputs]
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


def vectorised(
    model: nn.Module,
    loss: Loss,
    layout: Layout,
    data: Data,
    out: Tensor,
    size: int,
    keyed: tuple[int, int, Tensor] | None = None,
    weights: Sequence[Tensor] | None = None,
) -> Tensor:
    """The same for len(out) micro-batches of `size` examples each; returns their losses.

    `keyed` is needed if the model has dropout: the seed, the step, and a key for each micro-batch
    (randomness.py). Anything else that is random is refused by vmap. `weights` stand in for the
    model's own.
    """
    rows, theta = len(out), layout.tensors if weights is None else weights
    parameters = {n: t.detach() for n, t in zip(layout.names, theta, strict=True)}

    def local(theta: dict[str, Tensor], examples: Data, key: Tensor) -> Tensor:
        def substituted(*args: Any, **kwargs: Any) -> Any:
            return functional_call(model, theta, args, kwargs)

        if keyed is None:
            return loss(substituted, examples)
        with Keyed(keyed[0], keyed[1], key):
            return loss(substituted, examples)

    keys = torch.zeros(rows, dtype=torch.int64) if keyed is None else keyed[2]
    gradients, values = vmap(grad_and_value(local), in_dims=(None, 0, 0), randomness="error")(
        parameters, tree_map(lambda t: torch.unflatten(t, 0, (rows, size)), data), keys
    )
    layout.join([gradients[name] for name in layout.names], out=out)
    losses: Tensor = values
    return losses

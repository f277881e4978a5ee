"""Gradients of micro-batches at the same θ, each a function of θ and of its own examples alone.

A micro-batch holds the examples of one auxiliary. `looped` computes one micro-batch, which every
model and loss allows. `vectorised` computes many of equal size at once (torch.func). Where only
norms and a sum are needed, gradients need not be written out (taps.py). Nothing is computed from a
mini-batch as a whole, so no layer or loss can mix auxiliaries. Which way a model is computed is
decided elsewhere (ways.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpdt.algorithm.attention import attention
from dpdt.algorithm.batch import Data, leaves, tree_map
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.randomness import Keyed
from dpdt.algorithm.rules import no_foreign_rules, while_mapping

Loss = Callable[[Any, Data], Tensor]  # (model, micro-batch) → mean loss, a scalar

while_mapping(F, "scaled_dot_product_attention", attention)


def linear_layer(model: nn.Module) -> nn.Linear | None:
    """The layer, if the model is a linear layer, perhaps behind a Flatten; otherwise None."""
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    flat = all(isinstance(m, nn.Flatten) for m in layers[:-1])
    return layers[-1] if flat and layers and type(layers[-1]) is nn.Linear else None


def channels_last(data: Data) -> Data:
    """Images, or weights of convolutions, in the order that they prefer; the values stay."""

    def arrange(t: Tensor) -> Tensor:
        return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t

    return tree_map(arrange, data)


def in_that_order(weights: Data) -> Data:
    """Weights in the order of `channels_last`. With one channel their strides alone can tell."""

    def tell(t: Tensor) -> Tensor:
        if t.dim() != 4:
            return t
        _, channels, height, width = t.shape
        return t.as_strided(t.shape, (channels * height * width, 1, width * channels, channels))

    return tree_map(tell, channels_last(weights))


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


@contextmanager
def mappable() -> Iterator[None]:
    """Let attention be mapped over examples, and no function by a rule of its own (rules.py).

    Where fused kernels cannot be used (attention.py), attention is mapped as products.
    transformers look into attention masks for a shorter way, which vmap forbids, unless they
    believe that they are traced. The way that they then take is right for every mask.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    before = getattr(masking, "is_tracing", None)
    if before is not None:
        masking.is_tracing = lambda tensor=None: True
    try:
        with sdpa_kernel(SDPBackend.MATH), no_foreign_rules():
            yield
    finally:
        if before is not None:
            masking.is_tracing = before


def differentiated(function: Callable[..., tuple[Tensor, Any]], *by: Any) -> tuple[Any, Any]:
    """The gradients of a scalar by all arguments, and what else the function gives.

    torch.func.grad would record the backward pass for a second derivative, and so keep all that the
    first one used until the end.
    """
    inside: list[Any] = []

    def noted(*given: Any) -> tuple[Tensor, Any]:
        value, aux = function(*given)
        inside.extend((value, given))
        return value, aux

    found: Any = vjp(noted, *by, has_aux=True)
    value, back, aux = found
    if value.dim():
        raise RuntimeError(f"the loss must be a single number, found {value.dim()} dimensions")
    if "torch._dynamo" in sys.modules:
        return back(torch.ones_like(value), retain_graph=False, create_graph=False), aux
    return _slopes(*inside), aux


def _slopes(value: Tensor, by: Any) -> Any:
    """The same as the function that `vjp` gives, where torch's compiler is not loaded.

    That one asks the compiler not to take part, and so loads it: a second before the first step.
    """
    flat = list(leaves(by))
    if not flat or not value.requires_grad:
        return tree_map(torch.zeros_like, by)
    found = iter(torch.autograd.grad(value, flat, allow_unused=True))

    def next_of(t: Tensor) -> Tensor:
        slope = next(found)
        return torch.zeros_like(t) if slope is None else slope

    return tree_map(next_of, by)


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

    def local(theta: dict[str, Tensor], examples: Data, key: Tensor) -> tuple[Tensor, Tensor]:
        def substituted(*args: Any, **kwargs: Any) -> Any:
            return functional_call(model, theta, args, kwargs)

        with nullcontext() if keyed is None else Keyed(keyed[0], keyed[1], key):
            value = loss(substituted, examples)
        return value, value

    keys = torch.zeros(rows, dtype=torch.int64) if keyed is None else keyed[2]
    split = tree_map(lambda t: torch.unflatten(t, 0, (rows, size)), data)
    with mappable():
        (gradients,), values = vmap(
            lambda examples, key: differentiated(lambda t: local(t, examples, key), parameters),
            randomness="error",
        )(split, keys)
    layout.join([gradients[name] for name in layout.names], out=out)
    losses: Tensor = values
    return losses

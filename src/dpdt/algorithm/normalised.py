"""nn.GroupNorm in a form that vmap maps to torch's own kernels, forward and backward.

vmap takes the backward pass of GroupNorm apart into many operations on whole arrays, which takes
longer than a convolution. But GroupNorm treats the examples of a batch one by one already. So
mapping it over micro-batches is the same as calling it on all their examples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpdt.algorithm.rules import folded, own_rule


def group_norm(module: nn.GroupNorm, x: Tensor, tap: Tensor | None) -> Tensor:
    """What the module computes, without gradients of its parameters.

    The gradient by the tap is the slope of the loss by what comes out; the tap is not added.
    """
    weight, bias = (None if p is None else p.detach() for p in (module.weight, module.bias))
    x = x if weight is None else x.to(weight.dtype)  # in full precision, as autocast has it
    with own_rule():
        found: Tensor = _Forward.apply(  # type: ignore[no-untyped-call]
            x, tap, weight, bias, module.num_groups, module.eps
        )[0]
    return found


def statistics(module: nn.GroupNorm, x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of every example and group, and one over its spread."""
    _, mean, spread = torch.native_group_norm(
        _dense(x), None, None, *_sizes(x), module.num_groups, module.eps
    )
    return mean, spread


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """Examples, channels, places."""
    return x.shape[0], x.shape[1], x[0, 0].numel()


def _dense(x: Tensor, like: Tensor | None = None) -> Tensor:
    """Without gaps, in the order that it has, or that another has: kernels want one for all."""
    like = x if like is None else like
    last = like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if last else torch.contiguous_format
    return x.contiguous(memory_format=order)


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, tap: Any, weight: Any, bias: Any, groups: int, eps: float) -> Any:
        return torch.native_group_norm(_dense(x), weight, bias, *_sizes(x), groups, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, _, weight, _, ctx.groups, _ = inputs
        _, mean, spread = output
        ctx.mark_non_differentiable(mean, spread)
        ctx.save_for_backward(x, mean, spread, weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Any) -> Any:
        with own_rule():
            found = _Backward.apply(  # type: ignore[no-untyped-call]
                slope, *ctx.saved_tensors, ctx.groups
            )
        return found, slope if ctx.needs_input_grad[1] else None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, tap: Any, *rest: Any) -> Any:
        return folded(_Forward, (in_dims[0], None, *in_dims[2:]), (x,), (None, *rest)), (0, 0, 0)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(
        slope: Tensor, x: Tensor, mean: Tensor, spread: Tensor, weight: Any, groups: int
    ) -> Tensor:
        found: Tensor = torch.ops.aten.native_group_norm_backward(
            _dense(slope, x), _dense(x), mean, spread, weight, *_sizes(x), groups,
            (True, False, False),
        )[0]  # fmt: skip
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("the second derivative of GroupNorm")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        return folded(_Backward, in_dims, given[:4], given[4:]), 0

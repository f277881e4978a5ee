"""Attention in a form that vmap maps to torch's fused kernels, forward and backward.

vmap has no rule for fused attention. It would be taken apart into products, whose weights of every
token by every other are held until the backward pass. But attention treats the examples of a batch
one by one already. So mapping it over micro-batches is the same as calling it on all their
examples.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dpdt.algorithm.rules import folded, mapping_here, own_rule

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
AS_IT_IS = F.scaled_dot_product_attention
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attention(*args: Any, **kwargs: Any) -> Tensor:
    """torch's function of that name: by fused kernels where vmap maps and they can be used."""
    found = _fused(*args, **kwargs) if mapping_here() else None
    return AS_IT_IS(*args, **kwargs) if found is None else found


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """What torch's function of that name computes; None where the kernel is not for it."""
    three, mask = (query, key, value), attn_mask
    if any(t.dim() != 4 or t.device.type != "cpu" or t.dtype not in FLOATS for t in three):
        return None
    kinds = {(t.dtype, *t.shape[:2], t.shape[3]) for t in three}
    if len(kinds) > 1 or key.shape != value.shape or not (query.numel() and key.numel()):
        return None
    if dropout_p or enable_gqa or (is_causal and mask is not None):
        return None
    if mask is not None:
        if mask.requires_grad or mask.dtype not in (torch.bool, query.dtype):
            return None
        heads = mask.shape[1] if mask.dim() == 4 else 1
        if mask.dim() not in (2, 4) or heads not in (1, query.shape[1]):  # the kernel trusts us
            return None
        mask = mask.expand(len(query), heads, query.shape[2], key.shape[2])
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)
    with own_rule():
        found: Tensor = _Forward.apply(*three, mask, is_causal, scale)[0]  # type: ignore[no-untyped-call]
    return found


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, mask: Any, causal: bool, scale: Any) -> Any:
        return KERNEL(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *given, ctx.causal, ctx.scale = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output, *given)

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> Any:
        with own_rule():
            found = _Backward.apply(  # type: ignore[no-untyped-call]
                slope, *ctx.saved_tensors, ctx.causal, ctx.scale
            )
        return *found, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        return _folded(_Forward, in_dims, given), (0, 0)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(
        slope: Tensor,
        out: Tensor,
        sums: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Any,
        causal: bool,
        scale: Any,
    ) -> Any:
        return BACKWARD(slope, q, k, v, out, sums, 0.0, causal, attn_mask=mask, scale=scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("the second derivative of attention")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        return _folded(_Backward, in_dims, given), (0, 0, 0)


def _folded(function: Any, in_dims: Any, given: Any) -> Any:
    """On all examples; there may be no mask."""
    tensors = sum(isinstance(x, Tensor) for x in given)
    return folded(function, in_dims, given[:tensors], given[tensors:])

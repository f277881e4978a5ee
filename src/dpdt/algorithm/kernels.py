"""Which of torch's kernels must not see channels last: found in the graph behind a loss.

Two kernels of torch 2.13 fail on the CPU where the channels of a pixel lie side by side in memory:

    convolutions    The gradient by the weights of a convolution of kernel 1 and stride above 1 is
                    computed by oneDNN in a workspace that is too small for a few channels (fewer
                    than 8 with AVX2, than 16 with AVX-512). It writes past its end. With any number
                    of threads the process may end then, or hang, or go on with wrong gradients.
    norms           The slopes by the weights of a GroupNorm, and not by its input, end the process.

So such models keep channels first, whatever their widths. Weights and examples that come with
channels last are laid channels first. A model that lays channels last by itself, such as by
`permute`, is refused where the first kernel would see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from dpdt.errors import InputError


def takes_channels_last(value: Tensor) -> bool:
    """Whether no kernel behind a loss fails on channels last, as far as the graph shows."""
    return not any(
        _hidden(node) or _norms_constants(node) or _skips(node) for node in _behind(value)
    )


def channels_first(t: Tensor) -> Tensor:
    """Images, or weights of convolutions, in the order of their dimensions; the values stay."""
    return t.clone(memory_format=torch.contiguous_format) if _last(t) else t


def lay_first(model: nn.Module) -> None:
    """Lay the weights of a model channels first, as torch does unless it is asked."""
    for tensor in (*model.parameters(), *model.buffers()):
        if _last(tensor):
            tensor.data = channels_first(tensor.data)


def refuse_channels_last(value: Tensor, model: nn.Module) -> None:
    """Refuse a model that gives channels last to a kernel that would write past its memory."""
    for node in _behind(value):
        if not _skips(node):
            continue
        x, weight = node._saved_input, node._saved_weight
        if _last(x) or _last(weight):
            same = (n for n, p in model.named_parameters() if p.data_ptr() == weight.data_ptr())
            raise InputError(
                f"model: the convolution with weight {next(same, tuple(weight.shape))!r}, of "
                "kernel 1 and stride above 1, sees channels last in memory, where a kernel of "
                "torch writes past its memory; call .contiguous() on its input"
            )


def _behind(value: Tensor) -> Iterator[Any]:
    """Every node of the graph that has led to a loss."""
    waiting: list[Any] = [value.grad_fn]
    seen = set[Any]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [before for before, _ in node.next_functions]


def _hidden(node: Any) -> bool:
    """Whether a node is a function of Python, which may call kernels that the graph lacks."""
    return isinstance(node, BackwardCFunction)


def _norms_constants(node: Any) -> bool:
    """Whether a GroupNorm sees what nothing trained has touched, such as frozen features."""
    named = node.name().startswith("NativeGroupNormBackward")
    return named and node.next_functions[0][0] is None


def _skips(node: Any) -> bool:
    """Whether a convolution looks at single places, and not at all of them."""
    if not node.name().startswith("ConvolutionBackward") or max(node._saved_stride) < 2:
        return False
    return set(node._saved_weight.shape[2:]) == {1}


def _last(t: Tensor) -> bool:
    """Whether the channels of a place lie side by side.

    Along a dimension of 1 strides mean nothing, and still torch's kernels go by them.
    """
    if t.dim() < 4 or t.stride() == torch.empty(t.shape, device="meta").stride():
        return False
    return 0 < t.stride(1) <= t.stride(-1)

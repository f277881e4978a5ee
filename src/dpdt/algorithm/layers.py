"""What each kind of layer adds to contributions, from its inputs and the gradients by its outputs.

A layer may be called several times in one pass, and sees several positions in each call: places of
an image, tokens, examples of a micro-batch. For the layers below, the gradient of their parameters
is a sum over positions of something simple (`Layer.parts`). It is written out where that is cheap.
Otherwise it stays a product, whose norm and weighted sum are computed without it (parts.py).

Arrays are [micro-batches, …]: what the layer saw of every micro-batch of a chunk.

Guarantees: nothing here mixes micro-batches. What is computed for one is a function of its own
inputs and slopes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from dpdt.parts import Lookups, Part, Products, Rows, fits

WRITTEN = 24  # multiplications that a number costs which is written out, bounded and summed
FOLDED, WINDOW = 1 << 10, 9  # pairs of channels and places of a kernel, up to which convolutions
# are folded into groups
SEVERAL = 4  # examples of a micro-batch, from which on it keeps a convolution busy
WINDOWS = 1 << 20  # numbers in the windows of a convolution that are laid out at once


@dataclass(frozen=True)
class Call:
    """One call of a layer: its input, and the slope of the loss by its output."""

    input: Tensor
    slope: Tensor

    def batched(self, dims: int) -> Call:
        """With a dimension for positions, for layers whose inputs have `dims` dimensions each."""
        missing = dims + 2 - self.input.dim()
        if missing <= 0:
            return self
        return Call(self.input.unsqueeze(1), self.slope.unsqueeze(1))


Named = list[tuple[str, Part]]  # parts, by the name of the layer's own parameter


class Layer:
    """A kind of layer, for micro-batches of one size.

    `trained` are the layer's own names of parameters that are trained.
    """

    def __init__(self, module: Any, trained: Sequence[str], size: int):
        self.module, self.trained, self.size = module, tuple(trained), size

    @classmethod
    def can(cls, module: nn.Module) -> bool:
        """Whether this module can be taken apart here."""
        return True

    def parts(self, calls: Sequence[Call], weights: dict[str, Tensor]) -> Named:
        """What every micro-batch adds to the sum, for each trained parameter.

        `weights` multiply the entries of a parameter's gradient, where they are given.
        """
        raise NotImplementedError

    def arranged(self, name: str, total: Tensor) -> Tensor:
        """A sum of parts in the shape of its parameter."""
        return total.view(getattr(self.module, name).shape)

    def shape(self, name: str) -> torch.Size:
        """The shape of a sum of parts."""
        shape: torch.Size = getattr(self.module, name).shape
        return shape

    def _rows(self, found: dict[str, Tensor], weights: dict[str, Tensor]) -> Named:
        """Parts that are written out in the shape of their parameter."""
        for name, x in found.items():
            if name in weights:
                x.mul_(weights[name])
        return [(name, Rows(x)) for name, x in found.items()]


class Affine(Layer):
    """nn.Linear, and Conv1D of transformers, whose weight is transposed."""

    def parts(self, calls: Sequence[Call], weights: dict[str, Tensor]) -> Named:
        calls = [call.batched(1) for call in calls]
        inputs = _joined([c.input.flatten(1, -2) for c in calls])
        slopes = _joined([c.slope.flatten(1, -2) for c in calls])
        found: Named = []
        if "bias" in self.trained:
            found += self._rows({"bias": slopes.sum(1)}, weights)
        if "weight" in self.trained:
            pair = (slopes, inputs) if isinstance(self.module, nn.Linear) else (inputs, slopes)
            found.append(("weight", product(*pair, weights.get("weight"))))
        return found


class Convolution(Layer):
    """nn.Conv1d, Conv2d, Conv3d: a linear layer on windows of its input."""

    def __init__(self, module: _ConvNd, trained: Sequence[str], size: int):
        super().__init__(module, trained, size)
        channels = module.in_channels * module.out_channels // module.groups
        small = channels <= FOLDED and prod(module.kernel_size) <= WINDOW
        self.windows = size < SEVERAL and module.groups == 1 and not small

    def parts(self, calls: Sequence[Call], weights: dict[str, Tensor]) -> Named:
        found: Named = []
        dims = self.module.weight.dim() - 2
        calls = [call.batched(dims + 1) for call in calls]
        if "bias" in self.trained:
            sums = [c.slope.flatten(-dims).sum(-1).sum(1) for c in calls]
            found += self._rows({"bias": sum(sums[1:], sums[0])}, weights)
        if "weight" not in self.trained:
            return found
        if not self.windows:
            each = [self._each(c) for c in calls]
            return found + self._rows({"weight": sum(each[1:], each[0])}, weights)
        given = weights.get("weight")
        scale = None if given is None else given.movedim(1, -1).flatten(1)
        slopes = _joined([c.slope.movedim(2, -1).flatten(1, -2) for c in calls])
        found.append(("weight", self._product(slopes, calls, scale)))
        return found

    def _each(self, call: Call) -> Tensor:
        """One after the other, if micro-batches have several examples; otherwise all at once.

        Then every micro-batch is a group of channels of one large convolution.
        """
        module, dims = self.module, self.module.weight.dim() - 2
        rows, size = call.input.shape[:2]
        padded = torch.unflatten(self._padded(call.input.flatten(0, 1)), 0, (rows, size))
        given = (module.stride, [0] * dims, module.dilation, False, [0] * dims)
        if self.size >= SEVERAL:
            return torch.stack(
                [
                    torch.ops.aten.convolution_backward(
                        slope, x, module.weight, None, *given, module.groups, (False, True, False)
                    )[1]
                    for slope, x in zip(call.slope, padded, strict=True)
                ]
            )
        x = padded.transpose(0, 1).flatten(1, 2)
        slope = call.slope.transpose(0, 1).flatten(1, 2)
        weight = x.new_empty(rows * module.out_channels, *module.weight.shape[1:])  # its shape
        _, found, _ = torch.ops.aten.convolution_backward(
            slope, x, weight, None, *given, rows * module.groups, (False, True, False)
        )
        result: Tensor = found.unflatten(0, (rows, -1))
        return result

    def _product(self, slopes: Tensor, calls: Sequence[Call], scale: Tensor | None) -> Part:
        """Slopes times windows, some rows at a time, so that windows stay in the cache."""
        width = self.module.weight[0].numel()
        rows, positions = slopes.shape[:2]
        if as_product(slopes.shape[2], width, rows, positions) and (
            positions == 1 or scale is None
        ):
            return Products(slopes, _joined([self._windows(c.input) for c in calls]), scale)
        out = slopes.new_empty(rows, slopes.shape[2], width)
        step = max(1, WINDOWS // (positions * width))
        for first in range(0, rows, step):
            some = slice(first, first + step)
            windows = _joined([self._windows(c.input[some]) for c in calls])
            torch.bmm(slopes[some].mT, windows, out=out[some])
        if scale is not None:
            out.mul_(scale)
        return Rows(out)

    def _windows(self, x: Tensor) -> Tensor:
        """What every output saw: [rows, positions, window · channels], for [rows, size, …]."""
        module = self.module
        rows, size = x.shape[:2]
        padded = self._padded(x.flatten(0, 1)).movedim(1, -1).contiguous()
        sides, kernel = padded.shape[1:-1], module.kernel_size
        steps = padded.stride()[1:-1]
        places = [
            (n - d * (k - 1) - 1) // s + 1
            for n, d, k, s in zip(sides, module.dilation, kernel, module.stride, strict=True)
        ]
        strides = [st * s for st, s in zip(steps, module.stride, strict=True)]
        within = [st * d for st, d in zip(steps, module.dilation, strict=True)]
        windows = padded.as_strided(
            (rows * size, *places, *kernel, x.shape[2]),
            (padded.stride(0), *strides, *within, 1),
        )
        return windows.reshape(rows, size * prod(places), prod(kernel) * x.shape[2])

    def _padded(self, x: Tensor) -> Tensor:
        module = self.module
        padding = module._reversed_padding_repeated_twice
        if not any(padding):
            return x
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        return F.pad(x, padding, mode=mode)

    def shape(self, name: str) -> torch.Size:
        if name == "bias" or not self.windows:
            return super().shape(name)
        return torch.Size((self.module.out_channels, self.module.weight[0].numel()))

    def arranged(self, name: str, total: Tensor) -> Tensor:
        if name == "bias" or not self.windows:
            return super().arranged(name, total)
        weight = self.module.weight
        return total.view(len(weight), *weight.shape[2:], weight.shape[1]).movedim(-1, 1)


class Lookup(Layer):
    """nn.Embedding."""

    @classmethod
    def can(cls, module: Any) -> bool:
        return not module.scale_grad_by_freq and module.max_norm is None

    def parts(self, calls: Sequence[Call], weights: dict[str, Tensor]) -> Named:
        indices = _joined([c.input.flatten(1) for c in calls])
        slopes = _joined([c.slope.unsqueeze(1).flatten(1, -2) for c in calls])
        if self.module.padding_idx is not None:
            padding = indices == self.module.padding_idx
            slopes = slopes.masked_fill(padding.unsqueeze(-1), 0.0)
        return [("weight", Lookups(slopes, indices))]


class Normalised(Layer):
    """nn.LayerNorm, GroupNorm and RMSNorm: slopes times normalised inputs, summed over places."""

    def parts(self, calls: Sequence[Call], weights: dict[str, Tensor]) -> Named:
        found: dict[str, Tensor] = {}
        for call in calls:
            call = call.batched(self._dims)
            each = {"bias": call.slope, "weight": call.slope * self._normal(call.input)}
            for name in self.trained:
                summed = self._summed(each[name])
                found[name] = summed if name not in found else found[name] + summed
        return self._rows(found, weights)

    @property
    def _dims(self) -> int:
        """How many dimensions the layer's parameters have, and what is summed over."""
        return 1 if isinstance(self.module, nn.GroupNorm) else len(self.module.normalized_shape)

    def _normal(self, x: Tensor) -> Tensor:
        module = self.module
        if isinstance(module, nn.GroupNorm):
            flat = F.group_norm(x.flatten(0, 1), module.num_groups, eps=module.eps)
            return torch.unflatten(flat, 0, x.shape[:2])
        if isinstance(module, nn.LayerNorm):
            return F.layer_norm(x, module.normalized_shape, eps=module.eps)
        return F.rms_norm(x, module.normalized_shape, eps=module.eps)

    def _summed(self, x: Tensor) -> Tensor:
        """Over everything but the micro-batch and the parameter's own dimensions."""
        if isinstance(self.module, nn.GroupNorm):  # [rows, size, channels, …]
            return x.flatten(3).sum(-1).sum(1) if x.dim() > 3 else x.sum(1)
        return x.flatten(1, -self._dims - 1).sum(1)


def _joined(arrays: Sequence[Tensor]) -> Tensor:
    """Positions of all calls, one after the other."""
    return arrays[0] if len(arrays) == 1 else torch.cat(list(arrays), 1)


def product(left: Tensor, right: Tensor, weights: Tensor | None) -> Part:
    """Σ over positions of left ⊗ right, written out if that is cheaper."""
    rows, positions, width = left.shape
    if positions == 1 or (weights is None and as_product(width, right.shape[2], rows, positions)):
        return Products(left, right, weights)
    out = torch.bmm(left.mT, right)
    return Rows(out if weights is None else out.mul_(weights))


def as_product(left: int, right: int, rows: int, positions: int) -> bool:
    """Whether a sum of products is cheaper than what it comes to, written out."""
    written = left * right * (positions + WRITTEN)
    kept = 2 * left * right * positions + 2 * positions**2 * (left + right)
    return kept < written and fits(rows, positions)


KINDS: dict[str, type[Layer]] = {
    "torch.nn.modules.linear.Linear": Affine,
    "transformers.pytorch_utils.Conv1D": Affine,
    "torch.nn.modules.conv.Conv1d": Convolution,
    "torch.nn.modules.conv.Conv2d": Convolution,
    "torch.nn.modules.conv.Conv3d": Convolution,
    "torch.nn.modules.sparse.Embedding": Lookup,
    "torch.nn.modules.normalization.LayerNorm": Normalised,
    "torch.nn.modules.normalization.GroupNorm": Normalised,
    "torch.nn.modules.normalization.RMSNorm": Normalised,
}


def kind_of(module: nn.Module) -> type[Layer] | None:
    """How a module is taken apart; None for one that is not known, such as a class of one's own."""
    kind = KINDS.get(f"{type(module).__module__}.{type(module).__qualname__}")
    return kind if kind is not None and kind.can(module) else None

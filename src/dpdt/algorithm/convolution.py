"""Convolutions, taken apart: linear layers on windows of their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from dpdt.algorithm.layer import Call, Layer, Named, as_product, joined
from dpdt.parts import Part, Products, Rows

FOLDED, WINDOW = 1 << 10, 9  # pairs of channels and places of a kernel, up to which convolutions
# are folded into groups
SEVERAL = 4  # examples of a micro-batch, from which on it keeps a convolution busy
FEW = 128  # positions of a micro-batch, up to which windows are faster even so
WINDOWS = 1 << 20  # numbers in the windows of a convolution that are laid out at once


class Convolution(Layer):
    """nn.Conv1d, Conv2d, Conv3d: a linear layer on windows of its input."""

    def __init__(
        self, module: _ConvNd, trained: Sequence[str], size: int, *, channels_last: bool = False
    ):
        super().__init__(module, trained, size)
        channels = module.in_channels * module.out_channels // module.groups
        small = channels <= FOLDED and prod(module.kernel_size) <= WINDOW
        self.windows = size < SEVERAL and module.groups == 1 and not small
        self.last = self.windows or channels_last  # how weights are summed: [out, window, in]

    def parts(self, calls: Sequence[Call], weights: dict[str, Tensor]) -> Named:
        found: Named = []
        dims = self.module.weight.dim() - 2
        calls = [call.batched(dims + 1) for call in calls]
        if "bias" in self.trained:
            sums = [c.slope.flatten(-dims).sum(-1).sum(1) for c in calls]
            found += self._rows({"bias": sum(sums[1:], sums[0])}, weights)
        if "weight" not in self.trained:
            return found
        given = weights.get("weight")
        scale = None if given is None else self._flat(given)
        few = self.last and self.module.groups == 1 and calls[0].slope[0, :, 0].numel() <= FEW
        if not self.windows and not few:
            each = [self._each(c, scale) for c in calls]
            return [*found, ("weight", Rows(sum(each[1:], each[0])))]
        slopes = joined([c.slope.movedim(2, -1).flatten(1, -2) for c in calls])
        found.append(("weight", self._product(slopes, calls, scale)))
        return found

    def _flat(self, weight: Tensor) -> Tensor:
        """[out, window and in] in the order of the sum, of something like the weight."""
        return (weight.movedim(1, -1) if self.last else weight).flatten(1)

    def _each(self, call: Call, scale: Tensor | None) -> Tensor:
        """One after the other, if micro-batches have several examples; otherwise all at once.

        Then every micro-batch is a group of channels of one large convolution.
        """
        module, rows = self.module, len(call.input)
        inputs, padding = call.input, self._even
        if padding is None:
            padded = self._padded(inputs.flatten(0, 1))
            inputs, padding = torch.unflatten(padded, 0, inputs.shape[:2]), [0] * len(module.stride)
        given = (module.stride, padding, module.dilation, False, [0] * len(padding))
        if self.size >= SEVERAL:
            out = call.slope.new_empty(rows, module.out_channels, module.weight[0].numel())
            for row, slope, x in zip(out, call.slope, inputs, strict=True):
                _, found, _ = torch.ops.aten.convolution_backward(
                    slope, x, module.weight, None, *given, module.groups, (False, True, False)
                )
                found = self._flat(found)
                row.copy_(found) if scale is None else torch.mul(found, scale, out=row)
            return out
        x = inputs.transpose(0, 1).flatten(1, 2)
        slope = call.slope.transpose(0, 1).flatten(1, 2)
        weight = x.new_empty(rows * module.out_channels, *module.weight.shape[1:])  # its shape
        _, found, _ = torch.ops.aten.convolution_backward(
            slope, x, weight, None, *given, rows * module.groups, (False, True, False)
        )
        each = torch.unflatten(self._flat(found), 0, (rows, -1))
        return each if scale is None else each * scale

    def _product(self, slopes: Tensor, calls: Sequence[Call], scale: Tensor | None) -> Part:
        """Slopes times windows, some rows at a time, so that windows stay in the cache."""
        width = self.module.weight[0].numel()
        rows, positions = slopes.shape[:2]
        if as_product(slopes.shape[2], width, rows, positions) and (
            positions == 1 or scale is None
        ):
            return Products(slopes, joined([self._windows(c.input) for c in calls]), scale)
        out = slopes.new_empty(rows, slopes.shape[2], width)
        step = max(1, WINDOWS // (positions * width))
        for first in range(0, rows, step):
            some = slice(first, first + step)
            windows = joined([self._windows(c.input[some]) for c in calls])
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

    @property
    def _even(self) -> list[int] | None:
        """Zeros on both sides of each dimension, if padding is just that; otherwise None."""
        ends = self.module._reversed_padding_repeated_twice
        even = self.module.padding_mode == "zeros" and ends[::2] == ends[1::2]
        return list(reversed(ends[::2])) if even else None

    def _padded(self, x: Tensor) -> Tensor:
        module = self.module
        padding = module._reversed_padding_repeated_twice
        if not any(padding):
            return x
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        return F.pad(x, padding, mode=mode)

    def shape(self, name: str) -> torch.Size:
        if name == "bias" or not self.last:
            return super().shape(name)
        return torch.Size((self.module.out_channels, self.module.weight[0].numel()))

    def arranged(self, name: str, total: Tensor) -> Tensor:
        if name == "bias" or not self.last:
            return super().arranged(name, total)
        weight = self.module.weight
        return total.view(len(weight), *weight.shape[2:], weight.shape[1]).movedim(-1, 1)

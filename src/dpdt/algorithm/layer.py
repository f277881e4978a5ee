"""What a layer is to its parts: calls of it, and products that are written out or not.

A layer may be called several times in one pass, and sees several positions in each call: places of
an image, tokens, examples of a micro-batch. The kinds of layer are in layers.py and convolution.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpdt.parts import Part, Products, Rows, fits

WRITTEN = 24  # multiplications that a number costs which is written out, bounded and summed


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
    """A kind of layer, for micro-batches of one size, perhaps with channels last.

    `trained` are the layer's own names of parameters that are trained.
    """

    def __init__(
        self, module: Any, trained: Sequence[str], size: int, *, channels_last: bool = False
    ):
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


def joined(arrays: Sequence[Tensor]) -> Tensor:
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

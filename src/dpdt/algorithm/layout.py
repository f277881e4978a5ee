"""Where each block lies in the flat buffers, and arithmetic block by block.

All trained parameters form one flat vector, block after block. K auxiliaries are then a matrix,
[K, parameters]. A step is a few passes over this matrix, not a loop over tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from dpdt.algorithm.blocks import Blocks, Parameter
from dpdt.errors import InputError
from dpdt.mechanism import Columns

PIECES = (256, 64, 16, 1)
STRETCH = 1 << 18  # numbers that are worked on at once: a few arrays of them stay in the cache
ENTRY = "entry"  # a granularity for audits: every single parameter is a block of its own


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64, as norms and sums must be. Apple's MPS does not."""
    try:
        return float(torch.ones(1, dtype=torch.float64, device=device).add_(1.0)) == 2.0
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def in_float64(t: Tensor) -> Tensor:
    """The same numbers in float64, on the CPU if their device has none."""
    return (t if has_float64(t.device) else t.cpu()).double()


def parameters_of(model: nn.Module) -> list[Parameter]:
    """The trained tensors of a model. A tensor shared by two layers is listed with the first."""
    owners: dict[int, tuple[str, nn.Module]] = {}
    for layer, module in model.named_modules():
        for tensor in module.parameters(recurse=False):
            owners.setdefault(id(tensor), (layer, module))
    result = []
    for name, tensor in model.named_parameters():
        if isinstance(tensor, UninitializedParameter):
            raise InputError(
                f"parameter {name!r} has no shape yet; call the model once on an example first"
            )
        if tensor.requires_grad:
            layer, module = owners[id(tensor)]
            result.append(
                Parameter(
                    name=name, layer=layer or "model", kind=_kind(module), size=tensor.numel()
                )
            )
    return result


def _kind(module: nn.Module) -> str:
    name = type(module).__name__
    if isinstance(module, _ConvNd):
        return "conv"
    # Conv1D is the linear layer of GPT-2 in transformers.
    if isinstance(module, nn.Linear | nn.Bilinear | nn.MultiheadAttention) or name == "Conv1D":
        return "linear"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return "embedding"
    return "norm" if "norm" in name.lower() else "other"


class Layout:
    """The flat order of a model's trained parameters.

    Every block is padded with zeros to whole pieces of equal length. So one pass over pieces serves
    all blocks, however many there are. Padding holds 0 in every buffer, always. In the methods
    below, x is a [rows, size] buffer.

    `place` is the device of the model, `device` that of the flat buffers. They are the same, unless
    the model's device has no float64: then norms, sums and noise are computed on the CPU. Only
    `join` and `scatter` pass from one to the other.
    """

    def __init__(self, model: nn.Module, granularity: str = "layer"):
        entries = granularity == ENTRY
        self.blocks = Blocks.group(parameters_of(model), "model" if entries else granularity)
        named = dict(model.named_parameters())
        self.names = [name for members in self.blocks.members for name in members]
        self.tensors: list[nn.Parameter] = [named[name] for name in self.names]
        places = {(t.dtype, t.device) for t in self.tensors}
        if len(places) > 1 or self.tensors[0].dtype not in (torch.float32, torch.float64):
            found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in places))
            raise InputError(
                "trained parameters must all be float32, or all float64, on one device; "
                f"found {found}"
            )
        self.dtype, self.place = self.tensors[0].dtype, self.tensors[0].device
        self.device = self.place if has_float64(self.place) else torch.device("cpu")
        sizes = [block.size for block in self.blocks.blocks]
        # The longest piece that wastes at most a quarter; sums over a piece run in the buffer's
        # own precision, sums over pieces in float64.
        for self.piece in PIECES:
            padded = [-(-size // self.piece) * self.piece for size in sizes]
            if sum(padded) <= 1.25 * sum(sizes) and not (entries and self.piece > 1):
                break
        self.channels_last = False
        self._spread: dict[bool, Any] = {}
        self.padding = [p - size for p, size in zip(padded, sizes, strict=True)]
        self.size = sum(padded)
        pieces = [1] * self.size if entries else [p // self.piece for p in padded]
        self.count = len(pieces)
        self.columns = Columns(pieces, 1 if entries else self.piece, self.device)
        self._block_of = self.columns.block_of
        self._real = self.join([torch.ones_like(t).unsqueeze(0) for t in self.tensors])[0].bool()

    def join(self, tensors: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """Tensors in the order of `names`, each [rows, …], as one padded [rows, size] buffer."""
        rows, parts, given = len(tensors[0]), [], iter(tensors)
        for members, padding in zip(self.blocks.members, self.padding, strict=True):
            parts += [self._flat(next(given)) for _ in members]
            if padding:
                parts.append(parts[-1].new_zeros(rows, padding, dtype=self.dtype))
        if parts[0].device == self.device:
            return torch.cat(parts, dim=1, out=out)
        joined = torch.cat(parts, dim=1).to(self.device)  # one move for all
        return joined if out is None else out.copy_(joined)

    def split(self, flat: Tensor) -> list[Tensor]:
        """A flat [size] vector as views in the parameters' shapes, in the order of `names`."""
        result, offset, given = [], 0, iter(self.tensors)
        for members, padding in zip(self.blocks.members, self.padding, strict=True):
            for tensor in (next(given) for _ in members):
                result.append(self._shaped(flat[offset : offset + tensor.numel()], tensor))
                offset += tensor.numel()
            offset += padding
        return result

    def arrange(self, channels_last: bool) -> None:
        """Hold the weights of convolutions, and their flat order, channels last or first.

        Convolutions of few images are faster channels last. A gradient is copied fastest in the
        order in which it lies in memory. Flat buffers that were made before lose their meaning.
        """
        self.channels_last = channels_last
        order = torch.channels_last if channels_last else torch.contiguous_format
        for tensor in self.tensors:
            if tensor.dim() == 4:
                tensor.data = tensor.data.contiguous(memory_format=order)

    def _flat(self, tensor: Tensor) -> Tensor:
        if self.channels_last and tensor.dim() == 5:
            tensor = tensor.permute(0, 1, 3, 4, 2)
        return tensor.reshape(len(tensor), -1)

    def _shaped(self, part: Tensor, like: Tensor) -> Tensor:
        if self.channels_last and like.dim() == 4:
            outputs, inputs, height, width = like.shape
            return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        return part.view(like.shape)

    def gather(self) -> Tensor:
        """A flat copy of the trained parameters, θ."""
        return self.join([t.detach().unsqueeze(0) for t in self.tensors])[0]

    def scatter(self, theta: Tensor) -> None:
        """Write a flat θ back into the model."""
        with torch.no_grad():
            for tensor, part in zip(self.tensors, self.split(theta.to(self.place)), strict=True):
                tensor.copy_(part)

    def set_gradient(self, flat: Tensor) -> None:
        """Make a flat vector the gradient that an optimizer finds in the model."""
        for tensor, part in zip(self.tensors, self.split(flat.to(self.place)), strict=True):
            tensor.grad = part.clone()

    def stretches(self, rows: int) -> Iterator[tuple[slice, Tensor]]:
        """Columns that stay in the cache while much is done to them, and the block of each piece.

        What follows takes these blocks where it is given such a stretch of columns.
        """
        return self.columns.slices(rows, STRETCH)

    def dots(
        self,
        x: Tensor,
        y: Tensor,
        scratch: Tensor | None = None,
        blocks: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """⟨x_g, y_g⟩ of every row and block, accumulated in float64: [rows, blocks].

        Added to `out` if it is given.
        """
        products = torch.mul(x, y, out=scratch).view(len(x), -1, self.piece)
        if out is None:
            out = torch.zeros(len(x), self.count, dtype=torch.float64, device=x.device)
        blocks = self._block_of if blocks is None else blocks
        return out.index_add_(1, blocks, products.sum(-1, dtype=torch.float64))

    def norms(self, x: Tensor, scratch: Tensor | None = None) -> Tensor:
        """‖x_g‖ of every row and block, accumulated in float64: [rows, blocks]."""
        return self.dots(x, x, scratch).sqrt_()

    def scale_(self, x: Tensor, factors: Tensor, blocks: Tensor | None = None) -> Tensor:
        """Multiply every row and block by its factor, in place."""
        x.view(len(x), -1, self.piece).mul_(self._by_piece(factors.to(x.dtype), blocks))
        return x

    def zero_(self, x: Tensor, where: Tensor, blocks: Tensor | None = None) -> Tensor:
        """Set the rows and blocks marked in a [rows, blocks] mask to 0, whatever they hold."""
        x.view(len(x), -1, self.piece).masked_fill_(self._by_piece(where, blocks), 0.0)
        return x

    def spread(self, values: Sequence[float], *, padding: bool = False) -> Tensor:
        """A flat vector that holds each block's number at each of its parameters.

        It is 0 in the padding, or there too. It is kept for the next call, and not to be changed.
        """
        if self._spread.get(padding, (None,))[0] != tuple(values):
            numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
            spread = numbers[self._block_of].repeat_interleave(self.piece)
            self._spread[padding] = (tuple(values), spread if padding else spread * self._real)
        kept: Tensor = self._spread[padding][1]
        return kept

    def _by_piece(self, values: Tensor, blocks: Tensor | None) -> Tensor:
        return values[:, self._block_of if blocks is None else blocks].unsqueeze(-1)

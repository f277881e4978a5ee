"""Where each block lies in the flat buffers, and arithmetic block by block.

All trained parameters live in one flat vector, block after block, so that K auxiliaries are a
[K, parameters] matrix and a step is a few passes over it, not a loop over tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from dpdt.algorithm.blocks import Blocks, Parameter
from dpdt.errors import InputError

# Sums of squares run over pieces this long in the buffer's own precision, then in float64.
PIECE = 256


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
                Parameter(name=name, layer=layer or name, kind=_kind(module), size=tensor.numel())
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
    """The flat order of a model's trained parameters; x below is a [rows, parameters] buffer."""

    def __init__(self, model: nn.Module, granularity: str = "layer"):
        self.blocks = Blocks.group(parameters_of(model), granularity)
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
        self.dtype, self.device = self.tensors[0].dtype, self.tensors[0].device
        self.sizes = [block.size for block in self.blocks.blocks]
        self.size, self.count = sum(self.sizes), len(self.sizes)
        # (first block, number of blocks, offset, size of each): runs of blocks of equal size
        self.runs: list[tuple[int, int, int, int]] = []
        first = offset = 0
        for size, group in groupby(self.sizes):
            number = len(list(group))
            self.runs.append((first, number, offset, size))
            first, offset = first + number, offset + number * size

    def gather(self) -> Tensor:
        """A flat copy of the trained parameters, θ."""
        return torch.cat([t.detach().reshape(-1) for t in self.tensors])

    def scatter(self, theta: Tensor) -> None:
        """Write a flat θ back into the model."""
        pieces = torch.split(theta, [t.numel() for t in self.tensors])
        with torch.no_grad():
            for tensor, piece in zip(self.tensors, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))

    def views(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """For each run of equal blocks: its block indices, and x as [rows, blocks, size]."""
        for first, number, offset, size in self.runs:
            part = x[:, offset : offset + number * size]
            yield slice(first, first + number), part.view(len(x), number, size)

    def norms(self, x: Tensor) -> Tensor:
        """‖x_g‖ of every row and block, accumulated in float64: [rows, blocks]."""
        result = torch.empty(len(x), self.count, dtype=torch.float64, device=x.device)
        for index, part in self.views(x):
            whole = part.shape[-1] // PIECE * PIECE
            total = torch.linalg.vector_norm(part[..., whole:], dim=-1).double().square_()
            if whole:
                pieces = torch.unflatten(part[..., :whole], -1, (-1, PIECE))
                total += torch.linalg.vector_norm(pieces, dim=-1).double().square_().sum(-1)
            result[:, index] = total.sqrt_()
        return result

    def dots(self, x: Tensor, y: Tensor) -> Tensor:
        """⟨x_g, y_g⟩ of every row and block: [rows, blocks], as float64."""
        result = torch.empty(len(x), self.count, dtype=torch.float64, device=x.device)
        for index, part in self.views(x * y):
            result[:, index] = part.sum(-1).double()
        return result

    def scale_(self, x: Tensor, factors: Tensor) -> Tensor:
        """Multiply every row and block by its factor, in place."""
        factors = factors.to(x.dtype)
        for index, part in self.views(x):
            part.mul_(factors[:, index].unsqueeze(-1))
        return x

    def zero_(self, x: Tensor, where: Tensor) -> Tensor:
        """Set the rows and blocks marked in a [rows, blocks] mask to 0, whatever they hold."""
        for index, part in self.views(x):
            part.masked_fill_(where[:, index].unsqueeze(-1), 0.0)
        return x

    def spread(self, values: Sequence[float]) -> Tensor:
        """A flat vector that holds each block's number at each of its parameters."""
        numbers = torch.tensor(values, dtype=self.dtype, device=self.device)
        return numbers.repeat_interleave(torch.tensor(self.sizes, device=self.device))

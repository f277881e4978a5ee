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
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.algorithm.convolution import Convolution
from dpdt.algorithm.layer import Call, Layer, Named, joined, product
from dpdt.parts import Lookups


class Affine(Layer):
    """nn.Linear, and Conv1D of transformers, whose weight is transposed."""

    def parts(self, calls: Sequence[Call], weights: dict[str, Tensor]) -> Named:
        calls = [call.batched(1) for call in calls]
        inputs = joined([c.input.flatten(1, -2) for c in calls])
        slopes = joined([c.slope.flatten(1, -2) for c in calls])
        found: Named = []
        if "bias" in self.trained:
            found += self._rows({"bias": slopes.sum(1)}, weights)
        if "weight" in self.trained:
            pair = (slopes, inputs) if isinstance(self.module, nn.Linear) else (inputs, slopes)
            found.append(("weight", product(*pair, weights.get("weight"))))
        return found


class Lookup(Layer):
    """nn.Embedding."""

    @classmethod
    def can(cls, module: Any) -> bool:
        return not module.scale_grad_by_freq and module.max_norm is None

    def parts(self, calls: Sequence[Call], weights: dict[str, Tensor]) -> Named:
        indices = joined([c.input.flatten(1) for c in calls])
        slopes = joined([c.slope.unsqueeze(1).flatten(1, -2) for c in calls])
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

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

from torch import Tensor, nn
from torch.nn import functional as F

from dpdt.algorithm.convolution import Convolution
from dpdt.algorithm.layer import Call, Layer, Named, joined, product
from dpdt.algorithm.normalised import statistics
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
    """nn.LayerNorm and RMSNorm: slopes times normalised inputs, summed over positions."""

    def parts(self, calls: Sequence[Call], weights: dict[str, Tensor]) -> Named:
        found: dict[str, Tensor] = {}
        for call in calls:
            each = self._each(call)
            for name in self.trained:
                found[name] = each[name] if name not in found else found[name] + each[name]
        return self._rows(found, weights)

    def _each(self, call: Call) -> dict[str, Tensor]:
        """What one call adds to the gradient of each parameter."""
        module, shape = self.module, self.module.normalized_shape
        call = call.batched(len(shape))
        norm = F.layer_norm if isinstance(module, nn.LayerNorm) else F.rms_norm
        normal = norm(call.input, shape, eps=module.eps)
        places = -len(shape) - 1  # the last dimension that is summed over
        return {
            "bias": call.slope.flatten(1, places).sum(1),
            "weight": (call.slope * normal).flatten(1, places).sum(1),
        }


class Grouped(Normalised):
    """nn.GroupNorm. Normalised inputs are not written out: Σ l (x − m) r = (Σ l x − m Σ l) r.

    Here l is the slope, m the mean of a group, r one over its spread, and sums are over places.
    """

    def _each(self, call: Call) -> dict[str, Tensor]:
        module = self.module
        call = call.batched(1)
        rows, size, channels = call.input.shape[:3]
        mean, spread = statistics(module, call.input.flatten(0, 1))
        x, slope = (_places_first(t.flatten(0, 1)) for t in (call.input, call.slope))
        both = slope.sum(1), (slope * x).sum(1)
        total, times = (t.view(len(t), module.num_groups, -1) for t in both)
        found = (times - total * mean.unsqueeze(2)) * spread.unsqueeze(2)
        return {
            "bias": both[0].view(rows, size, channels).sum(1),
            "weight": found.view(rows, size, channels).sum(1),
        }


def _places_first(x: Tensor) -> Tensor:
    """[examples, places, channels] of [examples, channels, …]."""
    return x.flatten(2).mT if x.dim() > 2 else x.unsqueeze(1)


KINDS: dict[str, type[Layer]] = {
    "torch.nn.modules.linear.Linear": Affine,
    "transformers.pytorch_utils.Conv1D": Affine,
    "torch.nn.modules.conv.Conv1d": Convolution,
    "torch.nn.modules.conv.Conv2d": Convolution,
    "torch.nn.modules.conv.Conv3d": Convolution,
    "torch.nn.modules.sparse.Embedding": Lookup,
    "torch.nn.modules.normalization.LayerNorm": Normalised,
    "torch.nn.modules.normalization.GroupNorm": Grouped,
    "torch.nn.modules.normalization.RMSNorm": Normalised,
}


def kind_of(module: nn.Module) -> type[Layer] | None:
    """How a module is taken apart; None for one that is not known, such as a class of one's own."""
    kind = KINDS.get(f"{type(module).__module__}.{type(module).__qualname__}")
    return kind if kind is not None and kind.can(module) else None

"""Norms and sums of many contributions, without their gradients: taps on the layers of a model.

Clipping needs the norm of each contribution and the sum of scaled contributions. Both follow from
what each layer saw and from the slope of the loss by its output (layers.py). A *tap* is a zero that
is added to a layer's output. The gradient by the tap is that slope. Taps are set by hooks on the
layers of a throw-away copy, inside a function of one micro-batch that is mapped over many by
`torch.func.vmap`. So whatever the model does, a slope is a function of θ and of one micro-batch.
Hooks on a pass over the whole batch would not be: a model may fold or mix examples.

A parameter that no tapped layer accounts for is differentiated by vmap as it is, and its gradients
are written out. Whether taps account for a parameter is found out on made-up inputs, where they are
compared with plain gradients (trials.py). If they are wrong for other inputs, contributions are not
gradients there, but they are bounded all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from dpdt.algorithm.batch import Data, tree_map
from dpdt.algorithm.gradients import (
    Loss,
    channels_last,
    differentiated,
    mappable,
    sloped,
    substituted,
)
from dpdt.algorithm.hearing import Heard, Shape
from dpdt.algorithm.layer import Call, Layer
from dpdt.algorithm.layers import Lookup, kind_of
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.precision import Lowered
from dpdt.algorithm.randomness import Keyed
from dpdt.algorithm.scaled import Scaled
from dpdt.algorithm.state import Tainted
from dpdt.parts import Part, Rows

KNOWN = ("weight", "bias")  # what layers.py knows of a layer; whatever else it has is written out

Key = tuple[int, int, Tensor]  # seed, step, and a key for each micro-batch (randomness.py)


@dataclass
class Found:
    """What one chunk came to, micro-batch by micro-batch."""

    losses: Tensor
    calls: dict[str, list[Call]]  # by layer
    written: dict[str, Tensor]  # gradients of other parameters, by name


class Taps:
    """Taps on the layers of a model, for micro-batches of one size.

    With `channels_last`, images lie in memory with the channels of a pixel side by side.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        size: int,
        *,
        weighted: bool,
        channels_last: bool = False,
    ):
        self.layout, self.size, self.channels_last = layout, size, channels_last
        self.names: list[str] = []  # the layers in the order of their calls
        self.shapes: list[Shape] = []  # of their outputs, for one micro-batch
        self.layers: dict[str, Layer] = {}
        self.held = 0  # numbers that are held of one micro-batch
        owned = _owned(model, set(layout.names))
        for name, module in model.named_modules():
            kind, trained = kind_of(module), owned.get(name)
            if kind is not None and trained and not (weighted and kind is Lookup):
                self.layers[name] = kind(module, trained, size)

    @cached_property
    def homes(self) -> dict[str, tuple[Layer, str]]:
        """Parameters that tapped layers account for: the layer, and its own name for each."""
        return {
            _join(name, own): (layer, own)
            for name, layer in self.layers.items()
            for own in layer.trained
        }

    def keep(self, names: Collection[str]) -> None:
        """Tap these layers alone."""
        self.layers = {name: layer for name, layer in self.layers.items() if name in names}
        self.__dict__.pop("homes", None)

    def written(self, found: Found, rows: int) -> Iterator[tuple[str, Tensor]]:
        """The gradients of a few micro-batches, written out. What was found is used up."""
        for name, part in self.parts(found, Scaled()):
            each = []
            for row in torch.eye(rows, dtype=torch.float64, device=self.layout.device):
                total = self.zeros(name)
                part.add_to(total, row)
                each.append(self.arranged(name, total))
            yield name, torch.stack(each)

    def run(
        self,
        model: nn.Module,
        loss: Loss,
        data: Data,
        rows: int,
        keyed: Key | None = None,
        weights: Sequence[Tensor] | None = None,
    ) -> Found:
        """Inputs and slopes of all tapped layers for `rows` micro-batches, and the rest."""
        theta = self.layout.tensors if weights is None else weights
        named = {n: t.detach() for n, t in zip(self.layout.names, theta, strict=True)}
        if self.channels_last:
            named = {n: _told(t) for n, t in channels_last(named).items()}
            data = channels_last(data)
        others = {n: named.pop(n) for n in self.layout.names if n not in self.homes}
        heard, place = Heard(), self.layout.place

        def local(taps: Any, others: dict[str, Tensor], examples: Data, key: Tensor) -> Any:
            mine = None if keyed is None else (*keyed[:2], key)
            value = self.listen(heard, taps, model, loss, {**named, **others}, examples, mine)
            if heard.names != self.names:
                raise Tainted(
                    "the model calls other layers than it did on made-up inputs; what it does must "
                    "not depend on the step or on what was computed before"
                )
            return value, (tuple(heard.inputs), value)

        taps = tuple(
            torch.zeros((), dtype=dtype, device=place).expand(rows, *shape)
            for shape, dtype in self.shapes
        )
        keys = keyed[2] if keyed else torch.zeros(rows, dtype=torch.int64, device=place)
        split = tree_map(lambda t: torch.unflatten(t, 0, (rows, self.size)), data)
        written: dict[str, Tensor] = {}
        with mappable(), heard.hooks(model, self.layers):
            if others or isinstance(loss, Lowered):  # of which autocast sees more
                (slopes, written), (inputs, losses) = vmap(
                    lambda mine, *rest: differentiated(
                        lambda t, o: local(t, o, *rest), mine, others
                    ),
                    randomness="error",
                )(taps, split, keys)
            else:
                slopes, (inputs, losses) = sloped(
                    lambda mine, *rest: local(mine, {}, *rest), taps, split, keys
                )
        calls: dict[str, list[Call]] = {}
        dtype = self.layout.dtype  # a layer may have computed in a lower one
        for name, a, b in zip(self.names, inputs, slopes, strict=True):
            seen = a.to(dtype) if a.is_floating_point() else a
            calls.setdefault(name, []).append(Call(seen, b.to(dtype)))
        return Found(losses=losses, calls=calls, written=written)

    @staticmethod
    def listen(
        heard: Heard,
        taps: Any,
        model: nn.Module,
        loss: Loss,
        named: dict[str, Tensor],
        examples: Data,
        keyed: Key | None,
    ) -> Tensor:
        """The loss of one micro-batch, and in `heard` what its layers saw."""
        heard.begin(taps)
        with nullcontext() if keyed is None else Keyed(*keyed):
            return loss(substituted(model, named), examples)

    def parts(self, found: Found, scaled: Scaled) -> Iterator[tuple[str, Part]]:
        """The contributions of a chunk, parameter by parameter. What was found is used up."""
        weights: dict[str, Tensor] = {}
        if scaled.weights is not None:
            weights = dict(zip(self.layout.names, self.layout.split(scaled.weights), strict=True))
        for name in list(found.calls):
            layer = self.layers[name]
            given = {own: weights[_join(name, own)] for own in layer.trained if weights}
            for own, part in layer.parts(found.calls.pop(name), given):
                yield _join(name, own), part
        for name in list(found.written):
            x = found.written.pop(name)
            yield name, Rows(x * weights[name] if weights else x)

    def words(self) -> str:
        """Which layers are tapped, and what is written out by vmap."""
        kinds = Counter(type(layer).__name__.lower() for layer in self.layers.values())
        tapped = ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or "no layer"
        rest = sum(name not in self.homes for name in self.layout.names)
        return f"by taps on {tapped}" + (f"; gradients of {rest} tensors by vmap" if rest else "")

    def every(self, found: Found, scaled: Scaled) -> Iterator[Tensor]:
        """All that contributions are made from, a row for each micro-batch, to be compared.

        What was found is used up.
        """
        yield found.losses
        for call in chain.from_iterable(found.calls.values()):
            yield call.input
            yield call.slope
        for _, part in self.parts(found, scaled):
            if isinstance(part, Rows):
                yield part.x
            yield part.squares()

    def shape(self, name: str) -> torch.Size:
        """The shape of a sum of a parameter's parts."""
        if name in self.homes:
            layer, own = self.homes[name]
            return layer.shape(own)
        return self.layout.tensors[self.layout.names.index(name)].shape

    def zeros(self, name: str) -> Tensor:
        """A sum of a parameter's parts that has nothing yet."""
        return torch.zeros(self.shape(name), dtype=torch.float64, device=self.layout.device)

    def arranged(self, name: str, total: Tensor) -> Tensor:
        """A sum of a parameter's parts, in the parameter's own shape."""
        if name not in self.homes:
            return total
        layer, own = self.homes[name]
        return layer.arranged(own, total)


def _owned(model: nn.Module, trained: set[str]) -> dict[str, list[str]]:
    """Of every layer, its own names of parameters that are trained and that no other layer has."""
    times: Counter[int] = Counter()
    for module in model.modules():
        times.update(id(p) for p in module._parameters.values() if p is not None)
    return {
        layer: [
            own
            for own, p in module._parameters.items()
            if own in KNOWN and _join(layer, own) in trained and times[id(p)] == 1
        ]
        for layer, module in model.named_modules()
    }


def _told(weight: Tensor) -> Tensor:
    """A weight in the order of channels_last. With one channel its strides alone can tell."""
    if weight.dim() != 4:
        return weight
    _, channels, height, width = weight.shape
    strides = (channels * height * width, 1, width * channels, channels)
    return weight.as_strided(weight.shape, strides)


def _join(layer: str, own: str) -> str:
    return f"{layer}.{own}" if layer else own

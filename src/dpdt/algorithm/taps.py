"""Norms and sums of many contributions, without their gradients: taps on the layers of a model.

Clipping needs the norm of each contribution and the sum of scaled contributions. Both follow from
what each layer saw and from the slope of the loss by its output (layers.py). A *tap* is a zero that
is added to a layer's output. The gradient by the tap is that slope. Taps are set by hooks on the
layers of a throw-away copy, inside a function of one micro-batch that is mapped over many by
`torch.func.vmap`. So whatever the model does, a slope is a function of θ and of one micro-batch.
Hooks on a pass over the whole batch would not be: a model may fold or mix examples.

A parameter that no tapped layer accounts for is differentiated by vmap as it is, and its gradients
are written out. Whether taps account for a parameter is found out on made-up inputs, where they are
compared with plain gradients. If they are wrong for other inputs, contributions are not gradients
there, but they are bounded all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dpdt.algorithm.batch import Data, tree_map
from dpdt.algorithm.gradients import (
    Loss,
    channels_last,
    differentiated,
    in_that_order,
    mappable,
    vectorised,
)
from dpdt.algorithm.hearing import Heard, Shape
from dpdt.algorithm.layer import Call, Layer
from dpdt.algorithm.layers import Lookup, kind_of
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.places import made_up, made_up_weights
from dpdt.algorithm.precision import closeness
from dpdt.algorithm.randomness import Keyed
from dpdt.algorithm.scaled import Scaled
from dpdt.algorithm.state import Tainted
from dpdt.parts import Part, Rows

TRIALS = 2
KNOWN = ("weight", "bias")  # what layers.py knows of a layer; whatever else it has is written out

Key = tuple[int, int, Tensor]  # seed, step, and a key for each micro-batch (randomness.py)


@dataclass
class Found:
    """What one chunk came to, micro-batch by micro-batch."""

    losses: Tensor
    calls: dict[str, list[Call]]  # by layer
    written: dict[str, Tensor]  # gradients of other parameters, by name


class Taps:
    """Taps on the layers of a model, for micro-batches of one size, perhaps with channels last."""

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
                self.layers[name] = kind(module, trained, size, channels_last=channels_last)

    @cached_property
    def homes(self) -> dict[str, tuple[Layer, str]]:
        """Parameters that tapped layers account for: the layer, and its own name for each."""
        return {
            _join(name, own): (layer, own)
            for name, layer in self.layers.items()
            for own in layer.trained
        }

    def probe(self, model: nn.Module, loss: Loss, like: Data, keyed: Key | None) -> bool:
        """Find out on made-up inputs which layers are called, and which taps are right.

        Raises what vmap raises if the model cannot be mapped. False if nothing could be compared,
        or if gradients that are written out differ too.
        """
        while True:
            self.names, self.shapes = [], []
            self.__dict__.pop("homes", None)
            self._run(model, loss, made_up(like, 2 * self.size), 2, keyed, None, probing=True)
            self.layers = {n: layer for n, layer in self.layers.items() if n in self.names}
            self.__dict__.pop("homes", None)
            wrong = self._wrong(model, loss, like, keyed)
            if not wrong:
                return wrong is not None
            if not wrong <= self.layers.keys():  # one call of the model is not like the next
                return False
            self.layers = {n: layer for n, layer in self.layers.items() if n not in wrong}

    def _wrong(
        self, model: nn.Module, loss: Loss, like: Data, keyed: Key | None
    ) -> set[str] | None:
        """The layers whose gradients are not the plain ones; None if none were finite."""
        layout, told, wrong = self.layout, False, set[str]()
        one = torch.eye(2, dtype=torch.float64, device=layout.device)
        close = closeness(loss)
        for trial in range(TRIALS):
            data = made_up(like, 2 * self.size, trial)
            weights = made_up_weights(layout.tensors, trial)
            out = torch.empty(2, layout.size, dtype=layout.dtype, device=layout.device)
            vectorised(model, loss, layout, data, out, self.size, keyed, weights)
            if not bool(torch.isfinite(out).all()):
                continue
            told = True
            found = self.run(model, loss, data, 2, keyed, weights)
            again = replace(found, calls=dict(found.calls), written=dict(found.written))
            self.held = sum(t[:1].numel() for t in self.every(again, Scaled()))
            wrong |= self._used_elsewhere(model, loss, data, keyed, weights)
            plain = [dict(zip(layout.names, layout.split(row), strict=True)) for row in out]
            for name, part in self.parts(found, Scaled()):
                for row in range(2):
                    total = self.zeros(name)
                    part.add_to(total, one[row])
                    mine, true = self.arranged(name, total), plain[row][name].double()
                    if float((mine - true).norm()) > close * float(true.norm()):
                        wrong.add(name.rpartition(".")[0])
        return wrong if told else None

    def _used_elsewhere(
        self,
        model: nn.Module,
        loss: Loss,
        data: Data,
        keyed: Key | None,
        weights: Sequence[Tensor],
    ) -> set[str]:
        """The layers whose parameters reach the loss by more than the layers' own calls."""
        _, gradients, _, _ = self._run(model, loss, data, 2, keyed, weights, cut=True)
        return {name.rpartition(".")[0] for name in self.homes if bool(gradients[name].any())}

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
        slopes, written, inputs, losses = self._run(model, loss, data, rows, keyed, weights)
        calls: dict[str, list[Call]] = {}
        dtype = self.layout.dtype  # a layer may have computed in a lower one
        for name, a, b in zip(self.names, inputs, slopes, strict=True):
            seen = a.to(dtype) if a.is_floating_point() else a
            calls.setdefault(name, []).append(Call(seen, b.to(dtype)))
        return Found(losses=losses, calls=calls, written=written)

    def _run(
        self,
        model: nn.Module,
        loss: Loss,
        data: Data,
        rows: int,
        keyed: Key | None,
        weights: Sequence[Tensor] | None,
        *,
        probing: bool = False,
        cut: bool = False,
    ) -> tuple[Any, dict[str, Tensor], Any, Tensor]:
        theta = self.layout.tensors if weights is None else weights
        named = {n: t.detach() for n, t in zip(self.layout.names, theta, strict=True)}
        if self.channels_last:
            named, data = in_that_order(named), channels_last(data)
        wanted = [name for name in self.layout.names if cut or name not in self.homes]
        others = {name: named.pop(name) for name in wanted}
        heard = Heard(cut=cut)

        def local(taps: Any, others: dict[str, Tensor], examples: Data, key: Tensor) -> Any:
            heard.begin(None if probing else taps)

            def substituted(*args: Any, **kwargs: Any) -> Any:
                return functional_call(model, {**named, **others}, args, kwargs)

            with nullcontext() if keyed is None else Keyed(keyed[0], keyed[1], key):
                value = loss(substituted, examples)
            if probing:
                self.names, self.shapes = heard.names, heard.shapes
            elif heard.names != self.names:
                raise Tainted(
                    "the model calls other layers than it did on made-up inputs; what it does must "
                    "not depend on the step or on what was computed before"
                )
            return value, (tuple(heard.inputs), value)

        place = self.layout.place
        taps = tuple(
            torch.zeros((), dtype=dtype, device=place).expand(rows, *shape)
            for shape, dtype in self.shapes
        )
        keys = keyed[2] if keyed else torch.zeros(rows, dtype=torch.int64, device=place)
        split = tree_map(lambda t: torch.unflatten(t, 0, (rows, self.size)), data)
        with mappable(), heard.hooks(model, self.layers):
            (slopes, written), (inputs, losses) = vmap(
                lambda mine, examples, key: differentiated(
                    lambda t, o: local(t, o, examples, key), mine, others
                ),
                randomness="error",
            )(taps, split, keys)
        return slopes, written, inputs, losses

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


def _join(layer: str, own: str) -> str:
    return f"{layer}.{own}" if layer else own

"""Hooks on the layers of a model, which hear what a layer saw and add a tap to what it says."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpdt.algorithm.normalised import group_norm

Shape = tuple[torch.Size, torch.dtype]


@dataclass
class Heard:
    """What the hooks hear during a call of the mapped function.

    With `cut`, nothing flows back into a layer's own parameters from its own calls.
    """

    cut: bool = False
    kept: dict[str, Any] = field(default_factory=dict)  # parameters of the layer being called
    taps: Sequence[Tensor] | None = None
    names: list[str] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)

    def begin(self, taps: Sequence[Tensor] | None) -> None:
        self.taps, self.names, self.inputs, self.shapes = taps, [], [], []

    @contextmanager
    def hooks(self, model: nn.Module, layers: Collection[str]) -> Iterator[None]:
        """Listen to these layers, before any hook of the model's own."""
        modules = dict(model.named_modules())
        handles = [
            modules[name].register_forward_hook(partial(self._hear, name), prepend=True)
            for name in layers
        ]
        if self.cut:
            handles += [modules[name].register_forward_pre_hook(self._detach) for name in layers]
        norms = [
            m
            for name in layers
            if type(m := modules[name]) is nn.GroupNorm and "forward" not in vars(m)
        ]
        for norm in norms:
            norm.forward = partial(group_norm, norm)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for norm in norms:
                del norm.forward
            for handle in handles:
                handle.remove()

    def _detach(self, module: nn.Module, args: Any) -> None:
        self.kept = dict(module._parameters)
        for own, parameter in self.kept.items():
            module._parameters[own] = None if parameter is None else parameter.detach()

    def _hear(self, name: str, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        module._parameters.update(self.kept)
        number = len(self.names)
        self.names.append(name)
        self.inputs.append(args[0])
        self.shapes.append((output.shape, output.dtype))
        if self.taps is None or number >= len(self.taps):
            return output
        return output + self.taps[number]

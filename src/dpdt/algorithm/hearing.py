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
    norms: set[nn.GroupNorm] = field(default_factory=set)  # whose taps are inside

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
        own = (m for name in layers if isinstance(m := modules[name], nn.GroupNorm))
        self.norms = {norm for norm in own if "forward" not in vars(norm)}
        for norm in self.norms:
            norm.forward = partial(self._normalise, norm)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for norm in self.norms:
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
        tap = self._tap(number)
        return output if tap is None or module in self.norms else output + tap

    def _normalise(self, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        return group_norm(norm, x, self._tap(len(self.names)))

    def _tap(self, number: int) -> Tensor | None:
        """The tap of a call, by the call's number; None on made-up inputs, and past the last."""
        return None if self.taps is None or number >= len(self.taps) else self.taps[number]

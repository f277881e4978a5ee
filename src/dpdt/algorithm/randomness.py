"""Randomness inside a model (dropout and the like): public, and the same whoever else takes part.

Guarantees: what is random in an auxiliary's pass is a function of (seed, step, key). The key is the
example's own number, or the auxiliary's. Nothing random depends on an example's place in the batch.
Otherwise adding or removing one record would change the others' masks, and the sum would move by
more than one contribution.

Where auxiliaries are computed one by one, all global generators are set before each (`seeded`).
Where auxiliaries are computed together by `vmap`, dropout is a hash of (seed, step, key, call,
entry), which vmap can map over examples (`Keyed`). A model that draws anything else is refused by
vmap, and is computed one by one.

The global generators belong to the whole process. Whoever sets them holds `kept()`, which one
thread can hold at a time, so that runs in several threads do not draw from each other's. Threads
that work within it (lanes.py) neither set nor use them, and need not hold it.
"""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from dpdt.mixing import GOLDEN, fractions, hashed, mix

_LOCK = threading.RLock()  # who may use the global generators


def _new_lock() -> None:
    """A fork has none of its parent's other threads, which could give the lock back."""
    global _LOCK
    _LOCK = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def seed_of(seed: int, step: int, key: int) -> int:
    """One number from three, for the global generators."""
    return int(hashed(torch.tensor(seed % 2**62), step, key)) % 2**32


class _Mps:
    """torch.mps, in the words of torch.cuda."""

    @staticmethod
    def is_initialized() -> bool:
        return torch.backends.mps.is_available()

    @staticmethod
    def get_rng_state_all() -> list[Tensor]:
        return [torch.mps.get_rng_state()]

    @staticmethod
    def set_rng_state_all(states: list[Tensor]) -> None:
        torch.mps.set_rng_state(states[0])

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        torch.mps.manual_seed(seed)


def _states() -> dict[Any, list[Tensor]]:
    """The generators' states of all devices in use besides the CPU. A GPU has its own generator."""
    devices: tuple[Any, ...] = (torch.cuda, torch.xpu, _Mps)
    return {d: d.get_rng_state_all() for d in devices if d.is_initialized()}


class Globals:
    """The states of all generators that a model may draw from without saying so."""

    def __init__(self) -> None:
        self.torch = torch.get_rng_state()
        self.python = random.getstate()
        self.numpy: Any = np.random.get_state()
        self.elsewhere = _states()

    def restore(self) -> None:
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        for device, states in self.elsewhere.items():
            device.set_rng_state_all(states)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Globals)
            and torch.equal(self.torch, other.torch)
            and self.python == other.python
            and all(np.array_equal(a, b) for a, b in zip(self.numpy, other.numpy, strict=True))
            and self.elsewhere.keys() == other.elsewhere.keys()
            and all(
                torch.equal(a, b)
                for device, states in self.elsewhere.items()
                for a, b in zip(states, other.elsewhere[device], strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]


@contextmanager
def kept() -> Iterator[Globals]:
    """Leave the global generators as they were, whatever happens inside. Other threads wait."""
    with _LOCK:
        before = Globals()
        try:
            yield before
        finally:
            before.restore()


def seeded(seed: int, step: int, key: int) -> None:
    """Set all global generators, for one auxiliary. Only within `kept()`."""
    number = seed_of(seed, step, key)
    torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number)
    for device in _states():
        device.manual_seed_all(number)


class Keyed(TorchFunctionMode):
    """Inside, dropout is a function of (seed, step, key). vmap may map over `key`."""

    def __init__(self, seed: int, step: int, key: Tensor):
        super().__init__()
        state = torch.tensor(seed % 2**62, device=key.device)
        self.state = mix(mix(state + GOLDEN) ^ step) ^ key
        self.calls = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            return self._drop(*args, spatial=DROPOUTS[func], **kwargs)
        return func(*args, **kwargs)

    def _drop(
        self,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        *,
        spatial: int | None,
    ) -> Tensor:
        if not training or p == 0.0:
            return input
        # whole channels: [examples, channels, 1 …], of an example without its first dimension too
        shape = list(input.shape)
        if spatial is not None:
            shape = shape[: len(shape) - spatial] + [1] * spatial
        keep = self._draws(shape, input.device) >= math.ceil(p * 2.0**53)
        factor = torch.where(keep, 1.0 / (1.0 - p) if p < 1.0 else 0.0, 0.0).to(input.dtype)
        return input.mul_(factor) if inplace else input * factor

    def _draws(self, shape: list[int], device: torch.device) -> Tensor:
        """Numbers from 0 to 2⁵³ − 1, one for each entry. Not every device has float64."""
        self.calls += 1
        size = 1
        for side in shape:
            size *= side
        entries = torch.arange(size, device=device) * GOLDEN  # wraps around, as it should
        bits = mix(mix(mix(self.state) + self.calls) + entries)
        found: Tensor = fractions(bits).reshape(shape)
        return found


# What is replaced, and how many dimensions behind the channels share a draw.
DROPOUTS: dict[Any, int | None] = {
    F.dropout: None,
    torch.dropout: None,
    F.dropout1d: 1,
    F.dropout2d: 2,
    F.dropout3d: 3,
}

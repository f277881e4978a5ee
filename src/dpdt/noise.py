"""Where Gaussian noise, and the coins of Poisson sampling, come from.

Guarantees: unless a seed is given, the stream starts from 256 bits of operating-system entropy and
from nothing else: not the training seed, not the clock. A stream with a given seed is for tests; a
run that uses one says so in its ledger and guarantees nothing.

The generator is fast, not cryptographic: who sees many raw draws could in principle continue the
stream. Draws are never released on their own, only summed with data and scaled.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Randomness:
    """A stream of secret random numbers with explicit state."""

    def __init__(self, seed: int | None = None):
        self.private = seed is None
        entropy = secrets.randbits(256) if seed is None else seed
        self._generator = np.random.Generator(np.random.SFC64(entropy))

    def gaussian(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """`size` independent draws from N(0, 1)."""
        import torch

        kind: Any = np.float64 if dtype == torch.float64 else np.float32
        return torch.from_numpy(self._generator.standard_normal(size, dtype=kind)).to(device)

    def coins(self, size: int, probability: float) -> np.ndarray:
        """`size` independent coins, true with `probability`."""
        return self._generator.random(size) < probability

    def choices(self, size: int, options: int) -> np.ndarray:
        """`size` independent uniform draws from 0 … options − 1."""
        return self._generator.integers(options, size=size)

    def state_dict(self) -> dict[str, Any]:
        """The whole stream from here on; as secret as the data."""
        state: Any = self._generator.bit_generator.state
        words = [int(word) for word in state["state"]["state"]]  # plain values, easy to store
        return {"private": self.private, "generator": {**state, "state": {"state": words}}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.private = self.private and bool(state["private"])
        words = np.array(state["generator"]["state"]["state"], dtype=np.uint64)
        self._generator.bit_generator.state = {**state["generator"], "state": {"state": words}}

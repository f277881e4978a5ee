"""Where every secret draw comes from: Gaussian noise, and the coins of Poisson sampling.

A stream is AES-128 in counter mode (`randomgen.AESCounter`), as good as a cipher. Whoever has seen
any number of draws can neither continue the stream nor go back. The key has the 128 bits that
AES-128 takes.

Guarantees: unless a seed is given, the key comes from the operating system's entropy and from
nothing else: not the training seed, not the clock. A stream only goes forward, so that no draw is
made twice. A stream cannot be copied, pickled or used in a forked process. Only `resume` sets a
stream back, for the run that it belongs to (see training). A stream with a given seed is for tests.
A run that uses such a stream says so in its ledger and guarantees nothing.

Where several processes, or ranks, train one model, all need the same draws. `from_first` gives them
rank 0's key, once, before the first draw. From then on each rank must draw the same numbers in the
same order. Whoever reads the network between ranks can read the key.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np
from randomgen import AESCounter

from dpdt.bands import column_norms
from dpdt.errors import InputError

KEY_BITS = 128  # what AES-128 takes
CACHED = 1 << 15  # numbers that stay in the cache
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="noise")


def _new_thread() -> None:
    """The thread of a process does not live on in its fork."""
    global _THREAD
    _THREAD = ThreadPoolExecutor(1, thread_name_prefix="noise")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_thread)


class Single:
    """What must not be copied, since the copy would share a stream of secret draws."""

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise InputError(
            "a run cannot be copied: the copy would draw the same noise; prepare another run, and "
            "give it the state_dict() of this one to continue from the same point"
        )

    def __copy__(self) -> NoReturn:
        self.__deepcopy__(None)

    def __reduce__(self) -> NoReturn:
        self.__deepcopy__(None)


class Randomness(Single):
    """A stream of secret random numbers that only goes forward."""

    def __init__(
        self, seed: int | None = None, *, from_first: Callable[[int], int] = lambda key: key
    ):
        self.private = seed is None
        key = secrets.randbits(KEY_BITS) if seed is None else _key_of(seed)
        self._generator = np.random.Generator(AESCounter(key=from_first(key)))
        self._process = os.getpid()

    def begin(self, step: int) -> None:
        """What is drawn from now on is for this step of the run."""

    def restart(self, step: int) -> None:
        """The run goes on at this step, with noise that has nothing to do with what was drawn."""

    def gaussian(self, size: int) -> np.ndarray:
        """`size` independent draws from N(0, 1), in float64."""
        return self._here.standard_normal(size)

    def ahead(self, size: int) -> Ahead:
        """Begin `size` draws of `gaussian`, on another thread, for one release."""
        return Ahead(self, size)

    def coins(self, size: int, probability: float) -> np.ndarray:
        """`size` independent coins, true with `probability`."""
        return self._here.random(size) < probability

    def choices(self, size: int, options: int) -> np.ndarray:
        """`size` independent uniform draws from 0 … options − 1."""
        return self._here.integers(options, size=size)

    def poisson(self, mean: float) -> int:
        """A draw from the Poisson distribution."""
        return int(self._here.poisson(mean))

    @property
    def _here(self) -> np.random.Generator:
        self.refuse_fork()
        return self._generator

    def refuse_fork(self) -> None:
        """Refuse to go on in a forked process."""
        if os.getpid() != self._process:  # the parent draws the same numbers
            raise InputError(
                "a run cannot go on in a forked process: it would draw the noise of its parent; "
                "prepare it in the process that trains"
            )

    def secrets(self) -> dict[str, Any]:
        """The whole stream from here on, in plain values. As secret as the data."""
        state: Any = self._generator.bit_generator.state
        inner = {name: _plain(value) for name, value in state["s"].items()}
        return {**state, "s": inner, "private": self.private}

    def resume(self, kept: dict[str, Any]) -> None:
        """Go on where `secrets` were taken. Draws are made again: only the very same run may."""
        self.private = self.private and bool(kept["private"])
        kinds = {"state": np.uint8, "seed": np.uint64, "counter": np.uint64}
        inner = {n: np.array(v, dtype=kinds[n]) if n in kinds else v for n, v in kept["s"].items()}
        known = {name: value for name, value in kept.items() if name != "private"}
        self._generator.bit_generator.state = {**known, "s": inner}


class Correlated(Randomness):
    """Noise of which each step takes back a part of the steps before it (bands.py).

    Guarantees: the draws for step t are ζ_t = s_t x_t, with x_t = (z_t − Σ c_i x_{t−i}) / c_0, and
    z_t are independent draws from N(0, 1). A step draws once, and steps follow each other. Whoever
    goes on elsewhere begins with x = 0 before that step. Only `resume` goes on with earlier x,
    which are as secret as the noise.
    """

    def __init__(
        self,
        seed: int | None = None,
        *,
        from_first: Callable[[int], int] = lambda key: key,
        coefficients: Sequence[float],
        horizon: int,
    ):
        super().__init__(seed, from_first=from_first)
        self._coefficients, self._horizon = tuple(coefficients), horizon
        self._step, self._due = 0, False  # the step that comes next, and whether it may draw
        self._earlier: list[np.ndarray] = []  # x of the steps before, the last one first

    def begin(self, step: int) -> None:
        if self._due or step != self._step:
            raise InputError(
                f"noise: step {step} cannot follow here, since noise that is correlated over steps "
                f"was drawn up to step {self._step}; go on from a state of the run"
            )
        self._due = True

    def restart(self, step: int) -> None:
        _THREAD.submit(int).result()  # a step that failed may have left draws under way
        self._step, self._due, self._earlier = step, False, []

    def gaussian(self, size: int) -> np.ndarray:
        """ζ of the step that has begun: `size` entries that are independent of each other."""
        if not self._due:
            raise InputError("noise: correlated noise is drawn once in each step")
        self._due = False
        leading, *others = self._coefficients
        x = super().gaussian(size)
        for first in range(0, size, CACHED):
            part = slice(first, first + CACHED)
            for c, before in zip(others, self._earlier, strict=False):
                x[part] -= c * before[part]
        x /= leading
        self._earlier = [x, *self._earlier][: len(others)]
        norm = column_norms(self._coefficients, self._horizon, np.array(self._step))
        self._step += 1
        drawn: np.ndarray = np.multiply(x, norm)
        return drawn

    def secrets(self) -> dict[str, Any]:
        import torch  # whose files checkpoints are

        earlier = [torch.from_numpy(x.copy()) for x in self._earlier]
        return {**super().secrets(), "step": self._step, "earlier": earlier}

    def resume(self, kept: dict[str, Any]) -> None:
        own = {name: value for name, value in kept.items() if name not in ("step", "earlier")}
        super().resume(own)
        self.restart(kept["step"])
        self._earlier = [x.numpy().copy() for x in kept["earlier"]]


class Ahead:
    """Draws that are made while something else is computed. They are handed out once.

    Few are made at once: another thread would take longer to begin with them.
    """

    def __init__(self, source: Randomness, size: int):
        self._size = size
        assert source._here  # in a forked process it says so now, not on another thread
        self._draws: Future[np.ndarray] | None = Future()
        if size <= CACHED:
            self._draws.set_result(source.gaussian(size))
        else:
            self._draws = _THREAD.submit(source.gaussian, size)

    def gaussian(self, size: int) -> np.ndarray:
        """The draws, when they are ready."""
        draws, self._draws = self._draws, None
        if draws is None or size != self._size:
            raise InputError(f"noise: {self._size} numbers were drawn, for one release alone")
        return draws.result()


def _key_of(seed: int) -> int:
    digest = hashlib.sha256(f"dpdt noise for tests {seed}".encode()).digest()
    return int.from_bytes(digest[: KEY_BITS // 8], "little")


def _plain(value: Any) -> Any:
    return [int(word) for word in value] if isinstance(value, np.ndarray) else int(value)

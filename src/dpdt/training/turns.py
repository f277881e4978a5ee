"""Who may use a run: the process that prepared it, and one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dpdt.errors import InputError
from dpdt.noise import Randomness


class Turns:
    """Guarantees: no two steps overlap, and nothing is recorded while a step is taken elsewhere.

    Another thread may take the loader's next batch. Its record waits for the step, and a step
    waits for a record that has begun.
    """

    def __init__(self, noise: Randomness):
        self._noise = noise
        self._lock = threading.RLock()
        self._stepping, self._thread = threading.Lock(), 0  # which takes the step

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step. A second one at the same time is refused, before anything is drawn."""
        self._noise.refuse_fork()
        if not self._stepping.acquire(blocking=False):
            if self._thread == threading.get_ident():
                raise InputError("a run takes one step at a time, and this was called within one")
            raise InputError(
                "a run takes one step at a time, and another thread is taking one; call the step "
                "from one thread"
            )
        try:
            self._thread = threading.get_ident()
            with self._lock:
                yield
        finally:
            self._thread = 0
            self._stepping.release()

    def recorded(self, record: Callable[[int], None]) -> Callable[[int], None]:
        """`record`, but not while another thread takes a step."""

        def waiting(step: int) -> None:
            self._noise.refuse_fork()
            with self._lock:
                record(step)

        return waiting

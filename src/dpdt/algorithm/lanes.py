"""Lanes: threads that each compute on one core.

Small pieces of work keep one core busy, but not several. And what one core computes does not depend
on how many others there are: splitting an operation over cores may change its last bits.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
BLOCK = 1 << 25  # bytes: the largest block that glibc can keep
KEPT = 1 << 29  # bytes that it keeps at most at the end of its memory
AHEAD = 2  # pieces of work that wait for each lane


def keep_memory() -> None:
    """Let glibc keep memory that is freed, for the next time.

    It hands blocks of some MB back to the system, and asks for them again page by page, which can
    take longer than what is computed in them. Other libraries of C have no such switch.
    """
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, BLOCK)
        mallopt(M_TRIM_THRESHOLD, KEPT)


class Lanes:
    """As many lanes as torch has threads. They are kept for the next time."""

    def __init__(self) -> None:
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """`map`, on lanes. Items are taken a little ahead of the results, never all at once."""
        threads = torch.get_num_threads()
        if self._pool is None or self._pool[0] != threads:
            self._pool = (threads, ThreadPoolExecutor(threads, initializer=_use_one_core))
        pool, begun = self._pool[1], deque[Future[Any]]()
        with one_core():  # whoever adds up the results must not disturb the lanes
            try:
                for item in items:
                    begun.append(pool.submit(function, item))
                    if len(begun) > AHEAD * threads:
                        yield begun.popleft().result()
                while begun:
                    yield begun.popleft().result()
            finally:
                for future in begun:
                    future.cancel()


@contextmanager
def one_core() -> Iterator[None]:
    """Compute on one core, as a lane does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _use_one_core() -> None:
    """Keep this thread's operations on one core, for reproducible and undisturbed lanes."""
    torch.get_num_threads()  # a thread adopts the global number at its first operation: do it now
    torch.set_num_threads(1)

"""Reading ahead: who is in the next mini-batches, and other processes that read their examples.

Guarantees: draws are used in the order in which they were made, each once, whatever is read ahead
and wherever the run goes on. `secrets` are those of the next draw that is used. Processes that read
get the Dataset, a public seed and numbers of examples. They never get a stream of secret draws: it
cannot be pickled, and refuses to draw in a forked process (noise.py).
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dpdt.algorithm.batch import Data
from dpdt.data.access import read
from dpdt.errors import InputError
from dpdt.noise import Randomness
from dpdt.partition import Part, PoissonSampler, Sampler

EACH = 2  # mini-batches that a process reads ahead


class Draws:
    """The mini-batches that a sampler draws, some of them ahead of their use."""

    def __init__(self, sampler: Sampler, coins: Randomness, place: tuple[int, int] = (0, 1)):
        self.sampler, self.coins = sampler, coins
        self.place = place  # the rank (process) whose part of a mini-batch this is, and how many
        self.used = 0
        self._ahead: deque[tuple[Part, dict[str, Any]]] = deque()  # and the coins before

    def look(self, number: int, step: int) -> Part:
        """Draw `number`, counted from the first of all. It may lie ahead of its use, at `step`."""
        if number - self.used == len(self._ahead):
            before = self.coins.secrets()
            self._ahead.append((self.sampler.part(step, *self.place), before))
        return self._ahead[number - self.used][0]

    def use(self, step: int) -> Part:
        """The next draw, for good."""
        found = self.look(self.used, step)
        self._ahead.popleft()
        self.used += 1
        return found

    def tasks(self, steps: range, number: int) -> Iterator[tuple[Tensor, np.ndarray, int]]:
        """What is to be read for these steps, from draw `number` on: examples, keys, the step."""
        for ahead, step in enumerate(steps):
            part = self.look(number + ahead, step)
            yield torch.from_numpy(part.indices), part.keys, step

    def move(self) -> None:
        """The run goes on at another step. Coins that were tossed are used there if they can be."""
        if not (isinstance(self.sampler, PoissonSampler) and self.sampler.groups == 1):
            self._ahead.clear()  # who takes part depends on the step

    def secrets(self) -> dict[str, Any]:
        """The coins from the next draw on. As secret as the data."""
        return self._ahead[0][1] if self._ahead else self.coins.secrets()

    def resume(self, kept: dict[str, Any]) -> None:
        """Go on where `secrets` were taken: draws are made again."""
        self._ahead.clear()
        self.coins.resume(kept)


class Reader:
    """Reads whole mini-batches of a Dataset; what is sent to other processes."""

    def __init__(self, data: Dataset[Any], seed: int):
        self.data, self.seed = data, seed

    def __getitem__(self, task: tuple[Tensor, np.ndarray, int]) -> Data | InputError:
        numbers, keys, step = task
        try:
            return read(self.data, numbers, self.seed, step, keys)
        except InputError as error:  # a sentence, which would get lost in a traceback
            return error


def readers(
    reader: Reader, tasks: Iterator[tuple[Tensor, np.ndarray, int]], workers: int, pinned: bool
) -> Generator[Data]:
    """What the reader finds for every task, in order, read ahead by `workers` processes.

    To be closed, or the processes stay for seconds: if it is collected with what refers to it, or
    with an error that does, its queues go first, and nobody tells the processes to end.
    """
    loader: Any = DataLoader(
        reader,  # type: ignore[arg-type]
        sampler=tasks,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=EACH,
        collate_fn=_as_it_is,
        worker_init_fn=_ignore_interrupts,
        pin_memory=pinned,
        generator=torch.Generator(),  # otherwise a seed is drawn from the global one
    )
    batches = iter(loader)
    try:
        for found in batches:
            if isinstance(found, InputError):
                raise found
            yield found
    finally:
        batches._shutdown_workers()


def _as_it_is(batch: Data) -> Data:
    return batch


def _ignore_interrupts(number: int) -> None:
    """A Ctrl-C is for the process that trains."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

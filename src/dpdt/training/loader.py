"""Mini-batches in the order and grouping that the partition decides."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import Dataset

from dpdt.algorithm.batch import Batch, Data, leaves, tree_map
from dpdt.algorithm.kernels import channels_first
from dpdt.algorithm.places import same_bits
from dpdt.data.access import read, sample
from dpdt.distributed.world import World
from dpdt.errors import InputError, Tainted
from dpdt.noise import Single
from dpdt.training.ahead import Draws, Reader, readers
from dpdt.training.augment import Augment


class Handed(Batch):
    """A batch as it is handed out. Its data are a copy, made when someone looks at them."""

    own: Batch

    @classmethod
    def of(cls, own: Batch) -> Handed:
        made = object.__new__(cls)
        made.__dict__.update({k: v for k, v in vars(own).items() if k != "data"}, own=own)
        return made

    @cached_property
    def data(self) -> Data:
        return tree_map(torch.clone, self.own.data)


class Loader(Single):
    """Yields the mini-batches of a whole run, from wherever it stands to the last epoch.

    Guarantees: examples, grouping and order are decided by the partition. A batch is announced, and
    so paid for, when it is handed out, not when it is read ahead. The step accepts only batches
    that were handed out, each once, in order, unchanged. It computes on data that were never handed
    out (`used`). Of several ranks (processes) each reads only its own part of a batch.

    Args:
        seed: public, for Datasets that draw random numbers.
        alone: every auxiliary holds one example by construction, and has its number as key.
        fixed: sizes and places are the same whoever takes part (see Batch).
        workers: processes that read ahead, if the data are a Dataset.
        world: the ranks that train together.
    """

    def __init__(
        self,
        data: Any,
        draws: Draws,
        *,
        batches: int,
        steps: int,
        device: torch.device,
        seed: int = 0,
        augment: Augment | None = None,
        alone: bool,
        fixed: bool,
        workers: int = 0,
        world: World,
    ):
        self.data, self.draws, self.batches, self.steps = data, draws, batches, steps
        self.device, self.seed, self.augment, self.workers = device, seed, augment, workers
        self.alone, self.fixed = alone, fixed
        self.pinned = device.type == "cuda"  # memory that a GPU reads while the CPU goes on
        self.world = world
        self.position = 0
        self._lock = threading.RLock()
        self.announce: Callable[[int], None] = lambda step: None
        self._ahead: Generator[Data] | None = None  # what is being read
        self._handed: dict[int, tuple[Handed, Batch]] = {}  # not yet used: as given, and our own
        self._began = self._state()

    def __len__(self) -> int:
        return self.steps - self.position

    def check(self) -> None:
        """Refuse tensors that were changed since the run began, as far as one can see."""
        if self._state() != self._began:
            raise Tainted(
                "the training data were changed during the run, so that an example may depend on "
                "others, past the norm bound; give a copy of what you go on to change"
            )

    def _state(self) -> tuple[str, list[int]] | None:
        """Of tensors some examples, and torch's count of changes. A Dataset may have epochs."""
        if isinstance(self.data, Dataset):
            return None
        return sample(self.data), [t._version for t in leaves(self.data)]

    def __iter__(self) -> Iterator[Batch]:
        return self.until(self.steps)

    def until(self, end: int) -> Iterator[Batch]:
        """The mini-batches from wherever the run stands to the step of that number."""
        while True:
            with self._lock:  # two threads get different batches
                if self.position >= end:
                    break
                step = self.position
                self.announce(step)
                self.position += 1
                with self.world.telling():
                    own = self._batch(step)
                given = Handed.of(own)
                self._handed[step] = (given, own)
            yield given
        if self.position >= self.steps:
            self._stop_reading()

    def _batch(self, step: int) -> Batch:
        data = self._read_ahead(step)
        part = self.draws.use(step)
        indices, numbers = part.indices, torch.from_numpy(part.indices)
        if not isinstance(self.data, Dataset):
            data = tree_map(lambda t: t[numbers], self.data)  # a copy, in any case
        elif not self.workers:
            data = read(self.data, numbers, self.seed, step)
        if self.augment is not None and len(indices):
            data = self.augment(data, indices, step)
        moved = tree_map(lambda t: t.to(self.device, non_blocking=self.pinned), data)
        return Batch(
            step=step,
            epoch=step // self.batches,
            data=tree_map(channels_first, moved),
            sizes=part.sizes,
            keys=tuple(map(int, indices)) if self.alone else None,
            fixed=self.fixed,
            first=part.first,
            whole=part.whole,
        )

    def _read_ahead(self, step: int) -> Data:
        """What other processes have read for a step, if there are such processes."""
        if not self.workers or not isinstance(self.data, Dataset):
            return None
        if self._ahead is None:
            tasks = self.draws.tasks(range(step, self.steps), self.draws.used)
            self._ahead = readers(Reader(self.data, self.seed), tasks, self.workers, self.pinned)
            weakref.finalize(self, self._ahead.close)  # it must not die in a cycle: see readers
        try:
            return next(self._ahead)
        except BaseException:  # it was announced, so its draw is used; the next one starts anew
            self._stop_reading()
            self.draws.use(step)
            raise

    def _stop_reading(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def move(self, position: int) -> None:
        """Go on from another place; batches that were handed out are no longer taken."""
        self._stop_reading()
        self.position = position
        self.draws.move()
        self._handed.clear()

    def used(self, batch: Any, step: int) -> Batch:
        """Our own batch of that step, if `batch` is the one that was handed out."""
        given, own = self._handed.get(step, (None, None))
        if given is None or own is None or batch is not given:
            raise InputError(
                "batch: each batch of the loader that prepare() returned must be used once, in "
                "order; the guarantee rests on it"
            )
        if "data" in vars(batch):  # someone has looked at it
            mine, theirs = leaves(own.data), leaves(batch.data)
            if len(mine) != len(theirs) or not all(map(same_bits, mine, theirs)):
                raise InputError(
                    "batch: was changed after the loader handed it out; transform the data before "
                    "prepare(), each example by itself"
                )
        del self._handed[step]
        return own

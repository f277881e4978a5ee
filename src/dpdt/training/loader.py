"""Mini-batches in the order and grouping that the partition decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import Dataset

from dpdt.algorithm.batch import Batch, leaves, tree_map
from dpdt.algorithm.places import same_bits
from dpdt.data.access import read, take
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.partition import Sampler
from dpdt.training.augment import Augment


class Loader:
    """Yields the mini-batches of a whole run, from wherever it stands to the last epoch.

    Guarantees: examples, grouping and order are decided by the partition. A batch is announced, and
    so paid for, when it is handed out. The step accepts only batches that were handed out, each
    once, in order, unchanged. It computes on a copy that was never handed out (`used`). Of several
    ranks (processes) each reads only its own part of a batch.

    Args:
        seed: public, for Datasets that draw random numbers.
        alone: every auxiliary holds one example by construction, and has its number as key.
        fixed: sizes and places are the same whoever takes part (see Batch).
        world: the ranks that train together.
        local: the data and the sampler are this rank's own.
    """

    def __init__(
        self,
        data: Any,
        sampler: Sampler,
        *,
        batches: int,
        steps: int,
        device: torch.device,
        seed: int = 0,
        augment: Augment | None = None,
        alone: bool,
        fixed: bool,
        world: World,
        local: bool = False,
    ):
        self.data, self.sampler, self.batches, self.steps = data, sampler, batches, steps
        self.device, self.seed, self.augment = device, seed, augment
        self.alone, self.fixed = alone, fixed
        self.world = world
        self.place = (0, 1) if local else (world.rank, world.size)
        self.position = 0
        self.announce: Callable[[int], None] = lambda step: None
        self._handed: dict[int, tuple[Batch, Batch]] = {}  # not yet used: as given, and our own

    def __len__(self) -> int:
        return self.steps - self.position

    def __iter__(self) -> Iterator[Batch]:
        while self.position < self.steps:
            step = self.position
            self.announce(step)
            self.position += 1
            with self.world.telling():
                batch = self._batch(step)
            given = replace(batch, data=tree_map(torch.clone, batch.data))
            self._handed[step] = (given, batch)
            yield given

    def _batch(self, step: int) -> Batch:
        part = self.sampler.part(step, *self.place)
        indices, numbers = part.indices, torch.from_numpy(part.indices)
        if isinstance(self.data, Dataset):
            data = read(self.data, numbers, self.seed, step)
        else:
            data = tree_map(torch.clone, take(self.data, numbers))
        if self.augment is not None and len(indices):
            data = self.augment(data, indices, step)
        return Batch(
            step=step,
            epoch=step // self.batches,
            data=tree_map(lambda t: t.to(self.device), data),
            sizes=part.sizes,
            keys=tuple(map(int, indices)) if self.alone else None,
            fixed=self.fixed,
            first=part.first,
            whole=part.whole,
        )

    def move(self, position: int) -> None:
        """Go on from another place; batches that were handed out are no longer taken."""
        self.position = position
        self._handed.clear()

    def used(self, batch: Any, step: int) -> Batch:
        """Our own copy of the batch of that step, if `batch` is the one that was handed out."""
        given, own = self._handed.get(step, (None, None))
        if given is None or own is None or batch is not given:
            raise InputError(
                "batch: each batch of the loader that prepare() returned must be used once, in "
                "order; the guarantee rests on it"
            )
        mine, theirs = leaves(own.data), leaves(batch.data)
        if len(mine) != len(theirs) or not all(map(same_bits, mine, theirs)):
            raise InputError(
                "batch: was changed after the loader handed it out; transform the data before "
                "prepare(), each example by itself"
            )
        del self._handed[step]
        return own

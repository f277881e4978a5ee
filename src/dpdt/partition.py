"""Who is in which mini-batch and auxiliary.

A step takes one mini-batch. An auxiliary is a part of it that makes one contribution.

Guarantees: nothing here looks at the examples. A `Partition` depends on the number of examples, on
the settings and on a public seed. In a `PartitionOfUsers` an example's place depends on the set of
users, on the settings and the seed, on its owner and on what else its owner holds. A
`PoissonSampler` tosses one secret coin for each example and step. `Shards` depend on a public seed.
In every partition, reshuffled or not, an example stays with one auxiliary for the whole run.

Several ranks (processes) may train one model. All know the same assignment, and each takes its own
`part` of it. Which rank computes an example never depends on who else takes part: ranks may round
differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpdt.distributed.share import share
from dpdt.mixing import hashed
from dpdt.noise import Randomness
from dpdt.users import Users, places

KEYS = 2**62  # secret keys are below
DEALING = 5  # sets this use of the public seed apart from others
Assignment = tuple[np.ndarray, tuple[int, ...]]  # indices in auxiliary order, and sizes


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank computes of a mini-batch: the auxiliaries from number `first` on.

    What is random for an example follows from its key, and from nothing else that it has.
    """

    indices: np.ndarray
    keys: np.ndarray
    sizes: tuple[int, ...]
    first: int = 0
    whole: tuple[int, ...]  # the sizes of all ranks' auxiliaries


def _auxiliaries(found: Assignment, keys: np.ndarray, rank: int, size: int) -> Part:
    """The rank's own range of auxiliaries, the same in every step."""
    indices, sizes = found
    mine = share(len(sizes), rank, size)
    ends = np.cumsum((0, *sizes))
    examples = slice(ends[mine.start], ends[mine.stop])
    return Part(
        indices=indices[examples],
        keys=keys[examples],
        sizes=sizes[mine.start : mine.stop],
        first=mine.start,
        whole=sizes,
    )


@dataclass(frozen=True, kw_only=True)
class _Fixed(ABC):
    """Fixed mini-batches × auxiliaries. An example stays with its auxiliary."""

    batches: int  # M
    auxiliaries: int  # K
    seed: int = 0
    reshuffle: bool = False  # each epoch deals every auxiliary's examples to mini-batches anew
    divisible: bool = False  # nothing is promised: ranks may share one auxiliary's examples

    @abstractmethod
    def _epoch(self, epoch: int) -> list[list[np.ndarray]]:
        """[auxiliary][mini-batch] → indices."""

    def batch(self, step: int) -> Assignment:
        """The mini-batch of a step: its examples in auxiliary order, and how many each has."""
        epoch, m = divmod(step, self.batches)
        cells = [row[m] for row in self._epoch(epoch)]
        return np.concatenate(cells), tuple(len(c) for c in cells)

    def part(self, step: int, rank: int, size: int) -> Part:
        """The rank's own auxiliaries, or its share of the examples of one."""
        indices, sizes = self.batch(step)
        if not self.divisible:
            return _auxiliaries((indices, sizes), self._keys(indices), rank, size)
        mine = share(len(indices), rank, size)
        own = indices[mine.start : mine.stop]
        return Part(indices=own, keys=self._keys(own), sizes=(len(own),), whole=sizes)

    def _keys(self, indices: np.ndarray) -> np.ndarray:
        """Return the keys of some examples: their numbers."""
        return indices


@dataclass(frozen=True, kw_only=True)
class Partition(_Fixed):
    """Examples are dealt one by one. Sizes differ by at most one."""

    examples: int

    @cached_property
    def _cells(self) -> list[list[np.ndarray]]:
        """[auxiliary][mini-batch] → indices, before any reshuffling."""
        order = np.random.default_rng((self.seed, 0)).permutation(self.examples)
        table = [np.array_split(b, self.auxiliaries) for b in np.array_split(order, self.batches)]
        return [[row[k] for row in table] for k in range(self.auxiliaries)]

    def _epoch(self, epoch: int) -> list[list[np.ndarray]]:
        if not self.reshuffle:
            return self._cells
        result = []
        for k, cells in enumerate(self._cells):
            generator = np.random.default_rng((self.seed, 1, epoch, k))
            dealt = generator.permutation(np.concatenate(cells))
            result.append(np.split(dealt, np.cumsum([len(c) for c in cells])[:-1]))
        return result


@dataclass(frozen=True, kw_only=True)
class PartitionOfUsers(_Fixed):
    """All of a user is in one auxiliary. Each user's examples are dealt to the mini-batches.

    Users go by a hash of their names, in turn to the auxiliaries, and each begins with another
    mini-batch. The order of a user's own examples is a hash of their keys. So nobody's place
    depends on how much anybody else holds.
    """

    users: Users
    first: int = 0  # the number of its first auxiliary, where other ranks hold those before it

    @cached_property
    def _cells(self) -> list[list[np.ndarray]]:
        return self._dealt(0)

    def _epoch(self, epoch: int) -> list[list[np.ndarray]]:
        return self._dealt(epoch) if self.reshuffle else self._cells

    def _dealt(self, epoch: int) -> list[list[np.ndarray]]:
        users, owner = self.users, self.users.owner
        turn, home = np.divmod(users.ranks(self.seed), self.auxiliaries)
        score = hashed(np.array([self.seed % 2**62]), DEALING, epoch, users.keys)
        batch = (turn + home)[owner] + places(owner, score, users.number)
        cell = home[owner] * self.batches + batch % self.batches
        sizes = np.bincount(cell, minlength=self.auxiliaries * self.batches)
        cells = np.split(np.lexsort((score, cell)), np.cumsum(sizes)[:-1])
        return [cells[k * self.batches :][: self.batches] for k in range(self.auxiliaries)]

    def _keys(self, indices: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.users.keys[indices]
        return found

    def part(self, step: int, rank: int, size: int) -> Part:
        """The rank's own auxiliaries, or its share of the examples of one."""
        found = super().part(step, rank, size)
        return found if self.divisible else replace(found, first=found.first + self.first)


@dataclass(frozen=True, kw_only=True)
class PoissonSampler:
    """Each example joins each mini-batch by its own coin; its auxiliary is drawn at random.

    With several `groups`, step t is for the examples of group t mod `groups` alone.
    With `per_example` every sampled example is an auxiliary of its own. Nothing is truncated, dealt
    into equal groups or skipped: batches and auxiliaries may be empty.

    Where the number of examples is private (`unnumbered`), an example has no number that would stay
    the same with one example more or less. Its key is then a secret draw of its own at every step.
    """

    examples: int
    rate: float  # of the examples whose turn it is
    auxiliaries: int  # K
    per_example: bool
    source: Randomness
    absent: np.ndarray | None = None  # examples that never take part
    groups: int = 1  # that take turns; an example stays in its own
    seed: int = 0  # of the groups
    unnumbered: bool = False

    @cached_property
    def _group(self) -> np.ndarray:
        """By an example's number alone, so that adding or removing one leaves the others."""
        return np.random.default_rng((self.seed, 11)).integers(self.groups, size=self.examples)

    def batch(self, step: int) -> Assignment:
        coins = self.source.coins(self.examples, self.rate)
        if self.groups > 1:
            coins &= self._group == step % self.groups
        chosen = np.flatnonzero(_present(coins, self.absent))
        if self.per_example:
            return chosen, (1,) * len(chosen)
        # one draw for each example, there or not: the others' are then the same without it
        home = self.source.choices(self.examples, self.auxiliaries)[chosen]
        order = np.argsort(home, kind="stable")
        sizes = np.bincount(home, minlength=self.auxiliaries)
        return chosen[order], tuple(int(s) for s in sizes)

    def part(self, step: int, rank: int, size: int) -> Part:
        """The rank's own auxiliaries. Single examples go by their own number, or key."""
        chosen, sizes = self.batch(step)
        keys = chosen
        if self.unnumbered:
            keys = self.source.choices(self.examples, KEYS)[chosen]
        if not self.per_example:
            return _auxiliaries((chosen, sizes), keys, rank, size)
        mine = share(self.examples, rank, size)
        own = (chosen >= mine.start) & (chosen < mine.stop)
        if self.unnumbered:
            own = keys % size == rank
        found = chosen[own]
        return Part(indices=found, keys=keys[own], sizes=(1,) * len(found), whole=sizes)


@dataclass(frozen=True, kw_only=True)
class Shards:
    """One shard in each step, then nothing.

    Every example draws its shard by itself. So adding or removing one leaves the others where they
    are.
    """

    examples: int
    shards: int
    seed: int = 0
    absent: np.ndarray | None = None  # examples that never take part

    @cached_property
    def _home(self) -> np.ndarray:
        return np.random.default_rng((self.seed, 3)).integers(self.shards, size=self.examples)

    def batch(self, step: int) -> Assignment:
        chosen = np.flatnonzero(_present(self._home == step, self.absent))
        return chosen, (len(chosen),) if len(chosen) else ()

    def part(self, step: int, rank: int, size: int) -> Part:
        """Whole shards, in turn."""
        indices, sizes = self.batch(step)
        if step % size != rank:
            indices, sizes = indices[:0], ()
        return Part(indices=indices, keys=indices, sizes=sizes, whole=sizes)


def _present(chosen: np.ndarray, absent: np.ndarray | None) -> np.ndarray:
    return chosen if absent is None else chosen & ~absent


Sampler = Partition | PartitionOfUsers | PoissonSampler | Shards

"""Who is in which mini-batch and auxiliary.

A step takes one mini-batch. An auxiliary is a part of it that makes one contribution.

Guarantees: nothing here looks at the examples. A `Partition` depends on the number of examples, on
the settings and on a public seed. Where users are shards, it also depends on who owns which
example. A `PoissonSampler` tosses one secret coin for each example and step. `Shards` depend on a
public seed. In every partition, reshuffled or not, an example stays with one auxiliary for the
whole run.

Several ranks (processes) may train one model. All know the same assignment, and each takes its own
`part` of it. Which rank computes an example never depends on who else takes part: ranks may round
differently.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpdt.distributed.share import share
from dpdt.errors import InputError
from dpdt.noise import Randomness

Assignment = tuple[np.ndarray, tuple[int, ...]]  # indices in auxiliary order, and sizes


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one rank computes of a mini-batch: the auxiliaries from number `first` on."""

    indices: np.ndarray
    sizes: tuple[int, ...]
    first: int = 0
    whole: tuple[int, ...]  # the sizes of all ranks' auxiliaries


def _auxiliaries(found: Assignment, rank: int, size: int, first: int = 0) -> Part:
    """The rank's own range of auxiliaries, the same in every step."""
    indices, sizes = found
    mine = share(len(sizes), rank, size)
    ends = np.cumsum((0, *sizes))
    return Part(
        indices=indices[ends[mine.start] : ends[mine.stop]],
        sizes=sizes[mine.start : mine.stop],
        first=first + mine.start,
        whole=sizes,
    )


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Fixed mini-batches × auxiliaries. Sizes differ by at most one, unless users are shards."""

    examples: int
    batches: int  # M
    auxiliaries: int  # K
    seed: int = 0
    reshuffle: bool = False  # each epoch deals every auxiliary's examples to mini-batches anew
    users: Sequence[Any] | None = None  # who owns each example: all of a user in one auxiliary
    first: int = 0  # the number of its first auxiliary, where other ranks hold those before it
    divisible: bool = False  # nothing is promised: ranks may share one auxiliary's examples

    @cached_property
    def _cells(self) -> list[list[np.ndarray]]:
        """[auxiliary][mini-batch] → indices, before any reshuffling."""
        generator = np.random.default_rng((self.seed, 0))
        if self.users is None:
            order = generator.permutation(self.examples)
            table = [
                np.array_split(b, self.auxiliaries) for b in np.array_split(order, self.batches)
            ]
            return [[row[k] for row in table] for k in range(self.auxiliaries)]
        if len(self.users) != self.examples:
            raise InputError(
                f"users: {len(self.users)} owners for {self.examples} examples; give one for each"
            )
        owner, names = owners(self.users)
        # By a hash of their names: how much anyone holds, and in which order, decides nothing.
        order = np.argsort([_hash(self.seed, name) for name in names])
        home = np.empty(len(names), dtype=int)
        home[order] = np.arange(len(names)) % self.auxiliaries
        shards = [
            np.random.default_rng((self.seed, 5, k + self.first)).permutation(
                np.flatnonzero(home[owner] == k)
            )
            for k in range(self.auxiliaries)
        ]
        return [np.array_split(shard, self.batches) for shard in shards]

    def _epoch(self, epoch: int) -> list[list[np.ndarray]]:
        if not self.reshuffle:
            return self._cells
        result = []
        for k, cells in enumerate(self._cells):
            generator = np.random.default_rng((self.seed, 1, epoch, k + self.first))
            dealt = generator.permutation(np.concatenate(cells))
            result.append(np.split(dealt, np.cumsum([len(c) for c in cells])[:-1]))
        return result

    def batch(self, step: int) -> Assignment:
        """The mini-batch of a step: its examples in auxiliary order, and how many each has."""
        epoch, m = divmod(step, self.batches)
        cells = [row[m] for row in self._epoch(epoch)]
        return np.concatenate(cells), tuple(len(c) for c in cells)

    def part(self, step: int, rank: int, size: int) -> Part:
        """The rank's own auxiliaries, or its share of the examples of one."""
        if not self.divisible:
            return _auxiliaries(self.batch(step), rank, size, self.first)
        indices, sizes = self.batch(step)
        mine = share(len(indices), rank, size)
        own = indices[mine.start : mine.stop]
        return Part(indices=own, sizes=(len(own),), whole=sizes)


@dataclass(frozen=True, kw_only=True)
class PoissonSampler:
    """Each example joins each mini-batch by its own coin; its auxiliary is drawn at random.

    With several `groups`, step t is for the examples of group t mod `groups` alone.
    With `per_example` every sampled example is an auxiliary of its own. Nothing is truncated, dealt
    into equal groups or skipped: batches and auxiliaries may be empty.
    """

    examples: int
    rate: float  # of the examples whose turn it is
    auxiliaries: int  # K
    per_example: bool
    source: Randomness
    absent: np.ndarray | None = None  # examples that never take part
    groups: int = 1  # that take turns; an example stays in its own
    seed: int = 0  # of the groups

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
        """The rank's own auxiliaries. Single examples go by their own number."""
        if not self.per_example:
            return _auxiliaries(self.batch(step), rank, size)
        chosen, sizes = self.batch(step)
        mine = share(self.examples, rank, size)
        own = chosen[(chosen >= mine.start) & (chosen < mine.stop)]
        return Part(indices=own, sizes=(1,) * len(own), whole=sizes)


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
        return Part(indices=indices, sizes=sizes, whole=sizes)


def owners(users: Sequence[Any]) -> tuple[np.ndarray, list[str]]:
    """A number for each example's owner, and the owners' names.

    An owner is a text, a number, bytes, None, or a tuple or frozenset of such. Two owners are the
    same if they are equal.
    """
    if isinstance(users, Mapping | str | bytes | set | frozenset):
        raise InputError(
            f"users: must be a sequence, one owner for each example, found {type(users).__name__}"
        )
    plain = users.tolist() if hasattr(users, "tolist") else users  # arrays and tensors
    numbers: dict[str, int] = {}
    found = np.empty(len(users), dtype=int)
    for i, user in enumerate(plain):
        name = _name(user.item() if hasattr(user, "item") else user)
        if name is None:
            raise InputError(
                "users: owners must be texts, numbers, bytes, None, or tuples and frozensets of "
                f"them, found {user!r} at {i}"
            )
        found[i] = numbers.setdefault(name, len(numbers))
    return found, list(numbers)


def _name(user: Any) -> str | None:
    """A text that is the same for equal owners, in every process. None for what is no owner."""
    match user:
        case None | str() | bytes():
            return repr(user)
        case bool() | int():
            return f"number {int(user)}"
        case float():
            return _name(int(user)) if user.is_integer() else _not_nan(user)
        case tuple() | frozenset():
            parts = [_name(part) for part in user]
            if any(part is None for part in parts):
                return None
            known = [str(part) for part in parts]
            return repr(known if isinstance(user, tuple) else ("set", *sorted(known)))
    return None


def _not_nan(user: float) -> str | None:
    return f"number {user!r}" if user == user else None


def _hash(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


def _present(chosen: np.ndarray, absent: np.ndarray | None) -> np.ndarray:
    return chosen if absent is None else chosen & ~absent


Sampler = Partition | PoissonSampler | Shards

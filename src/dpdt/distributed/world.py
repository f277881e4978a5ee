"""The ranks of a run, and all that passes between them.

A *rank* is one of the processes that train one model together. Each holds a copy of θ, computes its
own share of every mini-batch, and adds it to one sum. A run in one process is a world of one rank,
in which everything here is the identity. So the rest of the library has one path.

A rank that fails says why, in the store that all ranks can read, and closes its connections. The
others' next exchange then ends at once, and they say which rank failed and why. So no rank waits
for one that is gone. A rank that hangs, or a network that is lost, ends by a time-out.

Guarantees: what `sum` returns is the same to the bit on all ranks, or the run is void: with every
sum the ranks compare a checksum of what they must hold in common. Nothing is exchanged after a rank
has failed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dpdt.distributed.meeting import (
    VARIABLE,
    begin,
    close,
    connected,
    first_line,
    in_time,
    quiet,
    timeout,
)
from dpdt.distributed.share import share
from dpdt.errors import InputError, Tainted

ASKING = timedelta(seconds=10)  # for the store to answer, which rank 0 may have
GRACE = 3.0  # seconds for the others to say that they are still there
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # as torchrun sets it
SHOWN = 40  # characters of a value that ranks differ in
CHECKSUMS = 1 << 20
LANES = 256  # of a checksum

_NUMBERS = count()  # of the worlds of this process: the same on all ranks, which join together


class Lost(InputError):
    """Another rank failed or is gone."""


class World:
    """The ranks that train one model. `World()` is one rank alone; `join` finds the others."""

    def __init__(self, group: Any = None) -> None:
        self.rank, self.size = (0, 1) if group is None else (dist.get_rank(), dist.get_world_size())
        self.asked: Callable[[], bool] = lambda: False  # whether this rank was asked to stop
        self.stopping = False  # whether some rank was, as all know
        self._group, self._devices = group, None
        self.left = False  # whether this rank has given up on the others
        if group is not None:
            store = dist.distributed_c10d._get_default_store()
            self.number = next(_NUMBERS)
            self._store = dist.distributed_c10d.PrefixStore(f"dpdt/{self.number}", store)
            self._closing = weakref.finalize(self, close, group)

    @classmethod
    def join(cls) -> World:
        """The ranks of this process's group, or of torchrun's environment; else one rank alone.

        All ranks must call it. Ranks of one world must make their worlds in the same order.
        """
        if not dist.is_available():
            return cls()
        patience = timeout()
        if not dist.is_initialized():
            if not all(name in os.environ for name in ENVIRONMENT):
                return cls()
            if int(os.environ["WORLD_SIZE"]) == 1:
                return cls()
            connected(begin)
        if dist.get_world_size() == 1:
            return cls()
        world = cls(connected(lambda: dist.new_group(backend="gloo", timeout=patience)))
        if world.first and world.number == 0:
            print(
                f"{world.size} ranks; one that does not answer for {patience.total_seconds():g} s "
                f"ends the run ({VARIABLE} sets it)",
                file=sys.stderr,
            )
        return world

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which alone writes and prints."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.size == 1

    def asked_to_stop(self) -> bool:
        """Whether any rank was asked to stop before the last sum, which all ranks then know."""
        return self.asked() if self.alone else self.stopping

    def share_of(self, number: int) -> range:
        """This rank's part of 0 … number − 1."""
        return share(number, self.rank, self.size)

    def sum(
        self, total: Tensor, numbers: Sequence[float], same: Tensor
    ) -> tuple[Tensor, list[float]]:
        """The sums over all ranks of a float64 vector and of some numbers, in one exchange.

        `same` is what all ranks must hold in common, θ. The run is void if they do not. On a GPU
        the numbers go first and by themselves, so that a rank that is gone is noticed.
        """
        if self.alone:
            return total, list(numbers)
        mark = float(checksum(same))
        extra = [*numbers, float(self.asked()), mark, mark * mark]
        told = torch.tensor(extra, dtype=torch.float64)
        if total.device.type == "cpu":
            buffer = torch.cat([told, total.double()])
            self._exchange(dist.all_reduce, buffer)
            told, total = buffer[: len(told)], buffer[len(told) :]
        else:
            self._exchange(dist.all_reduce, told)
            total = total.double()
            self._exchange(dist.all_reduce, total, group=self._device_group())
        *sums, asked, marks, squares = told.tolist()
        # Σx² · size = (Σx)² exactly if all x are equal; these are whole numbers below 2⁵³
        if int(squares) * self.size != int(marks) ** 2:
            raise Tainted(
                "the ranks no longer hold the same parameters, so that their sum means nothing: "
                "something changed them on one rank, or ranks compute with different rounding"
            )
        self.stopping = asked > 0
        return total, sums

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.size
        self._exchange(dist.all_gather_object, found, value)
        return found

    def from_first(self, value: Any) -> Any:
        """Rank 0's value, on all ranks."""
        if self.alone:
            return value
        box = [value]
        self._exchange(dist.broadcast_object_list, box, 0)
        return box[0]

    def rows_at_first(self, own: Tensor) -> Tensor:
        """At rank 0 a copy of all ranks' rows, one rank after the other. Elsewhere nothing."""
        if self.alone:
            return own.clone()
        lengths = self.gather(len(own))
        own = own.detach().cpu().contiguous()
        if not self.first:
            self._exchange(dist.send, own, 0)
            return own[:0].clone()
        parts = [own]
        for rank in range(1, self.size):
            part = own.new_empty(lengths[rank], *own.shape[1:])
            self._exchange(dist.recv, part, rank)
            parts.append(part)
        return torch.cat(parts)

    def rows_from_first(self, rows: Tensor | None, own: Tensor) -> None:
        """Fill `own` with this rank's rows of those that rank 0 holds: undoes `rows_at_first`."""
        if self.alone:
            assert rows is not None
            own.copy_(rows)
            return
        lengths = self.gather(len(own))
        received = own.detach().cpu().contiguous()
        if self.first:
            assert rows is not None
            parts = torch.split(rows.cpu().contiguous(), lengths)
            for rank, part in enumerate(parts[1:], start=1):
                self._exchange(dist.send, part, rank)
            received = parts[0]
        else:
            self._exchange(dist.recv, received, 0)
        own.copy_(received)

    def refuse_differences(self, facts: Mapping[str, Any]) -> None:
        """Refuse to train, on every rank, if the ranks differ in any of these facts."""
        told = {name: str(value) for name, value in facts.items()}
        found = self.gather(told)
        for name in {n: None for one in found for n in one}:
            for rank, other in enumerate(found):
                a, b = (one.get(name, "nothing") for one in (found[0], other))
                if a != b:
                    short = max(len(a), len(b)) <= SHOWN
                    what = f"is {a} on rank 0 and {b} on rank {rank}" if short else (
                        f"is not the same on rank {rank} as on rank 0"
                    )  # fmt: skip
                    raise InputError(f"{name}: {what}; start every rank of a run alike")

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Whatever goes wrong inside, the others hear of it and do not wait for this rank."""
        try:
            yield
        except BaseException as error:
            self.leave(error)
            raise

    def leave(self, error: BaseException) -> None:
        """Tell the others why this rank goes, and go."""
        if self.alone or self.left:
            return
        self.left = True
        if not isinstance(error, Lost):
            words = str(error).strip() or type(error).__name__
            kind = "tainted" if isinstance(error, Tainted) else "failed"
            if not isinstance(error, InputError):
                words = f"{type(error).__name__}: {words.splitlines()[0]}"
            with quiet():
                self._store.set(f"said/{self.rank}", json.dumps([kind, words]))
        self._group = None
        self._closing()  # it holds the last reference, with which the connections close

    def _exchange(self, operation: Callable[..., Any], *arguments: Any, group: Any = None) -> None:
        if self.left:
            raise Lost("the ranks of this run no longer train together, since one of them failed")
        try:
            operation(*arguments, group=group or self._group)
            return
        except RuntimeError as error:  # what gloo and NCCL raise
            why = str(error)
        # Not inside `except`: what was caught holds the group, and with it the connections.
        lost = self._lost(why)
        self.leave(lost)
        raise lost

    def _lost(self, why: str) -> InputError:
        """Who is gone, and what they said."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            told, silent = in_time(lambda: self._asked(others), ASKING)
        except RuntimeError:  # the store is gone, too
            told, silent = None, [0]
        if isinstance(told, InputError):
            return told
        names = " or ".join(f"rank {rank}" for rank in silent or others)
        return Lost(
            f"no word from {names}: the process was killed, or its machine or the network is lost "
            f"({first_line(why)})"
        )

    def _asked(self, others: list[int]) -> tuple[InputError | None, list[int]]:
        """What a rank that failed has said, and otherwise who is silent, by the store."""
        self._store.set(f"alive/{self.rank}", "")
        for rank in others:
            if self._store.check([f"said/{rank}"]):
                kind, words = json.loads(self._store.get(f"said/{rank}"))
                text = f"rank {rank} failed: {words}"
                return Tainted(text) if kind == "tainted" else Lost(text), []
        return None, self._silent(others)

    def _silent(self, others: list[int]) -> list[int]:
        """The ranks that do not say that they are there, until only one of them does not."""
        end = time.monotonic() + GRACE
        while True:
            silent = [rank for rank in others if not self._store.check([f"alive/{rank}"])]
            if len(silent) <= 1 or time.monotonic() > end:
                return silent
            time.sleep(0.02)

    def _device_group(self) -> Any:
        """The group for tensors on GPUs, made at the first sum."""
        if self._devices is None:
            self._devices = dist.new_group(backend="nccl", timeout=timeout())
            weakref.finalize(self, close, self._devices)
        return self._devices


def checksum(t: Tensor) -> int:
    """A number below CHECKSUMS that depends on every bit of a flat tensor, and on its place."""
    bits = t.detach().cpu().contiguous().view(torch.int32).long()
    whole = len(bits) // LANES * LANES
    sums = bits[:whole].view(-1, LANES).sum(0)
    sums[: len(bits) - whole] += bits[whole:]
    weights = torch.arange(1, 2 * LANES, 2)
    return (int((sums * weights).sum()) * 0x9E3779B97F4A7C15 >> 40) % CHECKSUMS

"""One pass over a mini-batch: the sum of its auxiliaries' bounded contributions.

What chunks, places and lanes are, and what a pass guarantees, is said in executor.py.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from dpdt.algorithm.auxiliary import Contribute, Tally
from dpdt.algorithm.batch import Batch, Data, tree_map
from dpdt.algorithm.gradients import channels_last, looped, vectorised
from dpdt.algorithm.places import Digests
from dpdt.algorithm.randomness import Globals, seed_of, seeded
from dpdt.algorithm.reachable import Snapshot
from dpdt.algorithm.scaled import Scaled
from dpdt.algorithm.state import Tainted
from dpdt.algorithm.sums import Sums
from dpdt.algorithm.taps import Found, Taps
from dpdt.algorithm.ways import How, cores_for
from dpdt.mechanism import BoundedSum, Columns, full_precision

if TYPE_CHECKING:
    from dpdt.algorithm.executor import Executor

TWICE = 4  # micro-batches of a chunk that are computed twice, where taps find them
GROUPS = 64  # partial sums of a step, each computed by one thread


@dataclass
class Pass:
    """One pass over a mini-batch."""

    owner: Executor
    how: How
    batch: Batch
    columns: Columns
    clip: tuple[float, ...]
    contribute: Contribute
    whole: bool
    losses: Tensor
    copies: dict[int, tuple[nn.Module, Snapshot]] = field(default_factory=dict)  # by thread

    def _copy(self) -> tuple[nn.Module, Snapshot]:
        """Return the copy of the model that this thread calls, and what the copy held at first."""
        thread = threading.get_ident()
        if thread not in self.copies:
            model = self.owner.copy()
            self.copies[thread] = (model, self.owner.snapshot(model))
        return self.copies[thread]

    def used(self) -> nn.Module:
        """Return a copy of the model that the pass has called."""
        return next(iter(self.copies.values()))[0] if self.copies else self._copy()[0]

    def _begin(self, held: Snapshot, key: int) -> None:
        """Set all generators for an auxiliary, or for a chunk."""
        owner = self.owner
        seeded(owner.seed, self.batch.step, key)
        for snapshot in (held, owner.shared):
            if snapshot is not None and snapshot.sources:
                snapshot.seed(seed_of(owner.seed, self.batch.step, key))

    def _end(self, held: Snapshot, *, shared: bool = True) -> None:
        """Put back what a call has left; refuse what it changed outside of its copy."""
        held.put_back()
        if shared and self.owner.shared is not None:
            self.owner.shared.put_back(strict=True)

    def tapped(self, taps: Taps, scaled: Scaled, target: BoundedSum) -> Tally:
        """Many micro-batches of equal size at once, by the layers' inputs and slopes."""
        tally = Tally()
        sums = Sums(taps, scaled, self.how.blocks, target)
        for places in self._chunks():
            found, real = self._listened(taps, places, *self._copy()), places >= 0
            tally.add(_seen(sums.add(found, real.to(self.columns.device))))
            self.losses[places[real]] = found.losses.cpu().double()[real]
        sums.finish()
        return tally

    def _listened(self, taps: Taps, places: Tensor, model: nn.Module, held: Snapshot) -> Found:
        """What the taps of a chunk found."""
        owner = self.owner
        numbers = torch.from_numpy(self.batch.numbers)[places.clamp_min(0)]
        numbers = numbers.to(owner.layout.place)
        keyed = (owner.seed, self.batch.step, numbers) if self.how.keyed else None
        self._begin(held, -1)
        with cores_for(self.batch):
            found = taps.run(model, owner.loss, self._gather(places), len(places), keyed)
        self._end(held)
        return found

    def together(self, target: BoundedSum) -> Tally:
        """Many micro-batches of equal size at once, chunk after chunk."""
        tally = Tally()
        for places in self._chunks():
            gradient, real = self._mapped(places, *self._copy()), places >= 0
            rows = slice(int(places[0]), int(places[-1]) + 1)  # means something if they are fixed
            if not self.whole:
                gradient = gradient[real]
            found, seen = self.contribute(rows, gradient, torch.empty_like(gradient))
            tally.add(seen)
            tally.add(_seen(target.add(found[real] if self.whole else found)))
        return tally

    def _mapped(self, places: Tensor, model: nn.Module, held: Snapshot) -> Tensor:
        """The gradients of a chunk. An empty micro-batch has gradient 0."""
        owner, layout = self.owner, self.owner.layout
        filled = torch.tensor([self.batch.sizes[max(0, int(i))] > 0 for i in places])
        size = max(self.batch.sizes)
        out = torch.zeros(len(places), layout.size, dtype=layout.dtype, device=layout.device)
        if not bool(filled.any()):
            return out
        part = out if bool(filled.all()) else out[filled]
        data = self._gather(places[filled])
        numbers = torch.from_numpy(self.batch.numbers)[places[filled].clamp_min(0)]
        keyed = (owner.seed, self.batch.step, numbers.to(layout.place)) if self.how.keyed else None
        self._begin(held, -1)
        with cores_for(self.batch):
            values = vectorised(model, owner.loss, layout, data, part, size, keyed)
        self._end(held)
        if part is not out:
            out[filled] = part
        real = (places >= 0) & filled
        self.losses[places[real]] = values.cpu().double()[(places >= 0)[filled]]
        return out

    def apart(self, target: BoundedSum) -> Tally:
        """One by one, perhaps on lanes. The order of the partial sums does not depend on lanes."""
        number, owner, lanes = len(self.batch.sizes), self.owner, self.how.lanes
        count = min(GROUPS, number)
        groups = [range(i * number // count, (i + 1) * number // count) for i in range(count)]
        before = Globals()
        tally = Tally()

        def run(group: range) -> tuple[BoundedSum, Tally]:
            return self._group(group, *self._copy(), lane=lanes)

        for part, seen in (owner.lanes.map if lanes else map)(run, groups):
            target.merge(part)
            tally.add(seen)
        if lanes and Globals() != before:
            raise Tainted(
                "the model draws random numbers in some steps but not in the first; auxiliaries "
                "that run at the same time would disturb each other"
            )
        return tally

    def _group(
        self, group: range, model: nn.Module, held: Snapshot, *, lane: bool
    ) -> tuple[BoundedSum, Tally]:
        """The sum of some auxiliaries' contributions, each computed by itself."""
        part, tally = BoundedSum(self.columns, self.clip), Tally()
        with full_precision(), torch.no_grad():  # a lane is a thread with modes of its own
            for k in group:
                gradient = self._one(k, model, held, lane=lane)
                found, seen = self.contribute(slice(k, k + 1), gradient, torch.empty_like(gradient))
                tally.add(seen)
                tally.add(_seen(part.add(found)))
        return part, tally

    def _one(self, k: int, model: nn.Module, held: Snapshot, *, lane: bool = False) -> Tensor:
        """The gradient of one auxiliary, 0 if its micro-batch is empty.

        On a lane global generators, and what lanes share, are left alone: nothing may use them.
        """
        owner, layout = self.owner, self.owner.layout
        first, last = self.batch.bounds[k]
        out = torch.zeros(1, layout.size, dtype=layout.dtype, device=layout.device)
        if last == first:
            return out
        data = tree_map(torch.clone, self.batch.slice(first, last))  # where it lies may matter
        data = channels_last(data) if layout.channels_last else data
        key = int(self.batch.numbers[k])
        if lane:
            held.seed(seed_of(owner.seed, self.batch.step, key))
        else:
            self._begin(held, key)
        self.losses[k] = looped(model, owner.loss, layout, data, out)
        self._end(held, shared=not lane)
        return out

    def choose(self) -> Tensor:
        """Choose by secret draws what is computed twice: some rows of a chunk, or an auxiliary."""
        filled = [k for k, size in enumerate(self.batch.sizes) if size]
        if not filled:
            return torch.empty(0, dtype=torch.int64)
        if self.how.taps is None and not self.how.rows:
            return torch.tensor([secrets.choice(filled)])
        chunk = secrets.choice(list(self._chunks()))
        if self.how.taps is None:
            return chunk
        rows = chunk[chunk >= 0]  # who was not drawn has no place
        first = secrets.randbelow(max(1, len(rows) - TWICE + 1))
        return rows[first : first + TWICE]

    def recompute(self, chosen: Tensor, model: nn.Module) -> tuple[bytes, ...]:
        """Hashes of the gradients of some auxiliaries, as a module gives them.

        Of taps, what contributions are made from.
        """
        if not len(chosen):
            return ()
        held = self.owner.snapshot(model)
        if self.how.taps is not None:
            found = self._listened(self.how.taps, chosen, model, held)
            return Digests.of(self.how.taps.every(found, Scaled())).rows
        if self.how.rows:
            return Digests.of([self._mapped(chosen, model, held)]).rows
        return Digests.of([self._one(int(chosen[0]), model, held)]).rows

    def _chunks(self) -> Iterator[Tensor]:
        """Auxiliaries that are computed together, by their number in the batch.

        A −1 stands where a chunk is filled up.
        """
        number, rows, classes = len(self.batch.sizes), self.how.rows, self.how.classes
        if self.batch.fixed:
            members = torch.arange(number)
            if self.how.taps is not None:  # what is empty adds nothing
                members = members[torch.tensor(self.batch.sizes) > 0]
            yield from torch.split(members, rows)
            return
        share = rows // classes
        mine = self.batch.numbers % classes
        homes = [np.flatnonzero(mine == c) for c in range(classes)]
        for first in range(0, max(len(m) for m in homes), share):
            places = np.full((share, classes), -1)
            for c, m in enumerate(homes):
                part = m[first : first + share]
                places[: len(part), c] = part
            yield torch.from_numpy(places.reshape(-1))

    def _gather(self, places: Tensor) -> Data:
        """The examples of a chunk, in memory of their own. Fillers are copies of a member.

        If places are fixed, they are taken from where they are: who stands there never changes.
        """
        size, first = max(self.batch.sizes), torch.from_numpy(self.batch.starts)
        if self.batch.fixed and len(places) == int(places[-1] - places[0]) + 1:
            last = int(places[-1])
            return self.batch.slice(
                int(first[places[0]]), int(first[last]) + self.batch.sizes[last]
            )
        filler = int(places[places >= 0][0])
        starts = first[torch.where(places >= 0, places, filler)]
        index = (starts.unsqueeze(1) + torch.arange(size)).flatten()
        return tree_map(lambda t: t[index], self.batch.data)


def _seen(norms: Tensor) -> Tally:
    """What the sum saw of contributions: some may not have been finite."""
    return Tally(nonfinite=int(torch.isinf(norms).sum()))

"""One pass over a mini-batch: the sum of its auxiliaries' bounded contributions.

What chunks, places and lanes are, and what a pass guarantees, is said in executor.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from dpdt.algorithm.auxiliary import Contribute, Tally
from dpdt.algorithm.batch import Batch, Data, tree_map
from dpdt.algorithm.gradients import channels_last, looped, vectorised
from dpdt.algorithm.places import Digests
from dpdt.algorithm.randomness import Globals, seeded
from dpdt.algorithm.scaled import Scaled
from dpdt.algorithm.state import Attributes, Tainted
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

    def tapped(self, taps: Taps, scaled: Scaled, target: BoundedSum) -> Tally:
        """Many micro-batches of equal size at once, by the layers' inputs and slopes."""
        tally, model = Tally(), self.owner.copy()
        attributes = Attributes(model)
        sums = Sums(taps, scaled, self.how.blocks, target)
        for places in self._chunks():
            found, real = self._listened(taps, places, model, attributes), places >= 0
            tally.add(_seen(sums.add(found, real.to(self.columns.device))))
            self.losses[places[real]] = found.losses.cpu().double()[real]
        attributes.refuse_content()
        sums.finish()
        return tally

    def _listened(
        self, taps: Taps, places: Tensor, model: nn.Module, attributes: Attributes
    ) -> Found:
        """What the taps of a chunk found."""
        owner = self.owner
        numbers = torch.from_numpy(self.batch.numbers)[places.clamp_min(0)]
        numbers = numbers.to(owner.layout.place)
        keyed = (owner.seed, self.batch.step, numbers) if self.how.keyed else None
        seeded(owner.seed, self.batch.step, -1)
        with cores_for(self.batch):
            found = taps.run(model, owner.loss, self._gather(places), len(places), keyed)
        attributes.refuse_buffers()
        attributes.restore()
        return found

    def together(self, target: BoundedSum) -> Tally:
        """Many micro-batches of equal size at once, chunk after chunk."""
        tally, model = Tally(), self.owner.copy()
        attributes = Attributes(model)
        for places in self._chunks():
            gradient, real = self._mapped(places, model, attributes), places >= 0
            rows = slice(int(places[0]), int(places[-1]) + 1)  # means something if they are fixed
            if not self.whole:
                gradient = gradient[real]
            found, seen = self.contribute(rows, gradient, torch.empty_like(gradient))
            tally.add(seen)
            tally.add(_seen(target.add(found[real] if self.whole else found)))
        attributes.refuse_content()
        return tally

    def _mapped(self, places: Tensor, model: nn.Module, attributes: Attributes) -> Tensor:
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
        seeded(owner.seed, self.batch.step, -1)
        with cores_for(self.batch):
            values = vectorised(model, owner.loss, layout, data, part, size, keyed)
        attributes.refuse_buffers()
        attributes.restore()
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
        copies: dict[int, tuple[nn.Module, Attributes]] = {}
        before = Globals()
        tally = Tally()

        def run(group: range) -> tuple[BoundedSum, Tally]:
            lane = threading.get_ident()
            if lane not in copies:
                model = owner.copy()
                copies[lane] = (model, Attributes(model))
            return self._group(group, *copies[lane], seed=not lanes)

        for part, seen in (owner.lanes.map if lanes else map)(run, groups):
            target.merge(part)
            tally.add(seen)
        for _, attributes in copies.values():
            attributes.refuse_content()
        if lanes and Globals() != before:
            raise Tainted(
                "the model draws random numbers in some steps but not in the first; auxiliaries "
                "that run at the same time would disturb each other"
            )
        return tally

    def _group(
        self, group: range, model: nn.Module, attributes: Attributes, *, seed: bool
    ) -> tuple[BoundedSum, Tally]:
        """The sum of some auxiliaries' contributions, each computed by itself."""
        part, tally = BoundedSum(self.columns, self.clip), Tally()
        with full_precision(), torch.no_grad():  # a lane is a thread with modes of its own
            for k in group:
                gradient = self._one(k, model, attributes, seed=seed)
                found, seen = self.contribute(slice(k, k + 1), gradient, torch.empty_like(gradient))
                tally.add(seen)
                tally.add(_seen(part.add(found)))
        return part, tally

    def _one(self, k: int, model: nn.Module, attributes: Attributes, *, seed: bool) -> Tensor:
        """The gradient of one auxiliary, 0 if its micro-batch is empty."""
        owner, layout = self.owner, self.owner.layout
        first, last = self.batch.bounds[k]
        out = torch.zeros(1, layout.size, dtype=layout.dtype, device=layout.device)
        if last == first:
            return out
        data = tree_map(torch.clone, self.batch.slice(first, last))  # where it lies may matter
        data = channels_last(data) if layout.channels_last else data
        if seed:
            seeded(owner.seed, self.batch.step, int(self.batch.numbers[k]))
        attributes.restore()
        self.losses[k] = looped(model, owner.loss, layout, data, out)
        attributes.refuse_buffers()
        attributes.restore()
        return out

    def first(self) -> tuple[bytes, ...]:
        """Hashes of the gradients of the first chunk, or of the first auxiliary that is not empty.

        Nothing if all are empty. Of taps, what contributions are made from.
        """
        filled = [k for k, size in enumerate(self.batch.sizes) if size]
        if not filled:
            return ()
        model = self.owner.copy()
        attributes = Attributes(model)
        if self.how.taps is not None:
            chunk = next(self._chunks())
            some = chunk[chunk >= 0][:TWICE]  # who was not drawn has no place
            found = self._listened(self.how.taps, some, model, attributes)
            return Digests.of(self.how.taps.every(found, Scaled())).rows
        if self.how.rows:
            return Digests.of([self._mapped(next(self._chunks()), model, attributes)]).rows
        return Digests.of([self._one(filled[0], model, attributes, seed=True)]).rows

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

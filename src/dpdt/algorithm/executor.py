"""How contributions are computed and summed: together, one by one, on lanes, or as products.

Under Poisson sampling an example's place in the batch depends on who else was drawn, and a matrix
product may round a row differently at another place, or among another number of rows. An attacker
could blow such differences up. So an example's gradient must be the same to the bit wherever it
stands:

    one by one    each auxiliary in a call of its own, on a copy of its examples
    together      chunks of a constant number of rows, filled up with copies of a row. Before the
                  first step a chunk of equal rows is tried: all must come out equal to the bit, or
                  at least those of places that are equal modulo 16, where rows lie alike in memory;
                  examples then keep to the places of their own number. Else one by one

How a model is computed is decided on made-up inputs of the data's shape, never on the data.

Guarantees: a contribution is a function of θ, of its auxiliary's own examples and of public
numbers, to the bit; nothing that is not trained changes (state.py); what is random inside the model
depends on the auxiliary's key alone (randomness.py). The caller's autocast is switched off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from dpdt.algorithm.auxiliary import Tally
from dpdt.algorithm.batch import Batch, Data, tree_map
from dpdt.algorithm.gradients import Head, Loss, channels_last, looped, vectorised
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.randomness import Globals, kept, seeded
from dpdt.algorithm.readiness import refuse_unready
from dpdt.algorithm.state import Attributes, State, Tainted, replica
from dpdt.mechanism import Blocks, BoundedSum, full_precision

CHUNK = 1 << 21  # entries of a buffer that is worked on at once: small enough for the cache
GROUPS = 64  # partial sums of a step, each computed by one thread
EXAMPLES = 256  # examples that are differentiated at once when vectorised
LANE = 48  # larger micro-batches keep all cores busy, and several at once would cost memory
OUTER = 1 << 22  # numbers in the inputs of a linear head at once
CLASSES = (1, 16)  # places that must come out equal: all, or those of a class
UNFIT = (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError, IndexError)

Contribute = Callable[[slice, Tensor, Tensor], tuple[Tensor, Tally]]


@dataclass(frozen=True, kw_only=True)
class How:
    """What was found out about a model."""

    rows: int = 0  # micro-batches computed together; 0: one by one
    classes: int = 1  # places of a chunk are equal within a class
    keyed: bool = False  # together, with dropout
    lanes: bool = False  # one by one, on several threads
    head: bool = False  # as products


class Executor:
    """Sums the bounded contributions of a mini-batch's auxiliaries.

    Args:
        model: any module without layers that mix examples or keep running statistics.
        loss: (model, micro-batch) → mean loss of the micro-batch.
        seed: public, for what is random inside the model.
        expected: the planned size of a micro-batch.
        head: the loss is the cross-entropy of (x, y), which linear models are fast with.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        layout: Layout,
        *,
        seed: int = 0,
        expected: int = 1,
        head: bool = False,
    ):
        refuse_unready(model)
        self.model, self.loss, self.layout, self.seed = model, loss, layout, seed
        self.expected = expected
        self.state = State(model)
        self.head = Head.of(model, layout) if head else None
        self.found: dict[tuple[Any, ...], How] = {}
        self.checked = False  # by content, which is done after the first pass
        self._images = any(isinstance(m, nn.Conv2d) for m in model.modules())
        self._convolves = any(isinstance(m, _ConvNd) for m in model.modules())
        self._arranged = False
        self._lanes: tuple[int, ThreadPoolExecutor] | None = None

    def total(
        self,
        batch: Batch,
        *,
        columns: Blocks,
        clip: tuple[float, ...],
        contribute: Contribute,
        scale: float | None = None,
        whole: bool = False,
    ) -> tuple[Tensor, Tensor, Tally]:
        """The sum of all contributions, the loss of every auxiliary, and what was seen.

        `contribute` turns gradients into contributions, which lie in `columns`; it may overwrite
        them. `scale` says that it only multiplies by this number. `whole` gives it whole chunks,
        fillers included, if it mixes the entries of a row by matrix products.
        """
        self.arrange(batch)
        with full_precision(), torch.no_grad(), kept():
            self.state.restore()
            theta = self.layout.gather()
            how = self._settle(batch, contribute, scale)
            target = BoundedSum(columns, clip)
            losses = torch.zeros(len(batch.sizes), dtype=torch.float64)
            work = _Pass(self, how, batch, columns, clip, contribute, whole, losses)
            before = None if self.checked else work.first()
            if how.head:
                assert self.head is not None
                assert scale is not None
                tally = work.products(self.head, scale, target)
            else:
                tally = work.together(target) if how.rows else work.apart(target)
            self._refuse_changes(theta, before, work)
        return target.total, losses, tally

    def check(self) -> None:
        """Refuse any change of what is not trained, by content."""
        self.state.check()

    def _refuse_changes(self, theta: Tensor, before: Tensor | None, work: _Pass) -> None:
        self.state.passed()
        if not same_bits(self.layout.gather(), theta):
            now = self.layout.split(self.layout.gather())
            pairs = zip(self.layout.names, now, self.layout.split(theta), strict=True)
            name = next(name for name, a, b in pairs if not same_bits(a, b))
            self.layout.scatter(theta)
            raise Tainted(
                f"parameter {name!r} was changed by the forward pass itself, past the norm bound "
                "and the noise; use a layer that leaves its parameters alone"
            )
        if before is not None:
            again = work.first()
            if again is not None and not same_bits(before, again):
                raise Tainted(
                    "an auxiliary's gradient is another after the others were computed: the model "
                    "or the loss keeps something between calls, which would carry private data "
                    "from one auxiliary to the next"
                )
            self.check()
            self.checked = True

    def _settle(self, batch: Batch, contribute: Contribute, scale: float | None) -> How:
        """Find out, on made-up inputs, how this model can be computed, once for every case."""
        if not sum(batch.sizes):
            return How()
        modes = (m.training for m in self.model.modules())
        case = (batch.alone, batch.fixed, self._size(batch), scale is None, *modes)
        if case not in self.found:
            found = self._as_products(batch) if scale is not None else None
            self.found[case] = found or self._together(batch, contribute) or self._apart(batch)
            self.state.passed()
        return self.found[case]

    def _as_products(self, batch: Batch) -> How | None:
        """Whether it is a linear head with single examples and class numbers for labels."""
        pair = isinstance(batch.data, tuple | list) and len(batch.data) == 2
        if self.head is None or not batch.alone or not pair:
            return None
        x, y = made_up(batch.data, 1)
        if y.dim() != 1 or y.is_floating_point():
            return None
        rows = _rows(len(batch.sizes), max(16, OUTER // self.head.layer.in_features))
        classes: int | None = 1
        if not batch.fixed:
            x = x.flatten(1).to(self.layout.dtype).repeat(rows, 1)
            classes = _equal_places(self.head.differentiate(x, y.repeat(rows))[0])
        return None if classes is None else How(head=True, rows=rows, classes=classes)

    def arrange(self, batch: Batch) -> None:
        """Choose the order of images in memory, before the first pass; changes the flat order."""
        layout = self.layout
        if self._arranged or not sum(batch.sizes):
            return
        self._arranged = True
        if not self._images or layout.device.type != "cpu" or self._size(batch):
            return
        layout.arrange(channels_last=True)
        out = torch.empty(1, layout.size, dtype=layout.dtype, device=layout.device)
        data = made_up(batch.data, max(1, min(self.expected, max(batch.sizes))))
        with full_precision(), torch.no_grad(), kept():
            try:
                looped(self.model, self.loss, layout, channels_last(data), out)
            except UNFIT:  # such as view() of a tensor that lies in another order
                layout.arrange(channels_last=False)
        self.state.passed()

    def _size(self, batch: Batch) -> int:
        """The size of micro-batches if they should be computed many at once, else 0.

        Convolutions are slower that way unless there is one example in each, and so are models too
        large for several rows of gradients to fit the cache.
        """
        sizes = set(batch.sizes) - {0}
        if len(sizes) != 1 or not (batch.alone or batch.fixed) or 4 * self.layout.size > CHUNK:
            return 0
        return 0 if self._convolves and sizes != {1} else sizes.pop()

    def _together(self, batch: Batch, contribute: Contribute) -> How | None:
        """Whether micro-batches can be computed many at once, all places being equal."""
        size, layout = self._size(batch), self.layout
        if not size:
            return None
        rows = _rows(len(batch.sizes), min(CHUNK // layout.size, max(1, EXAMPLES // size)))
        one = made_up(batch.data, size)
        data = tree_map(lambda t: t.repeat(rows, *[1] * (t.dim() - 1)), one)
        keys = torch.zeros(rows, dtype=torch.int64)
        buffers = [torch.empty(rows, layout.size, dtype=layout.dtype) for _ in range(2)]
        for keyed in (None, (self.seed, 0, keys)):
            try:
                vectorised(self.model, self.loss, layout, data, buffers[0], size, keyed)
            except UNFIT:
                self.state.restore()
                continue
            classes: int | None = 1
            if not batch.fixed:
                classes = _equal_places(contribute(slice(0, 0), buffers[0], buffers[1])[0])
            known = classes and How(rows=rows, classes=classes, keyed=keyed is not None)
            return known or None
        return None

    def _apart(self, batch: Batch) -> How:
        """One by one: whether on lanes."""
        layout, size = self.layout, max(1, min(self.expected, max(batch.sizes)))
        if self.expected > LANE or layout.device.type != "cpu":
            return How()
        data = made_up(batch.data, size)
        out = torch.empty(1, layout.size, dtype=layout.dtype, device=layout.device)
        try:
            before, copy = Globals(), replica(self.model)
            data = channels_last(data) if layout.channels_last else data
            looped(copy, self.loss, layout, data, out)
        except Exception:  # a model of the user's own can fail in any way; real data will tell
            return How()
        finally:
            untouched = self.state.changed() is None
            self.state.restore()
        return How(lanes=untouched and Globals() == before)

    def lanes(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """map, on as many lanes as there are threads.

        A lane is a thread that computes on one core, since small micro-batches keep one core busy
        but not several.
        """
        threads = torch.get_num_threads()
        if self._lanes is None or self._lanes[0] != threads:
            self._lanes = (threads, ThreadPoolExecutor(threads, initializer=_use_one_core))
        torch.set_num_threads(1)  # whoever adds up the results must not disturb the lanes
        try:
            yield from self._lanes[1].map(function, items)
        finally:
            torch.set_num_threads(threads)

    def state_dict(self) -> dict[str, Any]:
        return {"channels_last": self.layout.channels_last, "arranged": self._arranged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.layout.arrange(state["channels_last"])
        self._arranged = state["arranged"]


@dataclass
class _Pass:
    """One pass over a mini-batch."""

    owner: Executor
    how: How
    batch: Batch
    columns: Blocks
    clip: tuple[float, ...]
    contribute: Contribute
    whole: bool
    losses: Tensor

    def products(self, head: Head, scale: float, target: BoundedSum) -> Tally:
        """Single examples of a linear head, as outer products."""
        own = BoundedSum(Blocks([head.width]), self.clip)
        tally = Tally()
        for places in self._chunks():
            x, y = self._gather(places)
            inputs = x.flatten(1).to(self.owner.layout.dtype)
            delta, right, losses = head.differentiate(inputs, y)
            real = places >= 0
            norms = own.add_products(delta[real] * scale, right[real])
            self.losses[places[real]] = losses[real]
            tally.add(_seen(norms))
        target.total += head.flat(self.owner.layout, own.total)
        return tally

    def together(self, target: BoundedSum) -> Tally:
        """Many micro-batches of equal size at once."""
        tally = Tally()
        for places in self._chunks():
            gradient, real = self._mapped(places), places >= 0
            rows = slice(int(places[0]), int(places[-1]) + 1)  # means something if they are fixed
            if not self.whole:
                gradient = gradient[real]
            found, seen = self.contribute(rows, gradient, torch.empty_like(gradient))
            tally.add(seen)
            tally.add(_seen(target.add(found[real] if self.whole else found)))
        return tally

    def _mapped(self, places: Tensor) -> Tensor:
        """The gradients of a chunk; an empty micro-batch has gradient 0."""
        owner, layout = self.owner, self.owner.layout
        filled = torch.tensor([self.batch.sizes[max(0, int(i))] > 0 for i in places])
        size = max(self.batch.sizes)
        out = torch.zeros(len(places), layout.size, dtype=layout.dtype)
        part = out if bool(filled.all()) else out[filled]
        data = self._gather(places[filled])
        numbers = torch.from_numpy(self.batch.numbers)[places[filled].clamp_min(0)]
        keyed = (owner.seed, self.batch.step, numbers) if self.how.keyed else None
        seeded(owner.seed, self.batch.step, -1)
        values = vectorised(owner.model, owner.loss, layout, data, part, size, keyed)
        owner.state.restore()
        if part is not out:
            out[filled] = part
        real = (places >= 0) & filled
        self.losses[places[real]] = values.double()[(places >= 0)[filled]]
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
            model, attributes = owner.model, Attributes(owner.model)
            if lanes:
                lane = threading.get_ident()
                if lane not in copies:
                    model = replica(owner.model)
                    copies[lane] = (model, Attributes(model))
                model, attributes = copies[lane]
            return self._group(group, model, attributes, seed=not lanes)

        for part, seen in (owner.lanes if lanes else map)(run, groups):
            target.merge(part)
            tally.add(seen)
        if lanes and (Globals() != before or owner.state.changed()):
            raise Tainted(
                "the model draws random numbers in some steps but not in the first, or the loss "
                "calls another model than the one it is given; auxiliaries that run at the same "
                "time would disturb each other"
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
        """The gradient of one auxiliary; 0 if it is empty."""
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
        self.losses[k] = looped(model, owner.loss, layout, data, out).double()
        attributes.restore()
        return out

    def first(self) -> Tensor | None:
        """The gradient of the first auxiliary, or chunk, that is not empty, on the model itself."""
        filled = [k for k, size in enumerate(self.batch.sizes) if size]
        if not filled or self.how.head:
            return None
        if self.how.rows:
            return self._mapped(next(self._chunks()))
        return self._one(filled[0], self.owner.model, Attributes(self.owner.model), seed=True)

    def _chunks(self) -> Iterator[Tensor]:
        """Auxiliaries that are computed together, by place; −1 fills a chunk up."""
        number, rows, classes = len(self.batch.sizes), self.how.rows, self.how.classes
        if self.batch.fixed:
            yield from torch.split(torch.arange(number), rows)
            return
        share = rows // classes
        mine = self.batch.numbers % classes
        members = [np.flatnonzero(mine == c) for c in range(classes)]
        for first in range(0, max(len(m) for m in members), share):
            places = np.full((share, classes), -1)
            for c, m in enumerate(members):
                part = m[first : first + share]
                places[: len(part), c] = part
            yield torch.from_numpy(places.reshape(-1))

    def _gather(self, places: Tensor) -> Data:
        """The examples of a chunk, in memory of their own; fillers are copies of a member."""
        size = max(self.batch.sizes)
        first = torch.tensor([b[0] for b in self.batch.bounds])
        filler = int(places[places >= 0][0])
        starts = first[torch.where(places >= 0, places, filler)]
        index = (starts.unsqueeze(1) + torch.arange(size)).flatten()
        return tree_map(lambda t: t[index], self.batch.data)


def _seen(norms: Tensor) -> Tally:
    """What the sum saw of contributions: some may not have been finite."""
    return Tally(nonfinite=int(torch.isinf(norms).sum()))


def _rows(number: int, most: int) -> int:
    """Rows of a chunk: as many as allowed, few of them in vain, a multiple of 16 if many."""
    most = max(1, min(most, number))
    rows = -(-number // -(-number // most))
    return -(-rows // 16) * 16 if rows > 8 else rows


def _equal_places(rows: Tensor) -> int | None:
    """In how many classes rows that were made of equal inputs are equal to the bit."""
    for classes in CLASSES:
        if len(rows) % classes == 0:
            parts = torch.unflatten(rows, 0, (-1, classes))
            if same_bits(parts, parts[:1].expand_as(parts)):
                return classes
    return None


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal to the bit, NaN included."""
    kind = torch.int64 if a.dtype == torch.float64 else torch.int32
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def made_up(data: Data, examples: int) -> Data:
    """Inputs of the same shape that say nothing about the data."""
    generator = torch.Generator().manual_seed(0)

    def make(t: Tensor) -> Tensor:
        shape = (examples, *t.shape[1:])
        if t.is_floating_point():
            return torch.randn(shape, generator=generator).to(t)
        return torch.ones(shape, dtype=t.dtype, device=t.device)

    return tree_map(make, data)


def _use_one_core() -> None:
    """Keep this thread's operations on one core, for reproducible and undisturbed lanes."""
    torch.get_num_threads()  # a thread adopts the global number at its first operation: do it now
    torch.set_num_threads(1)

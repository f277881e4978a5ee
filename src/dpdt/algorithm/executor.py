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

import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from dpdt.algorithm.auxiliary import Tally
from dpdt.algorithm.batch import Batch, Data
from dpdt.algorithm.gradients import Head, Loss, channels_last, looped, vectorised
from dpdt.algorithm.layout import Layout
from dpdt.algorithm.passes import Contribute, How, Pass
from dpdt.algorithm.places import (
    equal_places,
    made_up,
    made_up_weights,
    rows_of,
    same_bits,
    tries_of,
)
from dpdt.algorithm.randomness import Globals, kept
from dpdt.algorithm.readiness import refuse_unready
from dpdt.algorithm.state import Attributes, Kept, Tainted, replica
from dpdt.mechanism import Blocks, BoundedSum, full_precision

CHUNK = 1 << 21  # entries of a buffer that is worked on at once: small enough for the cache
EXAMPLES = 256  # examples that are differentiated at once when vectorised
AGAIN = 16  # one step in so many, by a secret coin, computes its first auxiliary twice
LANE = 48  # larger micro-batches keep all cores busy, and several at once would cost memory
OUTER = 1 << 22  # numbers in the inputs of a linear head at once
UNFIT = (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError, IndexError)


class Executor:
    """Sums the bounded contributions of a mini-batch's auxiliaries.

    Args:
        model: any module without layers that mix examples or keep running statistics.
        loss: (model, micro-batch) → mean loss of the micro-batch.
        seed: public, for what is random inside the model.
        auxiliaries: the planned number of micro-batches.
        expected: the planned size of one.
        head: the loss is the cross-entropy of (x, y), which linear models are fast with.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        layout: Layout,
        *,
        auxiliaries: int,
        seed: int = 0,
        expected: int = 1,
        head: bool = False,
    ):
        refuse_unready(model)
        self.model, self.loss, self.layout, self.seed = model, loss, layout, seed
        self.auxiliaries, self.expected = auxiliaries, expected
        self.kept = Kept(model)
        self.base = replica(model)  # of the model as it is now; called once, on made-up inputs
        self.head = Head.of(model, layout) if head else None
        self.found: dict[tuple[Any, ...], How] = {}
        self.checked = False  # by content, which is done after the first pass
        self._start = Attributes(model)
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
            if self.base is self.model:  # it cannot be copied
                self._start.restore()
            theta, outside = self.layout.gather(), Attributes(self.model)
            how = self._settle(batch, contribute, scale)
            target = BoundedSum(columns, clip)
            losses = torch.zeros(len(batch.sizes), dtype=torch.float64)
            work = Pass(self, how, batch, columns, clip, contribute, whole, losses)
            again = not self.checked or not secrets.randbelow(AGAIN)
            before = work.first() if again else None
            if how.head:
                assert self.head is not None
                assert scale is not None
                tally = work.products(self.head, scale, target)
            else:
                tally = work.together(target) if how.rows else work.apart(target)
            self._refuse_changes(theta, outside)
            after = work.first() if before is not None else None
            if before is not None and (after is None or not same_bits(before, after)):
                raise Tainted(
                    "an auxiliary's gradient is another after the others were computed: the model "
                    "or the loss keeps something between calls, which would carry private data "
                    "from one auxiliary to the next"
                )
            if not self.checked and any(batch.sizes):
                self.kept.check()
                self.checked = True
            for parameter in self.model.parameters():
                parameter.grad = None  # a loss may have computed one by itself
        return target.total, losses, tally

    def copy(self) -> nn.Module:
        """A module to call, in the mode that the model is in; it shares all tensors."""
        made = replica(self.base)
        modes = {name: module.training for name, module in self.model.named_modules()}
        for name, module in made.named_modules():
            module.training = modes.get(name, module.training)
        return made

    def check(self) -> None:
        """Refuse any change of what is not trained, by content; set the attributes back."""
        self._start.restore()
        self.kept.check()

    def _refuse_changes(self, theta: Tensor, outside: Attributes) -> None:
        """Refuse a pass that wrote to the model itself."""
        self.kept.passed()
        if found := outside.changed():
            raise Tainted(
                f"{found} changed during a training pass: the loss must call the model that it is "
                "given, not another one"
            )
        outside.refuse_content()
        if not same_bits(self.layout.gather(), theta):
            now = self.layout.split(self.layout.gather())
            pairs = zip(self.layout.names, now, self.layout.split(theta), strict=True)
            name = next(name for name, a, b in pairs if not same_bits(a, b))
            self.layout.scatter(theta)
            raise Tainted(
                f"parameter {name!r} was changed by the forward pass itself, past the norm bound "
                "and the noise; use a layer that leaves its parameters alone"
            )

    def _settle(self, batch: Batch, contribute: Contribute, scale: float | None) -> How:
        """Find out, on made-up inputs, how this model can be computed, once for every case."""
        if not sum(batch.sizes):
            return How()
        modes = (m.training for m in self.model.modules())
        case = (batch.alone, batch.fixed, self._size(batch), scale is None, *modes)
        if case not in self.found:
            self._warm_up(batch)
            found = self._as_products(batch) if scale is not None else None
            self.found[case] = found or self._together(batch, contribute) or self._apart(batch)
            self.kept.passed()
        return self.found[case]

    def _warm_up(self, batch: Batch) -> None:
        """Call a copy once: attributes that a model sets at its first call are then public."""
        made = self.copy()
        out = torch.empty(1, self.layout.size, dtype=self.layout.dtype, device=self.layout.device)
        with suppress(Exception):  # a model of the user's own can fail in any way
            looped(made, self.loss, self.layout, made_up(batch.data, 1), out)
        if replica(made) is not made:  # it has left nothing on itself that cannot be copied
            self.base = made

    def _as_products(self, batch: Batch) -> How | None:
        """Whether it is a linear head with single examples and class numbers for labels."""
        pair = isinstance(batch.data, tuple | list) and len(batch.data) == 2
        if self.head is None or not batch.alone or not pair:
            return None
        head, y = self.head, batch.data[1]
        if y.dim() != 1 or y.is_floating_point():
            return None
        rows = rows_of(self.auxiliaries, max(16, OUTER // head.layer.in_features))

        def gradients(examples: Data, trial: int) -> Tensor:
            (x, labels), (weight,) = examples, made_up_weights([head.layer.weight], trial)
            return head.differentiate(x.flatten(1).to(self.layout.dtype), labels, weight)[0]

        tries = tries_of(head.layer.in_features)
        classes = 1 if batch.fixed else equal_places(gradients, batch.data, 1, rows, tries)
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
                looped(self.copy(), self.loss, layout, channels_last(data), out)
            except UNFIT:  # such as view() of a tensor that lies in another order
                layout.arrange(channels_last=False)
        self.kept.passed()

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
        rows = rows_of(self.auxiliaries, min(CHUNK // layout.size, max(1, EXAMPLES // size)))
        keys = torch.zeros(rows, dtype=torch.int64)
        buffers = [torch.empty(rows, layout.size, dtype=layout.dtype) for _ in range(2)]
        tries = tries_of(layout.size)
        model = self.copy()
        attributes = Attributes(model)
        for keyed in (None, (self.seed, 0, keys)):

            def contributions(examples: Data, trial: int, keyed: Any = keyed) -> Tensor:
                weights = made_up_weights(layout.tensors, trial)
                attributes.restore()
                vectorised(model, self.loss, layout, examples, buffers[0], size, keyed, weights)
                return contribute(slice(0, 0), *buffers)[0]

            try:
                if batch.fixed:
                    one = made_up(batch.data, size * rows)
                    attributes.restore()
                    vectorised(model, self.loss, layout, one, buffers[0], size, keyed)
                    classes: int | None = 1
                else:
                    classes = equal_places(contributions, batch.data, size, rows, tries)
            except UNFIT:
                continue
            if classes is not None:
                return How(rows=rows, classes=classes, keyed=keyed is not None)
            return None
        return None

    def _apart(self, batch: Batch) -> How:
        """One by one: whether on lanes."""
        layout, size = self.layout, max(1, min(self.expected, max(batch.sizes)))
        if self.expected > LANE or layout.device.type != "cpu":
            return How()
        data = made_up(batch.data, size)
        out = torch.empty(1, layout.size, dtype=layout.dtype, device=layout.device)
        outside, before, copy = Attributes(self.model), Globals(), self.copy()
        if copy is self.model:
            return How()
        try:
            data = channels_last(data) if layout.channels_last else data
            looped(copy, self.loss, layout, data, out)
        except Exception:  # a model of the user's own can fail in any way; real data will tell
            return How()
        return How(lanes=outside.changed() is None and Globals() == before)

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


def _use_one_core() -> None:
    """Keep this thread's operations on one core, for reproducible and undisturbed lanes."""
    torch.get_num_threads()  # a thread adopts the global number at its first operation: do it now
    torch.set_num_threads(1)

"""The ways in which a model can be computed, each found out on made-up inputs.

A trial sees random inputs of the data's shape and never the data. So the way that was found says
nothing about anyone. What the ways are, and why places matter, is said in executor.py. `owner` is
the executor that asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dpdt.algorithm import kernels
from dpdt.algorithm.auxiliary import Contribute
from dpdt.algorithm.batch import Batch, Data, leaves
from dpdt.algorithm.gradients import channels_last, looped, vectorised
from dpdt.algorithm.lanes import one_core
from dpdt.algorithm.places import (
    ROWS,
    equal_places,
    even,
    made_up,
    made_up_weights,
    rows_of,
    tries_of,
    unmoved,
)
from dpdt.algorithm.precision import Lowered, closeness
from dpdt.algorithm.randomness import Globals
from dpdt.algorithm.scaled import Scaled
from dpdt.algorithm.sums import block_numbers
from dpdt.algorithm.taps import Found, Taps
from dpdt.mechanism import Columns

if TYPE_CHECKING:
    from dpdt.algorithm.executor import Executor

CHUNK = 1 << 21  # entries of a buffer that is worked on at once: small enough for the cache
EXAMPLES = 2048  # examples that are differentiated at once when vectorised
PIXELS = 1 << 11  # of a micro-batch, up to which convolutions are faster together
LANE = 48  # larger micro-batches keep all cores busy, and several at once would cost memory
HEAVY = 1 << 15  # numbers of a micro-batch from which on fillers take longer than calls
HELD = 1 << 26  # numbers that taps hold of a chunk
UNFIT = (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError, IndexError)


@dataclass(frozen=True, kw_only=True)
class How:
    """The way that was found for a model."""

    rows: int = 0  # micro-batches computed together; 0: one by one
    classes: int = 1  # places of a chunk are equal within a class
    keyed: bool = False  # together, with dropout
    lanes: bool = False  # one by one, on several threads
    taps: Taps | None = None  # together, without their gradients
    blocks: tuple[int, ...] = ()  # of each parameter, for taps

    def words(self) -> str:
        """The way, for the person who trains."""
        if self.taps is not None:
            return f"{self.rows} micro-batches at once, {self.taps.words()}"
        if self.rows:
            return f"{self.rows} micro-batches at once, their gradients written out"
        return f"one micro-batch after the other{', on lanes' if self.lanes else ''}"


def cores_for(batch: Batch) -> AbstractContextManager[None]:
    """Where examples change places, one core: several would cut memory anywhere."""
    return nullcontext() if batch.fixed else one_core()


def call_once(owner: Executor, model: nn.Module, batch: Batch) -> None:
    """Call a model: attributes that it sets at its first call are then public."""
    layout = owner.layout
    out = torch.empty(1, layout.size, dtype=layout.dtype, device=layout.device)
    with suppress(Exception):  # a model of the user's own can fail in any way
        looped(model, owner.loss, layout, made_up(batch.data, 1), out)


def takes_channels_last(owner: Executor, batch: Batch) -> bool:
    """Whether no kernel of the model fails on channels last. A model that has them is refused.

    It is asked of the model as it lies, before it is computed in that order.
    """
    model, data = owner.copy(), made_up(batch.data, owner.expected)
    value = None
    with suppress(Exception), torch.enable_grad():  # a model of the user's own can fail in any way
        value = owner.loss(model, data)
    if value is None:
        return False
    kernels.refuse_channels_last(value, model)
    return kernels.takes_channels_last(value)


def runs_channels_last(owner: Executor, batch: Batch) -> bool:
    """Whether the model can be computed in the order that the layout now has."""
    layout = owner.layout
    out = torch.empty(1, layout.size, dtype=layout.dtype, device=layout.device)
    data = made_up(batch.data, owner.expected)
    try:
        looped(owner.copy(), owner.loss, layout, channels_last(data), out)
    except UNFIT:  # such as view() of a tensor that lies in another order
        return False
    return True


def size_of(owner: Executor, batch: Batch) -> int:
    """The size of micro-batches if they should be computed many at once, otherwise 0.

    Convolutions are slower when computed together, unless a micro-batch is one example or has few
    pixels. So are models too large for several rows of gradients to fit the cache.
    """
    size = equal_size(batch)
    if not size or 4 * owner.layout.size > CHUNK:
        return 0
    alone = size == 1 or not owner.convolves
    return size if alone or size * _widest(batch.data) <= PIXELS else 0


def equal_size(batch: Batch) -> int:
    """The size of all micro-batches that are not empty, if it is the same by construction."""
    sizes = set(batch.whole or batch.sizes) - {0}
    return sizes.pop() if len(sizes) == 1 and (batch.alone or batch.fixed) else 0


def _widest(data: Data) -> int:
    """The most numbers that one example has in any tensor of a batch."""
    return max(tensor[:1].numel() for tensor in leaves(data))


def tapped(owner: Executor, batch: Batch, scaled: Scaled, columns: Columns) -> How | None:
    """Many micro-batches at once, without their gradients, if the model allows."""
    size, layout = equal_size(batch), owner.layout
    blocks = block_numbers(layout, columns)
    blind = isinstance(owner.loss, Lowered) and not batch.fixed
    if not size or blocks is None or blind or layout.place != layout.device:
        return None
    model, before = owner.copy(), Globals()
    held = owner.snapshot(model)
    found = _probed(owner, batch, size, scaled, model)
    if found is None or Globals() != before:  # what it calls may depend on what it draws
        return None
    taps, keyed = found
    most = min(EXAMPLES // size, HELD // taps.held)
    if not most or (not batch.fixed and most < ROWS):
        return None
    rows = even(owner.auxiliaries, most) if batch.fixed else rows_of(owner.auxiliaries, most)
    if taps.held > HEAVY and 2 * rows > 3 * even(owner.auxiliaries, most):
        return None
    keys = (owner.seed, 0, torch.zeros(rows, dtype=torch.int64, device=layout.place))

    def run(examples: Data, trial: int) -> Found:
        weights = made_up_weights(layout.tensors, trial)
        held.put_back()
        key = keys if keyed else None
        with cores_for(batch):
            return taps.run(model, owner.loss, examples, rows, key, weights)

    def every(examples: Data, trial: int) -> Iterator[Tensor]:
        return taps.every(run(examples, trial), scaled)

    classes: int | None = 1
    if not batch.fixed:
        classes = equal_places(every, batch.data, size, rows, tries_of(layout.size))
    turned = None if batch.fixed else classes
    if classes is None or not unmoved(every, batch.data, size, rows, turned):
        return None
    return How(taps=taps, blocks=tuple(blocks), rows=rows, classes=classes, keyed=keyed)


def _probed(
    owner: Executor, batch: Batch, size: int, scaled: Scaled, model: nn.Module
) -> tuple[Taps, bool] | None:
    """Taps that fit the model, and whether it has dropout; None if there are none."""
    keys = torch.zeros(2, dtype=torch.int64, device=owner.layout.place)
    given: Any = {"weighted": scaled.weights is not None}
    for given["channels_last"], keyed in product(
        (True, False) if _side_by_side(owner, batch) else (False,), (None, (owner.seed, 0, keys))
    ):
        taps = Taps(model, owner.layout, size, **given)
        with suppress(*UNFIT):
            fit = taps.probe(model, owner.loss, batch.data, keyed)
            return (taps, keyed is not None) if fit else None
    return None


def _side_by_side(owner: Executor, batch: Batch) -> bool:
    """Whether images should lie with the channels of a pixel side by side.

    Convolutions of few channels and pooling are up to several times faster then. Norms of several
    groups are slower, by more than that.
    """
    modules = list(owner.model.modules())
    several = any(isinstance(m, nn.GroupNorm) and m.num_groups > 1 for m in modules)
    images = owner.images and owner.layout.place.type == "cpu"
    return images and not several and takes_channels_last(owner, batch)


def together(owner: Executor, batch: Batch, contribute: Contribute) -> How | None:
    """Many micro-batches at once, if the model allows and places are equal."""
    size, layout = size_of(owner, batch), owner.layout
    if not size or (isinstance(owner.loss, Lowered) and not batch.fixed):
        return None
    most = min(CHUNK // layout.size, max(1, EXAMPLES // size))
    rows = even(owner.auxiliaries, most) if batch.fixed else rows_of(owner.auxiliaries, most)
    if layout.size > HEAVY and 2 * rows > 3 * owner.auxiliaries:
        return None
    keys = torch.zeros(rows, dtype=torch.int64, device=layout.place)
    buffer = torch.empty(rows, layout.size, dtype=layout.dtype, device=layout.device)
    buffers = [buffer, torch.empty_like(buffer)]
    model = owner.copy()
    held = owner.snapshot(model)
    for keyed in (None, (owner.seed, 0, keys)):

        def gradients(examples: Data, trial: int, keyed: Any = keyed) -> list[Tensor]:
            weights = made_up_weights(layout.tensors, trial)
            held.put_back()
            data = (model, owner.loss, layout, examples, buffers[0], size, keyed, weights)
            with cores_for(batch):
                return [vectorised(*data), buffers[0]]

        def contributions(examples: Data, trial: int, mapped: Any = gradients) -> list[Tensor]:
            mapped(examples, trial)
            return [contribute(slice(0, 0), *buffers)[0]]

        classes: int | None = 1
        try:
            if not batch.fixed:
                tries = tries_of(layout.size)
                classes = equal_places(contributions, batch.data, size, rows, tries)
            turned = None if batch.fixed else classes
            if classes is None or not unmoved(gradients, batch.data, size, rows, turned):
                return None
        except UNFIT:
            continue
        return How(rows=rows, classes=classes, keyed=keyed is not None)
    return None


def as_alone(owner: Executor, batch: Batch) -> bool:
    """Whether mapping gives what a micro-batch gives by itself, of what is not random.

    It may not: `vmap` is given weights of its own, which a model can have kept in a place where
    they are not found.
    """
    layout, size = owner.layout, equal_size(batch)
    data = made_up(batch.data, size)  # attended to throughout: a model may cut what is not
    rows = torch.empty(2, 1, layout.size, dtype=layout.dtype, device=layout.device)
    try:
        looped(owner.copy(), owner.loss, layout, data, rows[0])
        vectorised(owner.copy(), owner.loss, layout, data, rows[1], size)
    except UNFIT:
        return True
    mapped, plain = rows[1].double(), rows[0].double()
    if not bool(torch.isfinite(rows).all()):
        return True
    return float((mapped - plain).norm()) <= closeness(owner.loss) * float(plain.norm())


def apart(owner: Executor, batch: Batch) -> How:
    """One micro-batch after the other, on lanes if the model allows."""
    layout, size = owner.layout, owner.expected
    if owner.expected > LANE or layout.place.type != "cpu":
        return How()
    data = made_up(batch.data, size)
    out = torch.empty(1, layout.size, dtype=layout.dtype, device=layout.device)
    before, copy = Globals(), owner.copy()
    if copy is owner.model or owner.shared is None or owner.shared.containers():
        return How()
    try:
        data = channels_last(data) if layout.channels_last else data
        looped(copy, owner.loss, layout, data, out)
    except Exception:  # a model of the user's own can fail in any way; real data will tell
        return How()
    return How(lanes=owner.outside.difference() is None and Globals() == before)

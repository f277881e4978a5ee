"""The ways in which a model can be computed, each found out on made-up inputs.

A trial sees random inputs of the data's shape and never the data. So the way that was found says
nothing about anyone. What the ways are, and why places matter, is said in executor.py. `owner` is
the executor that asks.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dpdt.algorithm.auxiliary import Contribute
from dpdt.algorithm.batch import Batch, Data, leaves
from dpdt.algorithm.gradients import channels_last, looped, vectorised
from dpdt.algorithm.places import equal_places, made_up, made_up_weights, rows_of, tries_of
from dpdt.algorithm.randomness import Globals
from dpdt.algorithm.state import Attributes

if TYPE_CHECKING:
    from dpdt.algorithm.executor import Executor

CHUNK = 1 << 21  # entries of a buffer that is worked on at once: small enough for the cache
EXAMPLES = 256  # examples that are differentiated at once when vectorised
PIXELS = 1 << 11  # of a micro-batch, up to which convolutions are faster together
LANE = 48  # larger micro-batches keep all cores busy, and several at once would cost memory
OUTER = 1 << 22  # numbers in the inputs of a linear head at once
UNFIT = (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError, IndexError)


@dataclass(frozen=True, kw_only=True)
class How:
    """The way that was found for a model."""

    rows: int = 0  # micro-batches computed together; 0: one by one
    classes: int = 1  # places of a chunk are equal within a class
    keyed: bool = False  # together, with dropout
    lanes: bool = False  # one by one, on several threads
    head: bool = False  # as products


def call_once(owner: Executor, model: nn.Module, batch: Batch) -> None:
    """Call a model: attributes that it sets at its first call are then public."""
    layout = owner.layout
    out = torch.empty(1, layout.size, dtype=layout.dtype, device=layout.device)
    with suppress(Exception):  # a model of the user's own can fail in any way
        looped(model, owner.loss, layout, made_up(batch.data, 1), out)


def takes_channels_last(owner: Executor, batch: Batch) -> bool:
    """Whether the model can be computed in the order that the layout now has."""
    layout = owner.layout
    out = torch.empty(1, layout.size, dtype=layout.dtype, device=layout.device)
    data = made_up(batch.data, max(1, min(owner.expected, max(batch.sizes))))
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
    sizes = set(batch.whole or batch.sizes) - {0}
    if len(sizes) != 1 or not (batch.alone or batch.fixed) or 4 * owner.layout.size > CHUNK:
        return 0
    size = sizes.pop()
    alone = size == 1 or not owner.convolves
    return size if alone or size * _widest(batch.data) <= PIXELS else 0


def _widest(data: Data) -> int:
    """The most numbers that one example has in any tensor of a batch."""
    return max(tensor[:1].numel() for tensor in leaves(data))


def as_products(owner: Executor, batch: Batch) -> How | None:
    """As outer products, if the model is a linear head on single examples with class labels."""
    pair = isinstance(batch.data, tuple | list) and len(batch.data) == 2
    if owner.head is None or not batch.alone or not pair:
        return None
    head, y = owner.head, batch.data[1]
    if y.dim() != 1 or y.is_floating_point():
        return None
    rows = rows_of(owner.auxiliaries, max(16, OUTER // head.layer.in_features))

    def gradients(examples: Data, trial: int) -> Tensor:
        (x, labels), (weight,) = examples, made_up_weights([head.layer.weight], trial)
        return head.differentiate(x.flatten(1).to(owner.layout.dtype), labels, weight)[0]

    tries = tries_of(head.layer.in_features)
    classes = 1 if batch.fixed else equal_places(gradients, batch.data, 1, rows, tries)
    return None if classes is None else How(head=True, rows=rows, classes=classes)


def together(owner: Executor, batch: Batch, contribute: Contribute) -> How | None:
    """Many micro-batches at once, if the model allows and places are equal."""
    size, layout = size_of(owner, batch), owner.layout
    if not size:
        return None
    rows = rows_of(owner.auxiliaries, min(CHUNK // layout.size, max(1, EXAMPLES // size)))
    keys = torch.zeros(rows, dtype=torch.int64)
    buffers = [torch.empty(rows, layout.size, dtype=layout.dtype) for _ in range(2)]
    tries = tries_of(layout.size)
    model = owner.copy()
    attributes = Attributes(model)
    for keyed in (None, (owner.seed, 0, keys)):

        def contributions(examples: Data, trial: int, keyed: Any = keyed) -> Tensor:
            weights = made_up_weights(layout.tensors, trial)
            attributes.restore()
            vectorised(model, owner.loss, layout, examples, buffers[0], size, keyed, weights)
            return contribute(slice(0, 0), *buffers)[0]

        try:
            if batch.fixed:
                one = made_up(batch.data, size * rows)
                attributes.restore()
                vectorised(model, owner.loss, layout, one, buffers[0], size, keyed)
                classes: int | None = 1
            else:
                classes = equal_places(contributions, batch.data, size, rows, tries)
        except UNFIT:
            continue
        if classes is not None:
            return How(rows=rows, classes=classes, keyed=keyed is not None)
        return None
    return None


def apart(owner: Executor, batch: Batch) -> How:
    """One micro-batch after the other, on lanes if the model allows."""
    layout, size = owner.layout, max(1, min(owner.expected, max(batch.sizes)))
    if owner.expected > LANE or layout.device.type != "cpu":
        return How()
    data = made_up(batch.data, size)
    out = torch.empty(1, layout.size, dtype=layout.dtype, device=layout.device)
    outside, before, copy = Attributes(owner.model), Globals(), owner.copy()
    if copy is owner.model:
        return How()
    try:
        data = channels_last(data) if layout.channels_last else data
        looped(copy, owner.loss, layout, data, out)
    except Exception:  # a model of the user's own can fail in any way; real data will tell
        return How()
    return How(lanes=outside.changed() is None and Globals() == before)

"""Whether an example's numbers are the same to the bit wherever it stands among others.

A matrix product may round a row by its place and by the number of rows. But what is computed for
one example must not depend on who else is there. So rows are computed in chunks of a constant
number, and the places of a chunk are compared, on made-up inputs, before they are trusted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpdt.algorithm.batch import Data, tree_map

ROWS = 64  # a multiple of the blocks in which numbers are worked on
WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # what numbers of so many bytes hold
TOGETHER = 1 << 22  # bytes that may wait until they are hashed
CLASSES = (1, 16)  # places fall into one class, or into 16 by their number modulo 16


def even(number: int, most: int) -> int:
    """The rows of a chunk, if `number` are taken in chunks of one length, at most `most`."""
    most = max(1, min(most, number))
    return -(-number // -(-number // most))


def rows_of(number: int, most: int) -> int:
    """The same for rows that may be filled up, rounded up to 64, 128, …

    Functions of single numbers (sigmoid, exp) are computed in blocks of 16 to 64 numbers. What is
    left over at the end of the memory may be rounded otherwise, if rarely, so that trials would
    miss it. With whole blocks of rows nothing is left over, on one core.
    """
    return -(-even(number, most) // ROWS) * ROWS


def tries_of(numbers: int) -> int:
    """On how many inputs to compare places. Where many numbers are summed, few will do."""
    return 16 if numbers < 2000 else 4


def equal_places(
    compute: Callable[[Data, int], Iterable[Tensor]], like: Data, size: int, rows: int, tries: int
) -> int | None:
    """Into how many classes places fall, so that those of one class are equal to the bit.

    Each trial computes equal rows. `compute` gets these inputs and the number of the trial, and
    gives tensors with a row for each micro-batch. One trial is not enough: with few numbers,
    different orders of summation often agree. A trial whose result is not finite, or 0, shows
    nothing and does not count. The result is None if places differ even within 16 classes, or if
    too few trials count.
    """
    left, counted = [classes for classes in CLASSES if rows % classes == 0], 0
    for trial in range(4 * tries):
        one = made_up(like, size, trial)
        equal = tree_map(lambda t: t.repeat(rows, *[1] * (t.dim() - 1)), one)
        found = Digests.of(compute(equal, trial))
        if not found.finite or not found.any:
            continue
        left = [
            classes
            for classes in left
            if all(row == found.rows[i % classes] for i, row in enumerate(found.rows))
        ]
        counted += 1
        if counted == tries or not left:
            break
    return left[0] if left and counted == tries else None


def unmoved(
    compute: Callable[[Data, int], Iterable[Tensor]],
    like: Data,
    size: int,
    rows: int,
    classes: int | None,
) -> bool:
    """Whether a row keeps its bits, whatever stands in the others and wherever it stands.

    `compute` gives tensors with a row for each micro-batch. Half of the rows are exchanged for
    other made-up inputs, then the other half. Where rows change places, they are also turned
    round within their classes. False if no trial shows anything.
    """
    half = torch.rand(rows, generator=torch.Generator().manual_seed(rows)).argsort() < rows // 2
    shifts = [s * classes % rows for s in (1, 5, -1)] if classes else []
    for trial in (3, 4, 5):
        given = made_up(like, size * rows, trial)
        before = Digests.of(compute(given, trial))
        if not before.finite:
            continue
        for turn, out in enumerate((half, ~half)):
            other = made_up(like, size * rows, trial + 4 + turn)
            mixed = tree_map(_exchanged(out.repeat_interleave(size)), given, other)
            after = Digests.of(compute(mixed, trial)).rows
            if any(after[i] != before.rows[i] for i in (~out).nonzero().flatten().tolist()):
                return False
        for shift in shifts:
            turned = tree_map(lambda t, by=shift * size: t.roll(by, 0), given)
            after = Digests.of(compute(turned, trial)).rows
            if any(after[(i + shift) % rows] != row for i, row in enumerate(before.rows)):
                return False
        return True
    return False


def _exchanged(out: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Takes a batch and another, and exchanges some rows."""

    def exchange(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(out.to(a.device).reshape(-1, *[1] * (a.dim() - 1)), b, a)

    return exchange


@dataclass(frozen=True)
class Digests:
    """What tensors with a row for each micro-batch hold: a hash of each row.

    Tensors are taken one after the other. So they need not all be in memory, and none is kept but
    small ones, whose rows are hashed together.
    """

    rows: tuple[bytes, ...]
    finite: bool
    any: bool  # whether any number is not 0

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> Digests:
        hashes: list[Any] = []
        waiting: list[np.ndarray] = []
        finite, some = True, False
        for t in tensors:
            finite = finite and bool(torch.isfinite(t).all())
            some = some or bool(t.any())
            hashes = hashes or [hashlib.sha256() for _ in range(len(t))]
            if not t.numel():  # a parameter of no size
                continue
            bits = t.detach().cpu().contiguous().view(len(t), -1).view(torch.uint8).numpy()
            if bits.size + sum(other.size for other in waiting) > TOGETHER:
                _hash(hashes, waiting)
            waiting.append(bits)
            if bits.size > TOGETHER:
                _hash(hashes, waiting)
        _hash(hashes, waiting)
        return cls(tuple(known.digest() for known in hashes), finite, some)


def _hash(hashes: Sequence[Any], waiting: list[np.ndarray]) -> None:
    """Put the rows of all that waits into the hashes, one call for each."""
    if waiting:
        joined = waiting[0] if len(waiting) == 1 else np.concatenate(waiting, axis=1)
        for known, row in zip(hashes, joined, strict=True):
            known.update(row.data)
        waiting.clear()


def as_bytes(t: Tensor) -> Tensor:
    """What a tensor holds, byte by byte."""
    flat = t.detach().cpu().contiguous().flatten()
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)  # a single number may have stride 0


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal to the bit, NaN included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.device == b.device and a.device.type != "cpu":  # where they are
        whole = WHOLE.get(a.element_size(), torch.uint8)
        x, y = (t.detach().contiguous().flatten().view(whole) for t in (a, b))
        return bool((x == y).all())
    # numpy compares several times as fast as torch
    return np.array_equal(_words(a), _words(b))


def _words(t: Tensor) -> np.ndarray:
    """What a tensor holds, eight bytes at a time where there are whole ones."""
    found: np.ndarray = as_bytes(t).numpy()
    return found if found.size % 8 else found.view(np.int64)


def made_up(data: Data, examples: int, seed: int = 0) -> Data:
    """Inputs of the same shape that say nothing about the data."""
    generator = torch.Generator().manual_seed(seed)

    def make(t: Tensor) -> Tensor:
        shape = (examples, *t.shape[1:])
        if t.is_floating_point():
            positive = torch.rand(shape, generator=generator)
            normal = torch.randn(shape, generator=generator)
            return (normal, positive, 30.0 * normal)[seed % 3].to(t)
        if seed == 0:  # class 1, token 1, attended to
            return torch.ones(shape, dtype=t.dtype, device=t.device)
        return torch.randint(0, 2, shape, generator=generator).to(t)

    return tree_map(make, data)


def made_up_weights(tensors: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Weights that are not 0, as those of a model often are at the start."""
    generator = torch.Generator().manual_seed(seed)
    return [0.3 * torch.randn(t.shape, generator=generator).to(t) for t in tensors]

"""Examples by their numbers: how many there are, some of them, a hash of all.

Data is tensors with examples along the first dimension, a tuple or mapping of such tensors, or a
torch Dataset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from dpdt.algorithm.batch import Data, leaves, tree_map
from dpdt.algorithm.places import as_bytes
from dpdt.algorithm.randomness import kept, seeded
from dpdt.data.each import Each
from dpdt.distributed.world import World
from dpdt.errors import InputError

READ = 256  # examples of a Dataset that are read at once
SHOWN = 4  # lengths in a message
LOOKED_AT = 64  # examples of a data set that it is recognised by


def count(data: Any) -> int:
    """The number of examples."""
    if isinstance(data, Dataset):
        return len(data)  # type: ignore[arg-type]
    refuse_others(data)
    lengths = [len(t) for t in leaves(data)]
    if len(set(lengths)) > 1:
        some = ", ".join(map(str, lengths[:SHOWN]))
        if len(lengths) > SHOWN:
            some += f", … ({len(lengths)} in all); make an array of a list of lists, numpy.array(…)"
        raise InputError(f"data: tensors of different lengths, {some}")
    return lengths[0]


def refuse_others(data: Any) -> None:
    """Refuse what holds anything but tensors.

    It could not be cut into examples, and every example would see all of it.
    """
    if isinstance(data, Mapping | tuple | list):
        for value in data.values() if isinstance(data, Mapping) else data:
            refuse_others(value)
        if len(data):
            return
    if not isinstance(data, Tensor) or data.dim() == 0:
        raise InputError(
            "data: must be tensors or arrays with examples along the first dimension, a tuple or "
            "mapping of them, a frame with its target, a Dataset or a DataLoader, found "
            f"{type(data).__name__}"
        )


def take(data: Any, indices: Tensor) -> Data:
    """The examples at `indices`, as one batch."""
    if isinstance(data, Dataset):
        return read(data, indices, 0, 0)
    if len(indices) and int(indices[-1] - indices[0]) == len(indices) - 1 and _ascend(indices):
        return tree_map(lambda t: t[int(indices[0]) : int(indices[-1]) + 1], data)  # a view
    return tree_map(lambda t: t[indices], data)


def read(data: Any, indices: Tensor, seed: int, step: int, keys: np.ndarray | None = None) -> Data:
    """The examples of a Dataset, each read by itself. Their keys are their numbers unless given.

    Guarantees: what a Dataset draws at random for an example is a function of the public seed, the
    step and the example's own key. The Dataset is never asked for several examples at once.
    """
    if not len(indices):
        return None
    rows = []
    with kept():
        numbers = indices.tolist()
        own = numbers if keys is None else keys.tolist()
        if isinstance(data, Each):
            rows = data.read(numbers, own, seed, step)
        else:
            for i, key in zip(numbers, own, strict=True):
                seeded(seed, step, key)
                rows.append(data[i])
    batch = default_collate(rows)
    refuse_others(batch)
    return tree_map(lambda t: t, batch)  # in tuples, whatever torch makes of them


def fingerprint(data: Any, world: World | None = None) -> str:
    """A hash of all examples, with their types and shapes. A Dataset is read from end to end.

    Ranks that hold the same data (`world`) read a share of it each.
    """
    world = world or World()
    chunks = torch.split(torch.arange(count(data)), READ)
    mine = world.share_of(len(chunks))
    own = [_hash(take(data, chosen)) for chosen in chunks[mine.start : mine.stop]]
    hashes = [one for part in world.gather(own) for one in part]
    return hashlib.sha256(" ".join((str(count(data)), *hashes)).encode()).hexdigest()


def sample(data: Any) -> str:
    """A hash of some examples, evenly spaced. Data that differ in few examples may have the same.

    So have the same numbers in another precision. Inputs may also be a list of texts, beside their
    labels.
    """
    texts = data[0] if isinstance(data, tuple) and isinstance(data[0], list) else None
    number = count(data if texts is None else data[1])
    chosen = torch.arange(min(LOOKED_AT, number)) * number // min(LOOKED_AT, number)
    digest = hashlib.sha256(str(number).encode())
    for text in [] if texts is None else [texts[i] for i in chosen.tolist()]:
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    for some in leaves(take(data if texts is None else data[1], chosen)):
        t = some.cpu()  # which has float64
        wide = t.double() if t.is_floating_point() else t if t.is_complex() else t.long()
        digest.update(as_bytes(wide).numpy().data)
    return digest.hexdigest()


def _hash(examples: Data) -> str:
    digest = hashlib.sha256()
    for t in leaves(examples):
        digest.update(f"{t.dtype}{tuple(t.shape)}".encode())
        digest.update(as_bytes(t).numpy().data)
    return digest.hexdigest()


def _ascend(indices: Tensor) -> bool:
    return bool((indices[1:] > indices[:-1]).all())

"""Mini-batches in the order and grouping that the partition decides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from dpdt.algorithm.batch import Batch, Data, tree_map
from dpdt.errors import InputError
from dpdt.methods.augment import Augment
from dpdt.partition import Sampler

READ = 256  # examples of a Dataset that are read at once


def count(data: Any) -> int:
    """The number of examples in tensors, a tuple or mapping of them, or a Dataset."""
    if isinstance(data, Dataset):
        return len(data)  # type: ignore[arg-type]
    lengths: list[int] = []
    tree_map(lambda t: lengths.append(len(t)), data)
    if not lengths:
        raise InputError(
            "data: must be a tensor, a tuple or mapping of tensors, or a torch Dataset, "
            f"found {type(data).__name__}"
        )
    if len(set(lengths)) > 1:
        raise InputError(f"data: tensors of different lengths, {', '.join(map(str, lengths))}")
    return lengths[0]


def take(data: Any, indices: Tensor) -> Data:
    """The examples at `indices`, as one batch."""
    if isinstance(data, Dataset):
        if not len(indices):
            return None
        several = getattr(data, "__getitems__", None)  # what torch's own loader prefers
        chosen = [int(i) for i in indices]
        return default_collate(several(chosen) if several else [data[i] for i in chosen])
    if len(indices) and int(indices[-1] - indices[0]) == len(indices) - 1 and _ascend(indices):
        return tree_map(lambda t: t[int(indices[0]) : int(indices[-1]) + 1], data)  # a view
    return tree_map(lambda t: t[indices], data)


def fingerprint(data: Any) -> str:
    """A hash of all examples, of their types and shapes. A Dataset is read from end to end."""
    digest = hashlib.sha256(str(count(data)).encode())

    def feed(t: Tensor) -> None:
        digest.update(f"{t.dtype}{tuple(t.shape)}".encode())
        digest.update(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)

    if isinstance(data, Dataset):
        for chosen in torch.split(torch.arange(count(data)), READ):
            tree_map(feed, take(data, chosen))
    else:
        tree_map(feed, data)
    return digest.hexdigest()


def _ascend(indices: Tensor) -> bool:
    return bool((indices[1:] > indices[:-1]).all())


class Loader:
    """Yields the mini-batches of a whole run, from wherever it stands to the last epoch.

    Guarantees: examples, grouping and order are the partition's. The step takes the very batches
    that were handed out, each once, in order, and no other (`refuse_foreign`).

    Args:
        alone: every auxiliary holds one example by construction; its number is then its key.
        fixed: sizes and places are the same whoever takes part (see Batch).
    """

    def __init__(
        self,
        data: Any,
        sampler: Sampler,
        *,
        batches: int,
        steps: int,
        device: torch.device,
        augment: Augment | None = None,
        alone: bool,
        fixed: bool,
    ):
        self.data, self.sampler, self.batches, self.steps = data, sampler, batches, steps
        self.device, self.augment = device, augment
        self.alone, self.fixed = alone, fixed
        self.position = 0
        self._handed: dict[int, tuple[Batch, list[tuple[Tensor, int]]]] = {}  # not yet used

    def __len__(self) -> int:
        return self.steps - self.position

    def __iter__(self) -> Iterator[Batch]:
        while self.position < self.steps:
            step = self.position
            self.position += 1
            indices, sizes = self.sampler.batch(step)
            data = take(self.data, torch.from_numpy(indices))
            if not isinstance(data, Mapping | tuple | list | Tensor) and len(indices):
                raise InputError(f"data: examples of type {type(data).__name__} are not tensors")
            if self.augment is not None and len(indices):
                data = self.augment(data, indices, step)
            batch = Batch(
                step=step,
                epoch=step // self.batches,
                data=tree_map(lambda t: t.to(self.device), data),
                sizes=sizes,
                keys=tuple(map(int, indices)) if self.alone else None,
                fixed=self.fixed,
            )
            self._handed[step] = (batch, _versions(batch.data))
            yield batch

    def move(self, position: int) -> None:
        """Go on from another place; batches that were handed out are no longer taken."""
        self.position = position
        self._handed.clear()

    def refuse_foreign(self, batch: Any, step: int) -> None:
        """Refuse any batch but the one of that step, handed out here, and one that was changed."""
        handed, versions = self._handed.get(step, (None, []))
        if handed is None or batch is not handed:
            raise InputError(
                "batch: each batch of the loader that prepare() returned must be used once, in "
                "order; the guarantee rests on it"
            )
        found = _versions(batch.data)
        same = len(found) == len(versions) and all(
            a is b and i == j for (a, i), (b, j) in zip(found, versions, strict=True)
        )
        if not same:
            raise InputError(
                "batch: was changed after the loader handed it out; transform the data before "
                "prepare(), each example by itself"
            )
        del self._handed[step]


def _versions(data: Data) -> list[tuple[Tensor, int]]:
    """All tensors of a batch, and how often each was changed in place."""
    found: list[tuple[Tensor, int]] = []
    tree_map(lambda t: found.append((t, t._version)), data)
    return found

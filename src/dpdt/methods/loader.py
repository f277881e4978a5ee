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
    """A hash of all examples; of a Dataset, which may be read from files, of some."""
    digest = hashlib.sha256(str(count(data)).encode())
    if isinstance(data, Dataset):
        data = take(data, torch.linspace(0, count(data) - 1, min(10, count(data))).long())
    tree_map(lambda t: digest.update(t.contiguous().numpy().tobytes()), data)
    return digest.hexdigest()


def _ascend(indices: Tensor) -> bool:
    return bool((indices[1:] > indices[:-1]).all())


class Loader:
    """Yields the mini-batches of a whole run, from wherever it stands to the last epoch.

    Guarantees: examples, grouping and order are the partition's; a batch carries its number, and
    the step refuses any other.
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
    ):
        self.data, self.sampler, self.batches, self.steps = data, sampler, batches, steps
        self.device, self.augment = device, augment
        self.position = 0

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
            yield Batch(
                step=step,
                epoch=step // self.batches,
                data=tree_map(lambda t: t.to(self.device), data),
                sizes=sizes,
            )

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        self.sampler.load_state_dict(state["sampler"])

"""A mini-batch that knows which of its examples belong to which auxiliary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

Data = Any  # a tensor, or a tuple, list or mapping of them, examples along the first dimension


def tree_map(function: Callable[..., Any], data: Data, *others: Data) -> Data:
    """Apply a function to every tensor of a batch. What is no tensor stays as it is.

    The result has the structure of the batch, with tuples for lists. Further batches of the same
    structure give the function further arguments.
    """
    if isinstance(data, Tensor):
        return function(data, *others)
    if isinstance(data, Mapping):
        return {
            key: tree_map(function, value, *(other[key] for other in others))
            for key, value in data.items()
        }
    if isinstance(data, tuple | list):
        return tuple(tree_map(function, *values) for values in zip(data, *others, strict=True))
    return data


def on_device(data: Data, device: torch.device) -> Data:
    """The batch on a device; tensors that are there already are not copied."""
    return tree_map(lambda t: t.to(device), data)


def leaves(data: Data) -> list[Tensor]:
    """All tensors of a batch."""
    found: list[Tensor] = []
    tree_map(found.append, data)
    return found


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Mini-batch number `step` of a run: auxiliary after auxiliary, `sizes[k]` examples each.

    A key decides what is random inside the model for an auxiliary: it is the number of its example
    where it holds one by construction, otherwise its own number. `fixed` says that sizes and places
    are the same whoever takes part, as in a partition. Under Poisson sampling they are not.

    Where several ranks train one model, a batch holds the auxiliaries of one rank, from number
    `first` on. `whole` are then the sizes of all of them, from which all ranks find the same way.
    """

    step: int
    epoch: int
    data: Data
    sizes: tuple[int, ...]
    keys: tuple[int, ...] | None = None  # first, first + 1, first + 2, … unless given
    fixed: bool = True
    first: int = 0
    whole: tuple[int, ...] | None = None

    @cached_property
    def numbers(self) -> np.ndarray:
        """`keys`, as an array."""
        own = range(self.first, self.first + len(self.sizes))
        keys = own if self.keys is None else self.keys
        return np.array(keys, dtype=np.int64)

    @property
    def alone(self) -> bool:
        """Whether every auxiliary holds one example by construction, not by chance."""
        return (self.fixed or self.keys is not None) and set(self.whole or self.sizes) == {1}

    @cached_property
    def bounds(self) -> list[tuple[int, int]]:
        """Where every auxiliary's examples lie in `data`: (first, last + 1)."""
        return [(a, a + size) for a, size in zip(self.starts.tolist(), self.sizes, strict=True)]

    @cached_property
    def starts(self) -> np.ndarray:
        """Where every auxiliary's first example lies in `data`."""
        sizes = np.array(self.sizes, dtype=np.int64)
        return np.cumsum(sizes) - sizes

    def slice(self, first: int, last: int) -> Data:
        """The examples from `first` until before `last`."""
        return tree_map(lambda t: t[first:last], self.data)

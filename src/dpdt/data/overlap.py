"""Whether what is said to be public is a part of the training data.

It is looked for where mistakes are made: a slice of the same array, a subset of the same Dataset, a
copy of all inputs. Memory and numbers of examples decide that, and only the last looks at values.
Copies of single examples are not noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from dpdt.data import frames
from dpdt.data.access import sample

WORK = 100_000  # numpy's measure of how hard a question about strides may be


def overlaps(data: Any, other: Any) -> bool:
    """Whether both, as a caller has them, hold some of the same memory or numbered examples."""
    (mine, chosen), (theirs, picked) = _parts(data), _parts(other)
    if mine is theirs:
        return chosen is None or picked is None or not set(chosen).isdisjoint(picked)
    return any(_shared(a, b) for a, b in product(_arrays(mine), _arrays(theirs)))


def same_inputs(data: Any, inputs: Any) -> bool:
    """Whether inputs are those of all examples, as far as some of them tell."""
    own = data[0] if isinstance(data, tuple | list) and len(data) else data
    both = isinstance(own, Tensor) and isinstance(inputs, Tensor) and len(own) > 0
    return both and sample(own) == sample(inputs)


def _parts(data: Any) -> tuple[Any, list[int] | None]:
    """What examples are read from, and the numbers of those that are; None: all."""
    if isinstance(data, DataLoader):
        return _parts(data.dataset)
    if not isinstance(data, Subset):
        return data, None
    source, among = _parts(data.dataset)
    numbers = [int(i) for i in data.indices]
    return source, numbers if among is None else [among[i] for i in numbers]


def _arrays(data: Any) -> Iterator[np.ndarray]:
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Tensor):
        with suppress(TypeError, RuntimeError):  # numpy does not know all kinds
            plain = data.detach()
            yield (plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy()
    elif isinstance(data, np.ndarray):
        yield data
    elif frames.is_series(data):
        yield data.to_numpy()
    elif frames.is_frame(data):
        for place in range(len(data.columns)):
            yield data.iloc[:, place].to_numpy()
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _arrays(value)
    elif isinstance(data, tuple | list) and not all(isinstance(x, int | float | str) for x in data):
        for value in data:
            yield from _arrays(value)


def _shared(a: np.ndarray, b: np.ndarray) -> bool:
    try:
        return bool(np.shares_memory(a, b, max_work=WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True

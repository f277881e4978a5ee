"""A Dataset that is read one example at a time, whatever its collate function does.

A collate function that sees a batch can mix its examples: it can pad them to the longest, or scale
them by their mean. An example's contribution would then depend on the others, past the norm bound.
So a collate function only ever sees one example, as a batch of one.

Guarantees: what is read of an example is a function of the example and of the random numbers that
are set before it. Its shapes and types are those of example 0, or it is refused. So torch never
finds a common type for examples that differ, which would depend on who is in the batch. All are
read from the same state of the Dataset, its transforms and its collate function (state.py). What
the first examples show to depend on what was read before is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from dpdt.algorithm.batch import Data, leaves, tree_map
from dpdt.algorithm.randomness import kept
from dpdt.data.state import Reads, alike
from dpdt.errors import InputError

Collate = Callable[[list[Any]], Any]
FIXED = (
    "examples are read one by one, so that none depends on the others of its batch: pad or cut "
    "each to one fixed length (for texts padding='max_length')"
)


class Each(Dataset[Data]):
    """The examples of a source, each collated by itself and then `changed`."""

    def __init__(
        self,
        source: Any,
        what: str,
        collate: Collate = default_collate,
        changed: Callable[[Data], Data] | None = None,
        reads: Reads | None = None,
    ):
        self.source, self.what, self.collate, self.changed = source, what, collate, changed
        self.form: Any = None
        self.reads = reads or Reads(
            {what: source, f"the collate function of {what}": collate}, what
        )
        if len(self):
            self._look()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, number: int) -> Data:
        one = self._one(number)
        if form_of(one) != self.form:
            raise InputError(
                f"{self.what}: example {number} is {_words(form_of(one))}, and example 0 is "
                f"{_words(self.form)}; {FIXED}"
            )
        return tree_map(lambda t: t[0].clone(), one)  # it may lie in what is put back

    def read(self, numbers: list[int], keys: list[int], seed: int, step: int) -> list[Data]:
        """Read examples, each with random numbers that follow its own key and the step."""
        return self.reads.batch(numbers, keys, seed, step, self.__getitem__)

    def but(self, changed: Callable[[Data], Data]) -> Each:
        """The same examples, changed once they are read."""
        return Each(self.source, self.what, self.collate, changed, self.reads)

    def _look(self) -> None:
        """Learn the form of an example, and see that reading another leaves it as it is."""
        with kept():
            self.reads.begin()
            order = (0, min(1, len(self) - 1), 0)
            first, _, again = (tree_map(torch.clone, self._seeded(i)) for i in order)
            lasting = self.reads.settle()
        self.form = form_of(first)
        if form_of(again) != self.form or not alike(first, again):
            raise InputError(
                f"{self.what}: gives another example 0 when it is read again, after another and "
                "with the same random numbers: so examples depend on what was read before; let "
                "__getitem__ keep nothing that it reads later"
            )
        if lasting is not None:
            raise InputError(
                f"{self.what}: reading an example changes {lasting}, which is too large to be set "
                "back after each; let __getitem__ change a copy of what it holds"
            )

    def _seeded(self, number: int) -> Data:
        return self.reads.seeded(number, number, 0, 0, self._one)

    def _one(self, number: int) -> Data:
        """An example as a batch of one."""
        try:
            batch = _tensors(self.collate([self.source[number]]))
        except (TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            reason = str(error).splitlines()[0][:120]
            raise InputError(
                f"{self.what}: example {number} cannot be made a batch of one ({reason}); an "
                "example must be tensors, arrays or numbers, in a tuple or a mapping"
            ) from error
        if not isinstance(batch, Tensor | Mapping | tuple) or not _is_one(batch):
            found = [tuple(t.shape) for t in leaves(batch)]
            raise InputError(
                f"{self.what}: must be tensors with examples along the first dimension, once a "
                f"batch of one example is made; found {type(batch).__name__} with tensors of "
                f"shape {', '.join(map(str, found)) or 'none'}"
            )
        return batch if self.changed is None else self.changed(batch)


def form_of(data: Data) -> Any:
    """Structure, shapes and types of an example; nothing of its content."""
    if isinstance(data, Tensor):
        return str(data.dtype).removeprefix("torch."), tuple(data.shape[1:])
    if isinstance(data, Mapping):
        return {key: form_of(value) for key, value in data.items()}
    if isinstance(data, tuple | list):
        return [form_of(value) for value in data]
    return type(data).__name__


def _words(form: Any) -> str:
    if isinstance(form, dict):
        return ", ".join(f"{k}: {_words(v)}" for k, v in form.items())
    if isinstance(form, list):
        return ", ".join(map(_words, form))
    return f"{form[0]} of shape {form[1]}" if isinstance(form, tuple) else str(form)


def _tensors(data: Any) -> Data:
    """Arrays as tensors, in the structure of `tree_map`."""
    if isinstance(data, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(data))
    if isinstance(data, Mapping):
        return {key: _tensors(value) for key, value in data.items()}
    if isinstance(data, tuple | list):
        return tuple(map(_tensors, data))
    return data


def _is_one(data: Data) -> bool:
    """Whether there are tensors and nothing else, with one example."""
    if isinstance(data, Mapping):
        return len(data) > 0 and all(map(_is_one, data.values()))
    if isinstance(data, tuple):
        return len(data) > 0 and all(map(_is_one, data))
    return isinstance(data, Tensor) and data.dim() > 0 and len(data) == 1

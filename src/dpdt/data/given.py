"""What a caller has, as data that can be trained on: tensors, or a Dataset read one by one.

numpy arrays, pandas frames, Hugging Face datasets, torch Datasets and DataLoaders are taken as they
are. None of these libraries is imported here: whoever has such an object has imported it.

Guarantees: what an example becomes is a function of the example alone, of types and shapes, and of
the model (frames.py, each.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from dpdt.algorithm.batch import Data, tree_map
from dpdt.data import frames
from dpdt.data.each import Each
from dpdt.errors import InputError

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WIDER = {"uint16": "int32", "uint32": "int64"}  # which torch computes with


@dataclass(frozen=True)
class Numbers:
    """In which numbers a model reads examples. A function of one example, or of many."""

    floats: dict[torch.dtype, torch.dtype]  # what numbers with a point become
    inputs: torch.dtype | None = None  # what whole-number inputs become, if they must

    @classmethod
    def of(cls, model: nn.Module) -> Numbers:
        """A model in one precision reads all numbers in it; others do not read float64."""
        own = {p.dtype for p in model.parameters() if p.is_floating_point()}
        for only in (torch.float32, torch.float64):
            if own == {only}:
                return cls(dict.fromkeys(FLOATS, only))
        return cls({} if torch.float64 in own else {torch.float64: torch.float32})

    def with_inputs(self, to: torch.dtype) -> Numbers:
        return Numbers(self.floats, to)

    def __call__(self, data: Data) -> Data:
        if isinstance(data, tuple | list) and len(data) > 1:
            return (self.alone(data[0]), _whole(self._floats(data[1])), *data[2:])
        data = self.alone(data)
        if isinstance(data, Mapping) and "labels" in data:
            data = {**data, "labels": _whole(data["labels"])}
        return data

    def alone(self, inputs: Data) -> Data:
        """Inputs without targets."""
        to = self.inputs
        if to is not None and isinstance(inputs, Tensor) and not inputs.is_floating_point():
            return inputs.to(to)
        return self._floats(inputs)

    def _floats(self, data: Data) -> Data:
        return tree_map(lambda t: t.to(self.floats.get(t.dtype, t.dtype)), data)

    def read(self, data: Any) -> Any:
        """All examples in these numbers; those of a Dataset when they are read."""
        return data.but(self) if isinstance(data, Each) else self(data)


def _whole(targets: Data) -> Data:
    """Targets that are whole numbers, as torch's losses want them."""
    plain = isinstance(targets, Tensor) and not (
        targets.is_floating_point() or targets.is_complex()
    )
    return targets.long() if plain else targets


def taken(data: Any, what: str = "data") -> Any:
    """Tensors, or a Dataset that is read one by one, of what a caller has."""
    if isinstance(data, Each):
        return data
    if isinstance(data, DataLoader):
        return _of_loader(data, what)
    if type(data).__module__.split(".")[0] == "datasets":
        return _of_hub(data, what)
    if isinstance(data, IterableDataset):
        raise InputError(
            f"{what}: an IterableDataset has no numbered examples to draw from; give a Dataset "
            "with __len__ and __getitem__"
        )
    if isinstance(data, Dataset):
        return _of_dataset(data, what, default_collate)
    if frames.is_frame(data):
        raise InputError(
            f"{what}: a frame needs its target beside it; give (frame.drop(columns='target'), "
            "frame['target']) with the name of your target"
        )
    if isinstance(data, tuple | list) and len(data) == 2:
        frames.refuse_other_rows(data[0], data[1], what)
        if any(frames.is_frame(x) or frames.is_series(x) for x in data):
            return taken_inputs(data[0], what), _tensors(data[1], what)
    return _tensors(data, what)


def taken_inputs(inputs: Any, what: str = "public") -> Any:
    """Inputs without targets, as tensors or a Dataset."""
    if frames.is_frame(inputs) or frames.is_series(inputs):
        return frames.inputs(inputs, what)
    return taken(inputs, what)


def workers_of(data: Any) -> int:
    """How many processes a DataLoader reads by; 0 of anything else."""
    return data.num_workers if isinstance(data, DataLoader) else 0


def _tensors(data: Any, what: str) -> Any:
    """Arrays and series as tensors; what is neither stays, to be refused by its name."""
    if isinstance(data, np.ndarray):
        return _of_array(data, what)
    if frames.is_frame(data) or frames.is_series(data):
        return frames.targets(data, what)
    if isinstance(data, Mapping):
        return {key: _tensors(value, f"{what}[{key!r}]") for key, value in data.items()}
    if isinstance(data, list) and data and all(type(x) in (int, float) for x in data):
        return torch.tensor(data)
    if isinstance(data, tuple | list):
        return tuple(_tensors(value, what) for value in data)
    return data


def _of_array(array: np.ndarray, what: str) -> Tensor:
    if isinstance(array, np.ma.MaskedArray):
        raise InputError(
            f"{what}: a masked array would be trained on with the values that it hides; give "
            "array.filled(value), with a value that is known without the data"
        )
    if array.dtype.kind not in "fiubc":
        raise InputError(f"{what}: must be numbers, found an array of {array.dtype}")
    plain = array.astype(WIDER.get(array.dtype.name, array.dtype.newbyteorder("=")), copy=False)
    plain = np.ascontiguousarray(plain).reshape(array.shape)
    try:
        return torch.from_numpy(plain if plain.flags.writeable else plain.copy())
    except TypeError as error:
        raise InputError(f"{what}: torch has no numbers like {array.dtype} ({error})") from None


def _of_dataset(data: Any, what: str, collate: Any) -> Any:
    if collate is default_collate and type(data) is TensorDataset:
        return data.tensors
    return Each(data, what, collate)


def _of_loader(loader: Any, what: str) -> Any:
    """The examples of a DataLoader. Its own sampling is refused, or left with the reason."""
    if isinstance(loader.dataset, IterableDataset):
        return taken(loader.dataset, what)
    kind = type(loader)
    if any(getattr(kind, n) is not getattr(DataLoader, n) for n in ("__iter__", "_get_iterator")):
        raise InputError(
            f"{what}: {kind.__name__} iterates its own way, which would be passed over: examples "
            "are read one at a time from the dataset; do it there, or in the collate function"
        )
    batches = loader.batch_sampler
    plain = type(batches) is BatchSampler
    sampler = batches.sampler if plain else loader.sampler  # the loader's may be another, unused
    if type(sampler) is RandomSampler:
        plain &= not sampler.replacement and sampler.num_samples == len(loader.dataset)
    elif type(sampler) is not SequentialSampler:
        plain = False
    if not plain or sampler.data_source is not loader.dataset:
        chosen = sampler if type(batches) is BatchSampler else batches
        name = type(chosen).__name__ if chosen is not None else "batch_size=None"
        raise InputError(
            f"{what}: the DataLoader draws examples its own way ({name}), and the guarantee rests "
            "on who is in a mini-batch, which only dpdt may decide; give the examples that you "
            "mean as a Dataset (torch.utils.data.Subset), without a sampler"
        )
    if what == "data":
        warnings.warn(
            "data: of the DataLoader its dataset, collate function and workers are used. Its batch "
            "size, shuffling and drop_last are not: the guarantee rests on who is in a mini-batch, "
            "so dpdt decides it; batch_size=… says how many examples",
            stacklevel=2,
        )
    if type(loader.dataset).__module__.split(".")[0] == "datasets":
        return _of_hub(loader.dataset, what, loader.collate_fn)
    return _of_dataset(loader.dataset, what, loader.collate_fn)


def _of_hub(data: Any, what: str, collate: Any = default_collate) -> Each:
    """The rows of a Hugging Face dataset, which are mappings."""
    if isinstance(data, Mapping) or not hasattr(data, "__len__"):
        raise InputError(
            f"{what}: must be one split with numbered rows, as dataset['train'] is, found "
            f"{type(data).__name__}"
        )
    if collate is not default_collate:
        return Each(data, what, collate)
    for name, value in (data[0] if len(data) else {}).items():
        if isinstance(value, str) or value is None:
            raise InputError(
                f"{what}: column {name!r} holds texts or nothing; make tokens of it by map(...), "
                "and name the columns that the model reads by select_columns([...])"
            )
    return Each(data, what, _of_row)


def _of_row(rows: list[Any]) -> dict[str, Tensor]:
    """A row as a batch of one; `label` is called as models call it."""
    (row,) = rows
    names = {name: "labels" if name == "label" and "labels" not in row else name for name in row}
    arrays = {names[name]: np.asarray(value)[None] for name, value in row.items()}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}

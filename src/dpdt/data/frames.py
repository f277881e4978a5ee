"""pandas frames as tensors. What a column becomes follows from its type, never from its values.

Numbers stay numbers. A category becomes a 0 or 1 for each category that its type declares: those
that occur in private data would be private. pandas itself is never imported here: whoever has a
frame has imported it.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpdt.errors import InputError


def is_frame(value: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_series(value: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Series)


def inputs(value: Any, what: str) -> Tensor:
    """The columns of a frame side by side, [rows, numbers]; a series is one column."""
    frame = value.to_frame() if is_series(value) else value
    if not len(frame.columns):
        raise InputError(f"{what}: the frame has no columns")
    parts = []
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place]
        if (declared := _categories(column)) is None:
            parts.append(_numbers(column, what, name).astype("float64")[:, None])
        else:
            codes = _codes(column, what, name)
            parts.append((codes[:, None] == np.arange(len(declared))).astype("float64"))
    return torch.from_numpy(np.concatenate(parts, 1))


def targets(value: Any, what: str) -> Tensor:
    """A series as it is, or a frame's columns side by side; a category becomes its number."""
    if is_series(value):
        if _categories(value) is not None:
            return torch.from_numpy(_codes(value, what, value.name))
        return torch.from_numpy(_numbers(value, what, value.name))
    columns = [_numbers(value.iloc[:, i], what, name) for i, name in enumerate(value.columns)]
    if not columns:
        raise InputError(f"{what}: the frame of targets has no columns")
    return torch.from_numpy(np.stack(columns, 1))


def refuse_unlike(data: Any, other: Any, what: str) -> None:
    """Refuse a frame whose columns do not mean the same as those that are trained on."""
    mine, theirs = _form(data), _form(other)
    if mine is not None and theirs is not None and mine != theirs:
        raise InputError(
            f"{what}: its columns must be those of the data, in their order, with the same "
            f"categories; found {_words(theirs, mine)}"
        )


def refuse_other_rows(x: Any, y: Any, what: str) -> None:
    """Refuse inputs and targets whose rows have other names: they belong to other examples."""
    both = (is_frame(x) or is_series(x)) and (is_frame(y) or is_series(y))
    if both and len(x) == len(y) and not x.index.equals(y.index):
        raise InputError(
            f"{what}: the index of the inputs is not that of the targets, so their rows may not "
            "belong together; bring both into one order, or call reset_index(drop=True) on both"
        )


def _form(data: Any) -> list[tuple[Any, Any]] | None:
    x = data[0] if isinstance(data, tuple | list) and len(data) else data
    if not is_frame(x):
        return None
    columns = [x.iloc[:, i] for i in range(len(x.columns))]
    return [(name, _categories(c)) for name, c in zip(x.columns, columns, strict=True)]


def _words(theirs: list[tuple[Any, Any]], mine: list[tuple[Any, Any]]) -> str:
    if len(theirs) != len(mine):
        return f"{len(theirs)} columns, and {len(mine)} in the data"
    name, other = next((a, b) for a, b in zip(theirs, mine, strict=True) if a != b)
    return f"{name[0]!r} with other categories" if name[0] == other[0] else f"{name[0]!r}"


def _categories(column: Any) -> list[Any] | None:
    """What the type of a column declares."""
    found = getattr(column.dtype, "categories", None)
    return None if found is None else list(found)


def _look_found(column: Any) -> bool:
    """Tell by its type alone whether the categories of a column may have been found in the data.

    Whether all of them occur would say more, but one example can decide that.
    """
    declared = _categories(column) or []
    try:
        return not column.dtype.ordered and declared == sorted(declared)
    except TypeError:  # categories that have no order are found as they come
        return not column.dtype.ordered


def _codes(column: Any, what: str, name: Any) -> np.ndarray:
    """The number of each category, of those that are declared."""
    codes = column.cat.codes.to_numpy().astype("int64")
    if (codes < 0).any():
        raise InputError(
            f"{what}: column {name!r} has missing values; declare a category for them, and "
            "fill them with it"
        )
    if _look_found(column):
        warnings.warn(
            f"{what}: the categories of column {name!r} count as public, and are in the order in "
            "which astype('category') finds them. If it found them in the data, they are private: "
            "declare what is known without the data by "
            "pandas.CategoricalDtype([...], ordered=True)",
            stacklevel=2,
        )
    return np.asarray(codes)


def _numbers(column: Any, what: str, name: Any) -> np.ndarray:
    """A column of numbers, whole ones as int64."""
    kind = getattr(getattr(column.dtype, "numpy_dtype", column.dtype), "kind", "O")
    if kind not in "fiub":
        raise InputError(
            f"{what}: column {name!r} holds {column.dtype}, not numbers; make numbers of it, or a "
            "pandas.CategoricalDtype([...]) with the categories that are known without the data"
        )
    if column.isna().any():
        raise InputError(
            f"{what}: column {name!r} has missing values; fill them with a constant that is known "
            "without the data, such as 0"
        )
    return np.array(column.to_numpy(dtype="float64" if kind == "f" else "int64"))  # a copy

"""Data sets by name. The facts about each are plain numbers, so that accounting needs no torch.

Files are looked for in the folder $DPDT_DATA, otherwise in ~/.cache/dpdt. They are read in the
formats in which the data sets' own sites offer them. Nothing is ever downloaded. Inputs are scaled
by public constants, never by statistics of the data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdt.data import cache, tables
from dpdt.data.encoding import Encoding
from dpdt.data.scales import AS_THEY_ARE, BYTES, Scale
from dpdt.data.sheets import is_table
from dpdt.data.table import DATA, DataSet, Facts, Part
from dpdt.data.tables import Table
from dpdt.errors import InputError, meant

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

__all__ = [
    "BYTES",
    "DATA",
    "GIVEN",
    "DataSet",
    "Encoding",
    "Examples",
    "Facts",
    "Scale",
    "Table",
    "cache",
    "channels_first",
    "facts",
    "folder",
    "is_own",
    "is_table",
    "load",
    "missing",
    "scale",
    "scale_of",
    "set_aside",
]

GIVEN = "(given in Python)"  # in the place of a name: at hand only in the program that gave it


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A training and a test part: (inputs, labels), or a Dataset of such pairs.

    Inputs are a tensor, or a list of texts. `source` is what the whole training part is recognised
    by (`access.sample`), however many of its examples are used, and as whatever features. `fixed`
    are tensors of the model that public inputs have given.
    """

    train: Any
    test: Any
    source: str = ""
    fixed: dict[str, Any] | None = None


def folder() -> Path:
    """Where data sets are looked for."""
    return Path(os.environ.get("DPDT_DATA") or Path.home() / ".cache" / "dpdt").expanduser()


def folder_of(name: str) -> Path | None:
    """A folder by its path, or by its name below the data folder; None if there is none."""
    if not name:
        return None
    with suppress(OSError, RuntimeError):  # a name that is too long, or the home of nobody
        found = (Path(name).expanduser(), folder() / name)
        return next((path for path in found if path.is_dir()), None)
    return None


def missing(name: str) -> list[Path]:
    """The files of a data set that are not there."""
    entry = DATA[name]
    if entry.other and all((folder() / file).exists() for file in entry.other):
        return []
    return [folder() / file for file in entry.files if not (folder() / file).exists()]


def is_own(name: str) -> bool:
    """Whether a name is the path of a file of the user's own."""
    return name not in DATA and (name.endswith(".npz") or is_table(name))


def facts(name: str, limit: int | None = None, table: Table | None = None) -> Facts:
    """What is public about a data set, by its name or read from a file of the user's own.

    `limit` is the number of training examples to use, if not all. `table` is what is declared of
    a .csv or .parquet file.
    """
    known = _facts(name, table)
    if limit is not None and limit > known.examples:
        raise InputError(
            f"data.limit: must be at most the number of examples, {known.examples}, found {limit}"
        )
    return known if limit is None else replace(known, examples=limit)


def _facts(name: str, table: Table | None) -> Facts:
    if name in DATA:
        return DATA[name].facts
    if name.endswith(".npz"):
        from dpdt.data import npz

        shape, classes = npz.described(Path(name))
        return Facts(examples=shape[0], shape=_shaped(shape), classes=classes)
    if name == GIVEN:
        raise InputError(
            "data.name: the model and data of this run were given in Python, so it can be gone on "
            "with, loaded and released there alone (docs/python.md)"
        )
    if table is not None:
        return Facts(
            examples=tables.examples(Path(name), table),
            shape=(table.encoding.width,),
            classes=table.classes,
            task=table.task,
        )
    raise InputError(
        f"data.name: must be one of {', '.join(DATA)} or the path of an .npz, .csv or .parquet "
        f"file, found {name!r}{meant(name, DATA)}"
    )


def load(name: str, limit: int | None = None, table: Table | None = None) -> Examples:
    """Read a data set. With `limit`, take that many training examples, evenly spaced."""
    known, wanted = facts(name, table=table), facts(name, limit, table)
    source = ""
    if name.endswith(".npz"):
        from dpdt.data import npz

        parts = npz.parts(Path(name))
    elif table is not None:
        parts, source = tables.parts(Path(name), table)
    else:
        entry, absent = DATA[name], missing(name)
        if absent:
            raise InputError(
                f"data.name: {name} is not here, {absent[0]} is missing; {entry.source}, below "
                f"{folder()} or the folder that DPDT_DATA names"
            )
        parts = entry.read(folder())
    train, test = (_tensors(*p) if isinstance(p, tuple) else p for p in parts)
    found, shape = _size(train)
    if (found, shape) != (known.examples, known.shape):
        raise InputError(
            f"data.name: {name} has {found} training examples of shape {shape}, "
            f"expected {known.examples} of {known.shape}"
        )
    found, shape = _size(test)
    if found == 0 or shape != known.shape:
        raise InputError(
            f"data.name: {name} has {found} test examples of shape {shape}, expected at least one "
            f"of {known.shape}, the shape of its training examples"
        )
    for part in (train, test) if known.task == "classification" else ():
        _check_labels(name, part, known.classes)
    if name.endswith(".npz"):
        for where, part in (("x_train", train), ("x_test", test)):
            _refuse_nonfinite(f"{name}: {where}", part[0])
    from dpdt.data.access import sample

    source = source or sample(train)
    if limit is not None:
        train = _some(train, [i * known.examples // limit for i in range(wanted.examples)])
    return Examples(train=train, test=test, source=source)


def _size(part: Part) -> tuple[int, tuple[int, ...]]:
    """How many examples there are, and of what shape. Texts have the shape ()."""
    if not isinstance(part, tuple):
        return len(part), tuple(part[0][0].shape) if len(part) else ()
    return len(part[1]), () if isinstance(part[0], list) else tuple(part[0].shape[1:])


def _check_labels(name: str, part: Part, classes: int) -> None:
    """Refuse labels that are no class, in what is in memory. A folder's classes are its folders."""
    if isinstance(part, tuple) and not bool(((part[1] >= 0) & (part[1] < classes)).all()):
        raise InputError(
            f"data.name: {name} has a label that is none of its {classes} classes; labels must be "
            f"from 0 to {classes - 1}"
        )


def _refuse_nonfinite(where: str, x: Any) -> None:
    """Refuse numbers that are none, or too large for single precision."""
    finite = x.flatten(1).isfinite().all(1)
    if not finite.all():
        raise InputError(
            f"{where}: row {int((~finite).nonzero()[0])} (from 0) has a number that is not finite "
            "in single precision; leave such rows out, or put a number there"
        )


def set_aside(examples: Examples, number: int) -> tuple[Any, Examples]:
    """Set `number` held-out inputs aside as public, without their labels.

    Returns them, and the examples without them.
    """
    if not number:
        return None, examples
    if not isinstance(examples.test, tuple):
        raise InputError(
            "data.public: held-out examples that are read from files one by one cannot be set "
            f"aside; give 0, found {number}"
        )
    x, y = examples.test
    if number >= len(y):
        raise InputError(
            f"data.public: must leave some of the {len(y)} held-out examples, found {number}"
        )

    def rows(chosen: slice) -> Any:
        return {k: v[chosen] for k, v in x.items()} if isinstance(x, Mapping) else x[chosen]

    rest = slice(number, None)
    return rows(slice(number)), replace(examples, test=(rows(rest), y[rest]))


def _some(part: Part, indices: list[int]) -> Part:
    """The examples at these places."""
    if not isinstance(part, tuple):
        from torch.utils.data import Subset

        return Subset(part, indices)
    x, y = part
    return [x[i] for i in indices] if isinstance(x, list) else x[indices], y[indices]


def _shaped(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one input: of images channels, height, width; others stay as they are."""
    if _channels_last(shape):
        return (shape[3], *shape[1:3])
    return (1, *shape[1:]) if len(shape) == 3 else shape[1:]


def _channels_last(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4 and shape[-1] in (1, 3) and shape[1] not in (1, 3)


def channels_first(x: np.ndarray) -> np.ndarray:
    """Images as [n, channels, height, width]. Other arrays stay as they are."""
    first = x.transpose(0, 3, 1, 2) if _channels_last(x.shape) else x
    return first.reshape(len(x), *_shaped(x.shape))


def scale(pixels: Tensor) -> Tensor:
    """Bytes as numbers from −1 to 1, by a public constant."""
    return pixels.float().div_(BYTES.divide).sub_(BYTES.subtract)


def scale_of(name: str, table: Table | None = None) -> Scale | Encoding:
    """How a data set becomes inputs, by its name or by what an .npz file holds."""
    if table is not None:
        return table.encoding
    if name in DATA:
        return DATA[name].scale
    from dpdt.data import rows

    with rows.opened(Path(name), ("x_train",)) as found:
        return BYTES if found.dtype == "uint8" else AS_THEY_ARE


def _tensors(x: np.ndarray | list[str], y: np.ndarray) -> tuple[Tensor | list[str], Tensor]:
    """Bytes become numbers, class numbers become integers, texts stay."""
    import numpy as np
    import torch

    labels = torch.from_numpy(y.astype(np.float32 if y.dtype.kind == "f" else np.int64))
    if isinstance(x, list):
        return x, labels
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    inputs = torch.from_numpy(np.ascontiguousarray(channels_first(x)))
    return scale(inputs) if inputs.dtype == torch.uint8 else inputs.float(), labels

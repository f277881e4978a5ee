"""Data sets by name. The facts about each are plain numbers, so that accounting needs no torch.

Files are looked for in $DPDT_DATA, or in ~/.cache/dpdt, in the formats their own sites use. Nothing
is ever downloaded. Inputs are scaled by public constants, never by statistics of the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdt.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is public about a data set."""

    examples: int  # in the training part
    shape: tuple[int, ...]
    classes: int
    text: bool = False
    in_memory: bool = True  # False: read from files one by one


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A known data set: its facts, the files it needs, how to get it, and its reader.

    `other` are files that will do as well.
    """

    facts: Facts
    files: tuple[str, ...]  # below the data folder; none if it is built in
    source: str
    read: Callable[[Path], tuple[Part, Part]]
    other: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A training and a test part: (inputs, labels), or a Dataset of such pairs.

    Inputs are a tensor, or a list of texts.
    """

    train: Any
    test: Any
    users: list[Any] | None = None


Part = Any  # (array or list of texts, labels), or a Dataset


def _digits(folder: Path) -> tuple[Part, Part]:
    import numpy as np
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.data))  # a public split
    x = (bunch.data[order] / 16.0).astype("float32")  # pixels are 0 … 16
    y = bunch.target[order].astype("int64")
    n = DATA["digits"].facts.examples
    return (x[:n], y[:n]), (x[n:], y[n:])


def _cifar10(folder: Path) -> tuple[Part, Part]:
    from dpdt.data import formats

    if (packed := folder / "cifar10.npz").is_file():
        return formats.npz_parts(packed)
    base = folder / "cifar-10-batches-py"
    train = [base / f"data_batch_{i}" for i in range(1, 6)]
    return formats.cifar(train, b"labels"), formats.cifar([base / "test_batch"], b"labels")


def _cifar100(folder: Path) -> tuple[Part, Part]:
    from dpdt.data import formats

    if (packed := folder / "cifar100.npz").is_file():
        return formats.npz_parts(packed)
    base = folder / "cifar-100-python"
    return (
        formats.cifar([base / "train"], b"fine_labels"),
        formats.cifar([base / "test"], b"fine_labels"),
    )


def _cifar100_small(folder: Path) -> tuple[Part, Part]:
    """A file of its own, or the first 10,000 and 2,000 of the whole."""
    from dpdt.data import formats

    if (packed := folder / "cifar100-small.npz").is_file():
        return formats.npz_parts(packed)
    train, test = _cifar100(folder)
    return (train[0][:10_000], train[1][:10_000]), (test[0][:2_000], test[1][:2_000])


def _idx(name: str) -> Callable[[Path], tuple[Part, Part]]:
    def read(folder: Path) -> tuple[Part, Part]:
        from dpdt.data import formats

        parts = [
            formats.idx(
                folder / name / f"{part}-images-idx3-ubyte.gz",
                folder / name / f"{part}-labels-idx1-ubyte.gz",
            )
            for part in ("train", "t10k")
        ]
        return parts[0], parts[1]

    return read


def _imagenet100(folder: Path) -> tuple[Part, Part]:
    from dpdt.data.images import ImageFolder

    side = DATA["imagenet100"].facts.shape[-1]
    base = folder / "imagenet-100"
    return ImageFolder(base / "train", side), ImageFolder(base / "val", side)


def _imagenet100_small(folder: Path) -> tuple[Part, Part]:
    """At most 50 and 10 images of each class, at a quarter of the size, all in memory."""
    from dpdt.data.images import ImageFolder

    side = DATA["imagenet100-small"].facts.shape[-1]
    base = folder / "imagenet-100"
    return (
        ImageFolder(base / "train", side, most=50).arrays(),
        ImageFolder(base / "val", side, most=10).arrays(),
    )


def _sst2(folder: Path) -> tuple[Part, Part]:
    from dpdt.data import formats

    return formats.sst2(folder / "SST-2/train.tsv"), formats.sst2(folder / "SST-2/dev.tsv")


def _adult(folder: Path) -> tuple[Part, Part]:
    from dpdt.data import formats

    return formats.adult(folder / "adult/train.csv"), formats.adult(folder / "adult/test.csv")


def _idx_files(name: str) -> tuple[str, ...]:
    return tuple(
        f"{name}/{part}-{what}-ubyte.gz"
        for part in ("train", "t10k")
        for what in ("images-idx3", "labels-idx1")
    )


DATA = {
    "digits": DataSet(
        facts=Facts(examples=1437, shape=(64,), classes=10),
        files=(),
        source="comes with scikit-learn",
        read=_digits,
    ),
    "cifar10": DataSet(
        facts=Facts(examples=50_000, shape=(3, 32, 32), classes=10),
        files=tuple(
            f"cifar-10-batches-py/{n}"
            for n in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
        ),
        source="unpack cifar-10-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html",
        read=_cifar10,
        other=("cifar10.npz",),
    ),
    "cifar100": DataSet(
        facts=Facts(examples=50_000, shape=(3, 32, 32), classes=100),
        files=("cifar-100-python/train", "cifar-100-python/test"),
        source="unpack cifar-100-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html",
        read=_cifar100,
        other=("cifar100.npz",),
    ),
    "cifar100-small": DataSet(
        facts=Facts(examples=10_000, shape=(3, 32, 32), classes=100),
        files=("cifar-100-python/train", "cifar-100-python/test"),
        source="get cifar100, of which it is the first fifth, or a cifar100-small.npz with "
        "x_train, y_train, x_test, y_test",
        read=_cifar100_small,
        other=("cifar100-small.npz",),
    ),
    "mnist": DataSet(
        facts=Facts(examples=60_000, shape=(1, 28, 28), classes=10),
        files=_idx_files("mnist"),
        source="put the four .gz files of the MNIST database into mnist/",
        read=_idx("mnist"),
    ),
    "fashion-mnist": DataSet(
        facts=Facts(examples=60_000, shape=(1, 28, 28), classes=10),
        files=_idx_files("fashion-mnist"),
        source="put the four .gz files of https://github.com/zalandoresearch/fashion-mnist into "
        "fashion-mnist/",
        read=_idx("fashion-mnist"),
    ),
    "imagenet100": DataSet(
        facts=Facts(examples=126_689, shape=(3, 224, 224), classes=100, in_memory=False),
        files=("imagenet-100/train", "imagenet-100/val"),
        source="put the class folders of ImageNet-100 into imagenet-100/train and imagenet-100/val",
        read=_imagenet100,
    ),
    "imagenet100-small": DataSet(
        facts=Facts(examples=5_000, shape=(3, 64, 64), classes=100),
        files=("imagenet-100/train", "imagenet-100/val"),
        source="get imagenet100, or 100 classes of Tiny ImageNet in the same folders: 50 and 10 "
        "images of each are used, at 64 × 64",
        read=_imagenet100_small,
    ),
    "adult": DataSet(
        facts=Facts(examples=32_561, shape=(105,), classes=2),
        files=("adult/train.csv", "adult/test.csv"),
        source="save adult.data and adult.test of https://archive.ics.uci.edu/dataset/2/adult as "
        "adult/train.csv and adult/test.csv",
        read=_adult,
    ),
    "sst2": DataSet(
        facts=Facts(examples=67_349, shape=(), classes=2, text=True),
        files=("SST-2/train.tsv", "SST-2/dev.tsv"),
        source="unpack SST-2.zip of https://gluebenchmark.com/tasks",
        read=_sst2,
    ),
}


def folder() -> Path:
    """Where data sets are looked for."""
    return Path(os.environ.get("DPDT_DATA") or Path.home() / ".cache" / "dpdt").expanduser()


def missing(name: str) -> list[Path]:
    """The files of a data set that are not there."""
    entry = DATA[name]
    if entry.other and all((folder() / file).exists() for file in entry.other):
        return []
    return [folder() / file for file in entry.files if not (folder() / file).exists()]


def facts(name: str, limit: int | None = None) -> Facts:
    """What is public about a data set, by its name or read from an .npz file.

    `limit` is the number of training examples to use, if not all.
    """
    known = _facts(name)
    if limit is not None and limit > known.examples:
        raise InputError(
            f"data.limit: must be at most the number of examples, {known.examples}, found {limit}"
        )
    return known if limit is None else replace(known, examples=limit)


def _facts(name: str) -> Facts:
    if name in DATA:
        return DATA[name].facts
    if name.endswith(".npz"):
        from dpdt.data import formats

        arrays = formats.npz(Path(name))
        x, classes = arrays["x_train"], formats.npz_classes(Path(name), arrays)
        return Facts(examples=len(x), shape=_channels_first(x).shape[1:], classes=classes)
    raise InputError(
        f"data.name: must be one of {', '.join(DATA)} or the path of an .npz file, found {name!r}"
    )


def load(name: str, limit: int | None = None) -> Examples:
    """Read a data set; with `limit`, that many training examples, evenly spaced."""
    known, wanted = facts(name), facts(name, limit)
    if name.endswith(".npz"):
        from dpdt.data import formats

        parts = formats.npz_parts(Path(name))
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
    for part in (train, test):
        _check_labels(name, part, known.classes)
    if limit is not None:
        train = _some(train, [i * known.examples // limit for i in range(wanted.examples)])
    return Examples(train=train, test=test)


def _size(part: Part) -> tuple[int, tuple[int, ...]]:
    """How many examples there are, and of what shape; texts have none."""
    if not isinstance(part, tuple):
        return len(part), tuple(part[0][0].shape) if len(part) else ()
    return len(part[1]), () if isinstance(part[0], list) else tuple(part[0].shape[1:])


def _check_labels(name: str, part: Part, classes: int) -> None:
    """Labels of what is in memory; a folder's classes are its own folders."""
    if isinstance(part, tuple):
        lowest, highest = int(part[1].min()), int(part[1].max())
        if lowest < 0 or highest >= classes:
            raise InputError(
                f"data.name: {name} has a label {lowest if lowest < 0 else highest}, but {classes} "
                f"classes; labels must be from 0 to {classes - 1}"
            )


def set_aside(examples: Examples, number: int) -> tuple[Any, Examples]:
    """So many held-out inputs, without their labels, as public; the rest stays held out."""
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


def _channels_first(x: np.ndarray) -> np.ndarray:
    """Images as [n, channels, height, width]; other arrays as they are."""
    if x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        return x.transpose(0, 3, 1, 2)
    return x[:, None] if x.ndim == 3 else x


def scale(pixels: Tensor) -> Tensor:
    """Bytes as numbers from −1 to 1, by a public constant."""
    return pixels.float().div_(127.5).sub_(1.0)


def _tensors(x: np.ndarray | list[str], y: np.ndarray) -> tuple[Tensor | list[str], Tensor]:
    """Bytes become numbers, labels become integers, texts stay."""
    import numpy as np
    import torch

    labels = torch.from_numpy(y.astype(np.int64))
    if isinstance(x, list):
        return x, labels
    inputs = torch.from_numpy(np.ascontiguousarray(_channels_first(x)))
    return scale(inputs) if inputs.dtype == torch.uint8 else inputs.float(), labels

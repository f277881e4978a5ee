"""Data sets by name. The facts about each are plain numbers, so that accounting needs no torch.

Files are looked for in $DPDT_DATA, or in ~/.cache/dpdt, in the formats their own sites use. Nothing
is ever downloaded. Inputs are scaled by public constants, never by statistics of the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A known data set: its facts, the files it needs, how to get it, and its reader."""

    facts: Facts
    files: tuple[str, ...]  # below the data folder; none if it is built in
    source: str
    read: Callable[[Path], tuple[Arrays, Arrays]] | None  # None: known to accounting only


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A training and a test part, each (inputs, labels)."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    users: list[Any] | None = None


Arrays = tuple["np.ndarray", "np.ndarray"]


def _digits(folder: Path) -> tuple[Arrays, Arrays]:
    import numpy as np
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.data))  # a public split
    x = (bunch.data[order] / 16.0).astype("float32")  # pixels are 0 … 16
    y = bunch.target[order].astype("int64")
    n = DATA["digits"].facts.examples
    return (x[:n], y[:n]), (x[n:], y[n:])


def _cifar10(folder: Path) -> tuple[Arrays, Arrays]:
    from dpdt.data import formats

    base = folder / "cifar-10-batches-py"
    train = [base / f"data_batch_{i}" for i in range(1, 6)]
    return formats.cifar(train, b"labels"), formats.cifar([base / "test_batch"], b"labels")


def _cifar100(folder: Path) -> tuple[Arrays, Arrays]:
    from dpdt.data import formats

    base = folder / "cifar-100-python"
    return (
        formats.cifar([base / "train"], b"fine_labels"),
        formats.cifar([base / "test"], b"fine_labels"),
    )


def _idx(name: str) -> Callable[[Path], tuple[Arrays, Arrays]]:
    def read(folder: Path) -> tuple[Arrays, Arrays]:
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


def _imagenet100(folder: Path) -> tuple[Arrays, Arrays]:
    from dpdt.data import formats

    side = DATA["imagenet100"].facts.shape[-1]
    base = folder / "imagenet-100"
    return formats.image_folder(base / "train", side), formats.image_folder(base / "val", side)


def _adult(folder: Path) -> tuple[Arrays, Arrays]:
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
    ),
    "cifar100": DataSet(
        facts=Facts(examples=50_000, shape=(3, 32, 32), classes=100),
        files=("cifar-100-python/train", "cifar-100-python/test"),
        source="unpack cifar-100-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html",
        read=_cifar100,
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
        facts=Facts(examples=126_689, shape=(3, 224, 224), classes=100),
        files=("imagenet-100/train", "imagenet-100/val"),
        source="put the class folders of ImageNet-100 into imagenet-100/train and imagenet-100/val",
        read=_imagenet100,
    ),
    "adult": DataSet(
        facts=Facts(examples=32_561, shape=(105,), classes=2),
        files=("adult/train.csv", "adult/test.csv"),
        source="save adult.data and adult.test of https://archive.ics.uci.edu/dataset/2/adult as "
        "adult/train.csv and adult/test.csv",
        read=_adult,
    ),
    "sst2": DataSet(
        facts=Facts(examples=67_349, shape=(128,), classes=2),
        files=("SST-2/train.tsv", "SST-2/dev.tsv"),
        source="unpack SST-2.zip of https://gluebenchmark.com/tasks",
        read=None,
    ),
}


def folder() -> Path:
    """Where data sets are looked for."""
    return Path(os.environ.get("DPDT_DATA") or Path.home() / ".cache" / "dpdt").expanduser()


def missing(name: str) -> list[Path]:
    """The files of a data set that are not there."""
    return [folder() / file for file in DATA[name].files if not (folder() / file).exists()]


def facts(name: str) -> Facts:
    """What is public about a data set, by its name or read from an .npz file."""
    if name in DATA:
        return DATA[name].facts
    if name.endswith(".npz"):
        from dpdt.data import formats

        arrays = formats.npz(Path(name))
        x, y = arrays["x_train"], arrays["y_train"]
        classes = int(arrays["classes"]) if "classes" in arrays else int(y.max()) + 1
        return Facts(examples=len(x), shape=_channels_first(x).shape[1:], classes=classes)
    raise InputError(
        f"data.name: must be one of {', '.join(DATA)} or the path of an .npz file, found {name!r}"
    )


def load(name: str) -> Examples:
    """Read a data set."""
    known = facts(name)
    if name.endswith(".npz"):
        from dpdt.data import formats

        arrays = formats.npz(Path(name))
        parts = tuple((arrays[f"x_{p}"], arrays[f"y_{p}"]) for p in ("train", "test"))
    else:
        entry, absent = DATA[name], missing(name)
        if absent:
            raise InputError(
                f"data.name: {name} is not here, {absent[0]} is missing; {entry.source}, below "
                f"{folder()} or the folder that DPDT_DATA names"
            )
        if entry.read is None:
            raise InputError(
                f"data.name: {name!r} is known to accounting only, it has no reader yet"
            )
        parts = entry.read(folder())
    train, test = (_tensors(x, y) for x, y in parts)
    found = (len(train[0]), tuple(train[0].shape[1:]))
    if found != (known.examples, known.shape):
        raise InputError(
            f"data.name: {name} has {found[0]} training examples of shape {found[1]}, "
            f"expected {known.examples} of {known.shape}"
        )
    return Examples(train=train, test=test)


def _channels_first(x: np.ndarray) -> np.ndarray:
    """Images as [n, channels, height, width]; other arrays as they are."""
    if x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        return x.transpose(0, 3, 1, 2)
    return x[:, None] if x.ndim == 3 else x


def _tensors(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    """Bytes become numbers from −1 to 1, by a public constant; labels become integers."""
    import numpy as np
    import torch

    inputs = torch.from_numpy(np.ascontiguousarray(_channels_first(x)))
    if inputs.dtype == torch.uint8:
        inputs = inputs.float().div_(127.5).sub_(1.0)
    return inputs.float(), torch.from_numpy(y.astype(np.int64))

"""The data sets that are known by name: their facts, the files they need, and their readers.

A reader gets the data folder and returns a training part and a test part as they are on disk. It
imports what it needs when it is called, so that a list of data sets costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpdt.data.scales import AS_THEY_ARE, BYTES, CROPPED, DIGITS, Scale

Part = Any  # (array or list of texts, labels), or a Dataset


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is public about a data set."""

    examples: int  # in the training part
    shape: tuple[int, ...]
    classes: int  # or labels, or numbers that a target holds
    text: bool = False
    in_memory: bool = True  # False: read from files one by one
    task: str = "classification"  # what the targets are made for (tasks.py)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A known data set: its facts, the files it needs, where they come from, and its reader.

    `other` are files that will do as well. `scale` is how numbers on disk become inputs, and
    `labels` are what the classes are called.
    """

    facts: Facts
    files: tuple[str, ...]  # below the data folder; none if the data set is built in
    source: str
    read: Callable[[Path], tuple[Part, Part]]
    other: tuple[str, ...] = ()
    scale: Scale = BYTES
    labels: tuple[str, ...] | None = None


def _digits(folder: Path) -> tuple[Part, Part]:
    import numpy as np

    # The file itself: to import all of scikit-learn for it would take half a second.
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    rows = rows[np.random.default_rng(0).permutation(len(rows))]  # a public split
    x = (rows[:, :-1] / DIGITS.divide).astype("float32")  # pixels are 0 … 16
    y = rows[:, -1].astype("int64")
    n = DATA["digits"].facts.examples
    return (x[:n], y[:n]), (x[n:], y[n:])


def _digits_images(folder: Path) -> tuple[Part, Part]:
    (x, y), (x_test, y_test) = _digits(folder)
    return (x.reshape(-1, 1, 8, 8), y), (x_test.reshape(-1, 1, 8, 8), y_test)


def _cifar10(folder: Path) -> tuple[Part, Part]:
    from dpdt.data import formats, npz

    if (packed := folder / "cifar10.npz").is_file():
        return npz.parts(packed)
    base = folder / "cifar-10-batches-py"
    train = [base / f"data_batch_{i}" for i in range(1, 6)]
    return formats.cifar(train, b"labels"), formats.cifar([base / "test_batch"], b"labels")


def _cifar100(folder: Path) -> tuple[Part, Part]:
    from dpdt.data import formats, npz

    if (packed := folder / "cifar100.npz").is_file():
        return npz.parts(packed)
    base = folder / "cifar-100-python"
    return (
        formats.cifar([base / "train"], b"fine_labels"),
        formats.cifar([base / "test"], b"fine_labels"),
    )


def _cifar100_small(folder: Path) -> tuple[Part, Part]:
    """A file of its own, or the first 10,000 and 2,000 of the whole."""
    from dpdt.data import npz

    if (packed := folder / "cifar100-small.npz").is_file():
        return npz.parts(packed)
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


CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
    "Ankle boot",
)  # fmt: skip
DATA = {
    "digits": DataSet(
        facts=Facts(examples=1437, shape=(64,), classes=10),
        files=(),
        source="comes with scikit-learn",
        read=_digits,
        scale=DIGITS,
    ),
    "digits-images": DataSet(
        facts=Facts(examples=1437, shape=(1, 8, 8), classes=10),
        files=(),
        source="digits as images of 8×8 pixels, for convolutions",
        read=_digits_images,
        scale=DIGITS,
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
        labels=CIFAR10,
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
        labels=FASHION,
    ),
    "imagenet100": DataSet(
        facts=Facts(examples=126_689, shape=(3, 224, 224), classes=100, in_memory=False),
        files=("imagenet-100/train", "imagenet-100/val"),
        source="put the class folders of ImageNet-100 into imagenet-100/train and imagenet-100/val",
        read=_imagenet100,
        scale=CROPPED,
    ),
    "imagenet100-small": DataSet(
        facts=Facts(examples=5_000, shape=(3, 64, 64), classes=100),
        files=("imagenet-100/train", "imagenet-100/val"),
        source="get imagenet100, or 100 classes of Tiny ImageNet in the same folders: 50 and 10 "
        "images of each are used, at 64 × 64",
        read=_imagenet100_small,
        scale=CROPPED,
    ),
    "adult": DataSet(
        facts=Facts(examples=32_561, shape=(105,), classes=2),
        files=("adult/train.csv", "adult/test.csv"),
        source="save adult.data and adult.test of https://archive.ics.uci.edu/dataset/2/adult as "
        "adult/train.csv and adult/test.csv",
        read=_adult,
        scale=AS_THEY_ARE,
        labels=("<=50K", ">50K"),
    ),
    "sst2": DataSet(
        facts=Facts(examples=67_349, shape=(), classes=2, text=True),
        files=("SST-2/train.tsv", "SST-2/dev.tsv"),
        source="unpack SST-2.zip of https://gluebenchmark.com/tasks",
        read=_sst2,
        scale=AS_THEY_ARE,
        labels=("negative", "positive"),
    ),
}

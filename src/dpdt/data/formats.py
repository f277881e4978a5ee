"""Readers for the formats that data sets come in. Each returns numpy arrays as they are on disk.

A file that cannot be read raises an InputError that names it; nothing is guessed or skipped.
"""

from __future__ import annotations

import csv
import gzip
import io
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dpdt.errors import InputError

Arrays = tuple[np.ndarray, np.ndarray]  # inputs, labels


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with a file into one sentence about it."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: is missing") from None
    except InputError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in a parser
        reason = str(error) or type(error).__name__
        raise InputError(f"{path}: is damaged ({reason})") from None


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numbers, strings, lists, dicts and numpy arrays, and refuses everything else."""

    ALLOWED = frozenset(
        (module, name)
        for module, names in {
            "numpy": ("ndarray", "dtype"),
            "numpy.core.multiarray": ("_reconstruct",),
            "numpy._core.multiarray": ("_reconstruct",),
            "_codecs": ("encode",),
        }.items()
        for name in names
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not an array")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def cifar(paths: list[Path], label: bytes) -> Arrays:
    """CIFAR's python batches: rows of 3072 bytes, and labels under the key `label`."""
    images, labels = [], []
    for path in paths:
        with reading(path):
            with open(path, "rb") as file:
                batch = _ArraysOnly(file, encoding="bytes").load()
            pixels, classes = np.asarray(batch[b"data"]), np.asarray(batch[label])
            if pixels.dtype != np.uint8 or pixels.shape != (len(classes), 3072):
                raise ValueError(f"images of shape {pixels.shape}, expected (n, 3072) bytes")
            images.append(pixels.reshape(-1, 3, 32, 32))
            labels.append(classes.astype(np.int64))
    return np.concatenate(images), np.concatenate(labels)


def idx(images: Path, labels: Path) -> Arrays:
    """MNIST's IDX files, gzipped or not. Images get a channel dimension."""
    pixels, classes = _idx(images), _idx(labels)
    if pixels.ndim != 3 or classes.shape != pixels.shape[:1]:
        raise InputError(f"{images}: {pixels.shape} images do not fit {classes.shape} labels")
    return pixels[:, None], classes.astype(np.int64)


def _idx(path: Path) -> np.ndarray:
    with reading(path):
        raw = path.read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        zero, kind, dimensions = struct.unpack(">HBB", data[:4])
        if zero != 0 or kind != 8:
            raise ValueError("not an IDX file of bytes")
        shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
        body = np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions)
        if body.size != int(np.prod(shape)):
            raise ValueError(f"{body.size} bytes for an array of shape {shape}")
        return body.reshape(shape).copy()  # a view of bytes could not be written to


def npz(path: Path) -> dict[str, np.ndarray]:
    """An .npz with x_train, y_train, x_test, y_test: numbers, and a whole number for each row."""
    with reading(path), np.load(path, allow_pickle=False) as archive:
        missing = [n for n in ("x_train", "y_train", "x_test", "y_test") if n not in archive]
        if missing:
            raise InputError(
                f"{path}: has no {missing[0]}; it needs x_train, y_train, x_test, y_test, "
                f"found {', '.join(archive.files)}"
            )
        arrays = {name: archive[name] for name in archive.files}
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.shape[:1] != y.shape or x.ndim < 2:
            raise InputError(
                f"{path}: x_{part} of shape {x.shape} does not fit y_{part} {y.shape}; it needs a "
                "row of numbers for each label"
            )
        if x.dtype.kind not in "fiub":
            raise InputError(f"{path}: x_{part} must be numbers, found {x.dtype}")
        if y.dtype.kind not in "iu":
            raise InputError(f"{path}: y_{part} must be whole numbers from 0, found {y.dtype}")
        if len(y) == 0:
            raise InputError(f"{path}: x_{part} is empty; it needs at least one example")
    return arrays


def npz_classes(path: Path, arrays: dict[str, np.ndarray]) -> int:
    """How many classes an .npz says it has.

    The file has to say so. If labels were counted, one record could decide the shape of the
    released model.
    """
    found = arrays.get("classes")
    if found is None:
        raise InputError(
            f"{path}: has no classes; store their number in the file, as in "
            "np.savez(…, classes=10), since it must not depend on the labels"
        )
    if found.shape != () or found.dtype.kind not in "iu" or found < 1:
        raise InputError(f"{path}: classes must be a whole number from 1, found {found}")
    return int(found)


def npz_parts(path: Path) -> tuple[Arrays, Arrays]:
    """The training and the test part of an .npz."""
    arrays = npz(path)
    return (arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])


def sst2(path: Path) -> tuple[list[str], np.ndarray]:
    """GLUE's SST-2: a header, then a sentence, a tab and 0 or 1 on each line."""
    sentences, labels = [], []
    with reading(path), open(path, encoding="utf-8") as file:
        header = file.readline().rstrip("\n").split("\t")
        if header != ["sentence", "label"]:
            raise ValueError(f"its first line is {header}, expected sentence and label")
        for number, line in enumerate(file, start=2):
            sentence, separator, label = line.rstrip("\n").rpartition("\t")
            if not separator or label not in ("0", "1"):
                raise ValueError(f"line {number} is not a sentence, a tab and 0 or 1")
            sentences.append(sentence.strip())
            labels.append(int(label))
    return sentences, np.asarray(labels, dtype=np.int64)


# The columns of Adult as its documentation lists them: a divisor for a number, values for a
# category. Public constants, so that nothing is fitted to the data.
ADULT: list[float | str] = [
    100.0,
    "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
    "Never-worked",
    1e6,
    "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
    "1st-4th 10th Doctorate 5th-6th Preschool",
    16.0,
    "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
    "Married-AF-spouse",
    "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
    "Priv-house-serv Protective-serv Armed-Forces",
    "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "Female Male",
    1e5,
    5e3,
    100.0,
    "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India "
    "Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico "
    "Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary "
    "Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong "
    "Holand-Netherlands",
]


def adult(path: Path) -> Arrays:
    """UCI Adult. Numbers are divided by public constants, categories are one-hot.

    An unknown category ("?") is all zeros.
    """
    columns = [c.split() if isinstance(c, str) else c for c in ADULT]
    rows, labels = [], []
    with reading(path), io.StringIO(path.read_text("utf-8")) as file:
        for fields in csv.reader(file, skipinitialspace=True):
            if not fields or fields[0].startswith("|"):  # blank, or the test file's first line
                continue
            if len(fields) != len(columns) + 1:
                raise ValueError(f"a row of {len(fields)} columns, expected {len(columns) + 1}")
            row: list[float] = []
            for field, column in zip(fields, columns, strict=False):
                if isinstance(column, list):
                    row += [float(field == value) for value in column]
                else:
                    row.append(float(field) / column)
            rows.append(row)
            labels.append({"<=50K": 0, ">50K": 1}[fields[-1].strip(" .")])
    return np.asarray(rows, dtype=np.float32), np.asarray(labels, dtype=np.int64)

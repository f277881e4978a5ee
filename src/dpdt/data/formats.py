"""Readers for the formats that data sets come in. Each returns numpy arrays as they are on disk.

A file that cannot be read raises an InputError that names it; nothing is guessed or skipped.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dpdt.data.batches import plain
from dpdt.errors import InputError
from dpdt.ram import available, gigabytes
from dpdt.reading import opened, size

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
        reason = str(error)[:200] or type(error).__name__
        raise InputError(f"{path}: is damaged ({reason})") from None


def cifar(paths: list[Path], label: bytes) -> Arrays:
    """CIFAR's python batches: rows of 3072 bytes, and labels under the key `label`."""
    images, labels = [], []
    for path in paths:
        with reading(path):
            with opened(path) as file:
                refuse_large(path, 3 * size(file))
                batch = plain(file.read())
            pixels, classes = batch[b"data"], _whole(batch[label])
            if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
                raise ValueError("its data are not an array of bytes")
            if pixels.shape != (len(classes), 3072):
                raise ValueError(f"images of shape {pixels.shape}, expected (n, 3072) bytes")
            images.append(pixels.reshape(-1, 3, 32, 32))
            labels.append(classes)
    return np.concatenate(images), np.concatenate(labels)


def _whole(labels: Any) -> np.ndarray:
    """Labels as a batch has them: a list of whole numbers, or an array."""
    if isinstance(labels, np.ndarray):
        return labels.astype(np.int64)
    if not isinstance(labels, list) or not all(type(y) is int for y in labels):
        raise ValueError("its labels are not whole numbers")
    return np.array(labels, dtype=np.int64)


def refuse_large(path: Path, need: int) -> None:
    """Refuse what would not fit into memory, before it is allocated."""
    free = available()
    if free is not None and need > free:
        raise InputError(
            f"{path}: would take {gigabytes(need)} of memory, and {gigabytes(free)} are free"
        )


def idx(images: Path, labels: Path) -> Arrays:
    """MNIST's IDX files, gzipped or not. Images get a channel dimension."""
    pixels, classes = _idx(images), _idx(labels)
    if pixels.ndim != 3 or classes.shape != pixels.shape[:1]:
        raise InputError(f"{images}: {pixels.shape} images do not fit {classes.shape} labels")
    return pixels[:, None], classes.astype(np.int64)


def _idx(path: Path) -> np.ndarray:
    with reading(path), opened(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        with gzip.open(file) if packed else file as stream:
            zero, kind, dimensions = struct.unpack(">HBB", stream.read(4))
            if zero != 0 or kind != 8:
                raise ValueError("not an IDX file of bytes")
            shape = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
            wanted = math.prod(shape)
            if not packed and wanted > size(file):
                raise ValueError(f"{size(file)} bytes for an array of shape {shape}")
            refuse_large(path, 2 * wanted)
            body = stream.read(wanted + 1)
        if len(body) != wanted:
            more = "more" if len(body) > wanted else "fewer"
            raise ValueError(f"{more} than {wanted} bytes for an array of shape {shape}")
        return np.frombuffer(body, np.uint8).reshape(shape).copy()  # to be written to


def sst2(path: Path) -> tuple[list[str], np.ndarray]:
    """GLUE's SST-2: a header, then a sentence, a tab and 0 or 1 on each line."""
    sentences, labels = [], []
    with reading(path), io.TextIOWrapper(opened(path), encoding="utf-8") as file:
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
    with reading(path), io.TextIOWrapper(opened(path), encoding="utf-8") as file:
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

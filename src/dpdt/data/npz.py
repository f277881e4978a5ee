"""A data set in an .npz: an archive of arrays, each with a header that says its type and shape.

Guarantees: no array is allocated before its header was compared with what the archive holds, and
with the memory that is free. Only the arrays of a data set are read. Their names are never paths,
and nothing is unpickled.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpdt.data.formats import Arrays, reading, refuse_large
from dpdt.errors import InputError
from dpdt.reading import opened

NAMES = ("x_train", "y_train", "x_test", "y_test")
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What an array's header says."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def described(path: Path) -> tuple[tuple[int, ...], int]:
    """The shape of the training inputs, and the number of classes, without reading any example."""
    with _archive(path) as archive:
        headers = _checked(path, archive)
        return headers["x_train"].shape, _classes(path, archive)


def parts(path: Path) -> tuple[Arrays, Arrays]:
    """The training and the test part."""
    with _archive(path) as archive:
        headers = _checked(path, archive)
        refuse_large(path, sum(header.bytes for header in headers.values()))
        x, y, x_test, y_test = (_read(archive, name) for name in NAMES)
    return (x, y), (x_test, y_test)


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    with reading(path), opened(path) as file, zipfile.ZipFile(file) as archive:
        yield archive


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as member:
        found: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"{name} is longer than its header says")
        return found


def _header(archive: zipfile.ZipFile, name: str) -> Stored:
    """The header of an array, compared with the size that the archive has for it."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version not in HEADERS:
            raise ValueError(f"{name} has version {version} of the format, expected 1.0 or 2.0")
        shape, _, dtype = HEADERS[version](member)
        stored = Stored(shape=shape, dtype=dtype)
        if dtype.hasobject or stored.bytes != info.file_size - member.tell():
            raise ValueError(f"{name} of shape {shape} and type {dtype} does not fit its size")
    return stored


def _checked(path: Path, archive: zipfile.ZipFile) -> dict[str, Stored]:
    """The headers of a data set: numbers, and a whole number for each row."""
    known = set(archive.namelist())
    missing = [name for name in NAMES if f"{name}.npy" not in known]
    if missing:
        found = [name.removesuffix(".npy") for name in archive.namelist()[:9]]
        raise InputError(
            f"{path}: has no {missing[0]}; it needs {', '.join(NAMES)}, found {', '.join(found)}"
        )
    headers = {name: _header(archive, name) for name in NAMES}
    for part in ("train", "test"):
        x, y = headers[f"x_{part}"], headers[f"y_{part}"]
        if x.shape[:1] != y.shape or len(x.shape) < 2:
            raise InputError(
                f"{path}: x_{part} of shape {x.shape} does not fit y_{part} {y.shape}; it needs a "
                "row of numbers for each label"
            )
        if x.dtype.kind not in "fiub":
            raise InputError(f"{path}: x_{part} must be numbers, found {x.dtype}")
        if x.dtype.itemsize > 8:
            raise InputError(f"{path}: x_{part} must have at most 64 bits, found {x.dtype}")
        if y.dtype.kind not in "iu":
            raise InputError(f"{path}: y_{part} must be whole numbers from 0, found {y.dtype}")
        if y.shape == (0,):
            raise InputError(f"{path}: x_{part} is empty; it needs at least one example")
        if 0 in x.shape:
            raise InputError(f"{path}: x_{part} of shape {x.shape} has no numbers in its rows")
    return headers


def _classes(path: Path, archive: zipfile.ZipFile) -> int:
    """How many classes an .npz says it has.

    The file has to say so. If labels were counted, one record could decide the shape of the
    released model.
    """
    if "classes.npy" not in archive.namelist():
        raise InputError(
            f"{path}: has no classes; store their number in the file, as in "
            "np.savez(…, classes=10), since it must not depend on the labels"
        )
    header = _header(archive, "classes")
    found = _read(archive, "classes") if header.bytes <= 8 else None
    if found is None or found.shape != () or found.dtype.kind not in "iu" or found < 1:
        shown = header.shape if found is None else found
        raise InputError(f"{path}: classes must be a whole number from 1, found {shown}")
    return int(found)

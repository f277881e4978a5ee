"""An array in an .npz, read a few rows at a time. Nothing is allocated because a file says so."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from dpdt.data.formats import reading
from dpdt.errors import InputError

LONGEST = 10_000  # bytes of a header
SUFFIX = ".npy"


@dataclass(frozen=True, kw_only=True)
class Rows:
    """An array of numbers in an open file, which is read once from its beginning."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    file: IO[bytes]

    def chunks(self, number: int) -> Iterator[np.ndarray]:
        """All rows, that many at a time."""
        row, left = math.prod(self.shape[1:]) * self.dtype.itemsize, self.shape[0]
        while left:
            rows = min(number, left)
            with reading(self.path):
                raw = self.file.read(rows * row)
                if len(raw) < rows * row:
                    raise ValueError(f"array {self.name} ends too early")
                if left == rows:
                    self.file.read(1)  # at its end an archive compares the checksum
            yield np.frombuffer(raw, self.dtype).reshape(rows, *self.shape[1:])
            left -= rows


@contextmanager
def opened(path: Path, names: tuple[str, ...]) -> Iterator[Rows]:
    """The first of these arrays that an .npz has, or its only one."""
    with reading(path):
        archive = zipfile.ZipFile(path)
    with archive:
        found = [n.removesuffix(SUFFIX) for n in archive.namelist() if n.endswith(SUFFIX)]
        name = next((n for n in names if n in found), found[0] if len(found) == 1 else None)
        if name is None:
            raise InputError(
                f"{path}: must hold an array {' or '.join(names)}, or one array alone, found "
                f"{', '.join(found)!r:.80}"
            )
        with reading(path):
            info = archive.getinfo(name + SUFFIX)
            file = archive.open(info)
        with file:
            yield _rows(path, name, file, info.file_size)


def _rows(path: Path, name: str, file: IO[bytes], size: int) -> Rows:
    """What the header says, if it is true."""
    with reading(path):
        shape, fortran, dtype, length = _header(file)
    if dtype.kind not in "fiub" or not shape:
        raise InputError(
            f"{path}: array {name} must be rows of numbers, found {dtype} of shape {shape}"
        )
    if fortran and len(shape) > 1:
        raise InputError(
            f"{path}: array {name} is stored column by column; store np.ascontiguousarray of it"
        )
    if length + math.prod(shape) * dtype.itemsize != size:
        raise InputError(
            f"{path}: is damaged (array {name} says that it has shape {shape} of {dtype}, which "
            f"does not fit its {size} bytes)"
        )
    return Rows(path=path, name=name, shape=shape, dtype=dtype, file=file)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic], int]:
    """Shape, order and type of an array, and the length of all that comes before it."""
    major, _ = np.lib.format.read_magic(file)
    width = 2 if major == 1 else 4
    length = file.read(width)
    number = int.from_bytes(length, "little")
    if number > LONGEST:
        raise ValueError(f"a header of {number} bytes")
    read = (
        np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read(io.BytesIO(length + file.read(number)))
    if any(n < 0 for n in shape):
        raise ValueError(f"an array of shape {shape}")
    return shape, fortran, dtype, np.lib.format.MAGIC_LEN + width + number

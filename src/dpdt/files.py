"""Files that survive a crash: a file is there as it was or as it is to be, never in between.

What fails is told in one sentence that names the file. Nothing is buffered here: what a function
has written is with the operating system when it returns, and on the disk itself where it says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpdt.errors import InputError

PART = ".part"  # of a file that is being written


class CannotWrite(InputError):
    """A file cannot be written: the disk is full, the folder is read-only or gone."""


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """What the system refuses inside is told as one sentence about the file."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(f"{path}: cannot be written ({error.strerror or error})") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to. What is there at the end replaces the file, whole and on the disk."""
    part = path.with_name(path.name + PART)
    try:
        with writing(path):
            yield part
            sync(part)
            os.replace(part, path)
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file, or leave what was there."""
    with replacing(path) as part, opened(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        write_all(file, data)


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file. A crash may leave a part of the data."""
    with writing(path), opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
        write_all(file, data)


@contextmanager
def opened(path: str | Path, flags: int) -> Iterator[int]:
    """The number of an open file."""
    file = os.open(path, flags, 0o666)
    try:
        yield file
    finally:
        os.close(file)


def write_all(file: int, data: bytes | memoryview) -> None:
    """Hand all bytes to the system, which may take them piece by piece."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def sync(path: Path) -> None:
    """Bring what a file holds to the disk itself."""
    with opened(path, os.O_RDONLY) as file:
        os.fsync(file)


def sync_data(file: int) -> None:
    """Bring what an open file holds, and its length, to the disk itself."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(file)
    else:  # macOS
        os.fsync(file)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk itself, if the folder may be read."""
    with suppress(PermissionError):
        sync(path)

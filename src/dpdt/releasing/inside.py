"""Files inside a release: plain ones, which no link leads out of the folder to."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dpdt.errors import InputError
from dpdt.reading import opened, size
from dpdt.reading import text as text_in

SPARSE = 1 << 30  # bytes of a file from which on holes are looked for
SHARE = 10  # a file that is larger than its place on the disk by this factor is made of holes


def checked(folder: Path, name: str) -> Path:
    """The path of a plain file of this name in a folder, if no part of the name is a link."""
    path = folder
    for part in name.split("/"):
        path = path / part
        try:
            mode = os.lstat(path).st_mode
        except (OSError, ValueError):
            raise InputError(f"{path}: is missing, or is no file") from None
        if stat.S_ISLNK(mode):
            raise InputError(f"{path}: is a link, and a release holds its files itself; copy it")
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: is missing, or is no file")
    refuse_sparse(path)
    return path


def text(folder: Path, name: str, most: int) -> str:
    """The text of such a file, which has at most so many bytes."""
    return text_in(checked(folder, name), most)


def refuse_sparse(path: Path) -> None:
    """Refuse a large file that is next to nothing on the disk: to read it would take for ever.

    Weights fill the disk. A file of holes can be of any size, and costs whoever made it nothing.
    """
    with opened(path) as file:
        whole, there = size(file), os.fstat(file.fileno()).st_blocks * 512
    if whole > SPARSE and there < whole // SHARE:
        raise InputError(
            f"{path}: has {whole:,} bytes, of which {there:,} are on the disk; it is made of "
            "holes, as no weights are, and is not read"
        )

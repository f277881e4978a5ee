"""Reading files that somebody else may have made: only plain ones, and never more than expected.

Guarantees: a named pipe, a socket, a device or a folder is refused, and never waited for. What is
opened is what was looked at, whatever becomes of its name meanwhile.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from dpdt.errors import InputError

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def opened(path: str | Path) -> BinaryIO:
    """A plain file, open for reading."""
    try:
        # a pipe without a writer would wait for one; a plain file does not care
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise InputError(f"{path}: is missing") from None
    except (OSError, ValueError) as error:  # ValueError: a name that holds a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be read ({reason})") from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise InputError(f"{path}: is {KINDS.get(stat.S_IFMT(mode), 'no file')}, not a file")
    return open(handle, "rb")


def size(file: BinaryIO) -> int:
    """The bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def text(path: str | Path, most: int) -> str:
    """The whole of a file of UTF-8 text that has at most so many bytes."""
    with opened(path) as file:
        try:
            found = file.read(most + 1)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if len(found) > most:
        raise InputError(f"{path}: is larger than {most:,} bytes, too large for what it should be")
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not text in UTF-8 ({error})") from None

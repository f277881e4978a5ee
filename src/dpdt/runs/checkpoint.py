"""The file of a checkpoint. Nothing of it is used before all of it was found to be as written.

    8 bytes    MAGIC, which names the format
    8 bytes    how many bytes follow the head, lowest first
    32 bytes   SHA-256 of all that follows, and then of the 16 bytes above
    …          what torch.save wrote

It is read by torch's `weights_only` alone: tensors and plain values, no code.
"""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from pathlib import Path
from typing import Any

from dpdt.errors import InputError
from dpdt.files import opened, replacing, write_all

MAGIC = b"dpdt\x00cp1"
HEAD = 8 + 8 + 32
PIECE = 1 << 20  # bytes that are read at once


class _Hashed:
    """Writes on to a file, and hashes what it writes."""

    def __init__(self, file: int):
        self.file, self.length, self.digest = file, 0, hashlib.sha256()
        self.failed: OSError | None = None  # torch raises something else in its place

    def write(self, data: bytes) -> int:
        piece = memoryview(data).cast("B")
        try:
            write_all(self.file, piece)
        except OSError as error:
            self.failed = error
            raise
        self.length += len(piece)
        self.digest.update(piece)
        return len(piece)

    def flush(self) -> None:
        pass


class _After(io.RawIOBase):
    """What follows the head of a file, as a file of its own."""

    def __init__(self, file: io.FileIO, length: int):
        self.file, self.length = file, length

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self.length}[whence]
        return self.file.seek(HEAD + max(0, start + place)) - HEAD

    def tell(self) -> int:
        return self.file.tell() - HEAD

    def readinto(self, buffer: Any) -> int:
        return self.file.readinto(buffer)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint. The one before it stays until the new one is on the disk."""
    import torch

    with replacing(path) as part, opened(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        write_all(file, bytes(HEAD))
        content: Any = _Hashed(file)
        try:
            torch.save(state, content)
        except RuntimeError:
            if content.failed is None:
                raise
        if content.failed is not None:
            raise content.failed
        begin = MAGIC + content.length.to_bytes(8, "little")
        content.digest.update(begin)
        os.lseek(file, 0, os.SEEK_SET)
        write_all(file, begin + content.digest.digest())


def load(path: Path) -> dict[str, Any]:
    """What was saved, or one sentence about why it cannot be used."""
    import torch

    try:
        with io.FileIO(path) as file:
            content: Any = _After(file, _checked(path, file))
            content.seek(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # advice for whoever wrote a pickle
                state = torch.load(content, weights_only=True, map_location="cpu")
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: the checkpoint cannot be read ({error.strerror})") from None
    except Exception:  # torch and pickle raise whatever a file makes them raise, with bad advice
        raise InputError(
            f"{path}: the checkpoint cannot be read (it holds something else than tensors and "
            "plain values)"
        ) from None
    if not isinstance(state, dict):
        raise InputError(f"{path}: the checkpoint does not hold what a run goes on from")
    return state


def _checked(path: Path, file: io.FileIO) -> int:
    """How many bytes follow the head of a file that is as it was written."""
    size = os.fstat(file.fileno()).st_size
    head = file.read(HEAD)
    if len(head) < HEAD or not head.startswith(MAGIC):
        raise InputError(f"{path}: is damaged, or not a checkpoint of this version of dpdt")
    length = int.from_bytes(head[8:16], "little")
    if HEAD + length != size:
        raise InputError(
            f"{path}: the checkpoint is damaged: it says that it has {HEAD + length} bytes, and "
            f"has {size}"
        )
    digest = hashlib.sha256()
    while piece := file.read(PIECE):
        digest.update(piece)
    digest.update(head[:16])
    if digest.digest() != head[16:]:
        raise InputError(f"{path}: the checkpoint is damaged: it does not match its own checksum")
    return length

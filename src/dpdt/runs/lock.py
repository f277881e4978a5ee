"""One process at a time writes to a run's folder.

The lock is the kernel's (`flock`). It ends with the process that holds it, however that ends. A
forked process lets go of it, so that readers of data do not keep a folder whose run was killed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpdt.errors import InputError
from dpdt.files import PART

_HELD: set[int] = set()  # open files, by number


def _let_go() -> None:
    for file in _HELD:
        os.close(file)  # the parent's lock stays
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)


@contextmanager
def holding(folder: Path, path: Path, names: Iterable[str]) -> Iterator[None]:
    """Hold the lock of a folder, whose file is `path`, or say that another process does.

    What a crash has left of files of these names, or beside the lock, is removed.
    """
    file = _open(folder, path)
    _HELD.add(file)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder}: another process is writing to this run; wait until it ends, or stop it"
            ) from None
        except OSError as error:
            raise InputError(
                f"{path}: cannot be locked ({error.strerror}); keep runs where files can be"
            ) from None
        left = (folder / (name + PART) for name in names)
        for part in (*left, *path.parent.glob(f"*{PART}")):
            with suppress(OSError):
                part.unlink()
        yield
    finally:
        if file in _HELD:  # else this is a forked process
            _HELD.remove(file)
            os.close(file)


def _open(folder: Path, path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        raise InputError(
            f"{path.parent}: is missing; without it the run {folder} cannot go on, and its ledger "
            "says what was spent"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None

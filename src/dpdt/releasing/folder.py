"""A folder that appears as a whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpdt.errors import InputError
from dpdt.files import PART, sync, sync_folder
from dpdt.releasing.certificate import CERTIFICATE
from dpdt.runs.place import refuse_private


@contextmanager
def building(to: Path, *, alone: bool = False) -> Iterator[Path]:
    """Make a new folder to fill. Once filled, and on the disk itself, it gets its name.

    Until then it has a random one, so nothing of anybody else's is in its way. If nobody else can
    be building it (`alone`), what a crash has left under such names is removed.
    """
    _refuse_inside(to)
    if os.path.lexists(to):
        raise InputError(f"{to}: already exists; a release never overwrites anything")
    if alone:
        for left in _left(to):
            shutil.rmtree(left, ignore_errors=True)
    part = to.with_name(f".{to.name}.{secrets.token_hex(8)}{PART}")
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{to}: cannot be created ({error.strerror})") from None
    try:
        yield part
        for place, _, names in os.walk(part):
            for name in (*names, "."):
                sync(Path(place) / name)
        os.rename(part, to)
        sync_folder(to.parent)
    except OSError as error:
        raise InputError(f"{to}: cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _left(to: Path) -> list[Path]:
    """What crashes have left beside a folder that was being made."""
    name = re.compile(rf"\.{re.escape(to.name)}\.[0-9a-f]{{16}}{re.escape(PART)}")
    return [path for path in to.parent.iterdir() if name.fullmatch(path.name)]


def _refuse_inside(to: Path) -> None:
    """Refuse a place in another release, or where a run keeps what nobody may see."""
    refuse_private(to)
    for parent in to.absolute().resolve().parents:
        if (parent / CERTIFICATE).exists():
            raise InputError(f"{to}: lies in another release, {parent}")

"""A folder that appears as a whole or not at all."""

from __future__ import annotations

import os
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
    """A new folder to fill. Once filled, and on the disk itself, it gets its name.

    If nobody else can be building it (`alone`), what a crash has left of it is removed.
    """
    _refuse_inside(to)
    part = to.with_name(to.name + PART) if to.name else to
    if os.path.lexists(to):
        raise InputError(f"{to}: already exists; a release never overwrites anything")
    if alone:
        shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
    except FileExistsError:
        raise InputError(
            f"{part}: is left from a release that was cut short, and holds nothing complete; "
            "delete it"
        ) from None
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


def _refuse_inside(to: Path) -> None:
    """Refuse a place in another release, or where a run keeps what nobody may see."""
    refuse_private(to)
    for parent in to.absolute().resolve().parents:
        if (parent / CERTIFICATE).exists():
            raise InputError(f"{to}: lies in another release, {parent}")

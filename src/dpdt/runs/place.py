"""Where a run goes by default, and where it may not be: in the private folder of another."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from dpdt.errors import InputError

LEDGER, PRIVATE = "ledger.jsonl", "private"


def is_run(path: str | Path) -> bool:
    """Whether this is the folder of a run."""
    return (Path(path) / LEDGER).is_file()


def is_private(path: Path) -> bool:
    """Whether this is where a run keeps what nobody may see."""
    return path.name == PRIVATE and is_run(path.parent)


def refuse_private(path: Path) -> None:
    """Refuse a place in the private folder of a run, which --forget deletes as a whole."""
    place = path.absolute().resolve()
    if any(map(is_private, (place, *place.parents))):
        raise InputError(f"{path}: lies in the private folder of a run; choose another place")


def default_path(name: str) -> Path:
    """runs/<name>-<time>, numbered if a run started in the same second."""
    stem = f"{Path(name).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = Path("runs") / stem, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{stem}-{number}"
    return path

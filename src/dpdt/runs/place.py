"""Where a run may not be: in the part of another that nobody may see, and that may be deleted."""

from __future__ import annotations

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
    if any(map(is_private, path.absolute().resolve().parents)):
        raise InputError(f"{path}: lies in the private folder of a run; choose another place")
